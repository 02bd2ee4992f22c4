package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// follow reads the feed as a stream does, from a store of its own, until it
// meets the last event.
func follow(ctx context.Context, store *db.Store, limit int) ([]cyborg.Event, error) {
	var (
		seen   []cyborg.Event
		cursor cyborg.Cursor
		wake   = store.Notify(ctx)
	)

	for {
		events, err := store.Events(ctx, db.EventFilter{}, cursor, limit)
		if err != nil {
			return seen, err
		}

		for _, e := range events {
			seen = append(seen, e)
			cursor = e.Cursor
			if e.Subject.Kind == "last" {
				return seen, nil
			}
		}

		if len(events) == limit {
			continue
		}
		select {
		case <-ctx.Done():
			return seen, ctx.Err()
		case <-wake:
		}
	}
}

// TestFeedIsCompleteAndInOrder: many write at once, some of them slowly, and
// some roll back. Several readers of different stores read meanwhile. All of
// them read the same events, none missing or twice, and each change of a thing
// starts where the one before had ended.
func TestFeedIsCompleteAndInOrder(t *testing.T) {
	t.Parallel()
	const hosts, each, rounds, readers = 4, 3, 12, 4
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r := newRecords(t)
	second := openStore(t, r.url, defaults())

	var (
		accelerators []uuid.UUID
		agents       []*host
	)

	for i := range hosts {
		h := r.addHost(t, fmt.Sprintf("h%d", i), each)
		agents = append(agents, h)
		for c := range each {
			accelerators = append(accelerators, h.ready(t, fmt.Sprintf("card%d", c)).UUID)
		}
	}

	read := make([][]cyborg.Event, readers)
	var reading, writing sync.WaitGroup
	for i := range readers {
		store := openStore(t, r.url, defaults())
		reading.Go(func() {
			var err error
			if read[i], err = follow(ctx, store, []int{1000, 50, 7, 1}[i%4]); err != nil {
				t.Error(err)
			}
		})
	}

	write := func(n int, body func(random *rand.Rand) error) {
		for w := range n {
			writing.Go(func() {
				random := rand.New(rand.NewPCG(uint64(w), uint64(n)))
				for range rounds {
					if err := body(random); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}

	pick := func(random *rand.Rand) (*records, uuid.UUID) {
		store := r
		if random.IntN(2) == 1 {
			store = &records{Store: second}
		}
		return store, accelerators[random.IntN(len(accelerators))]
	}

	write(6, func(random *rand.Rand) error { // operations, with all outcomes
		store, id := pick(random)
		a := []db.Admission{toAttach(id, instance(uuid.NewString())), toDetach(id, nil), toProgram(id)}[random.IntN(3)]
		out, err := store.Admit(ctx, a)

		switch cyborg.ErrorKindOf(err) {
		case cyborg.ErrClaimed, cyborg.ErrInUse, cyborg.ErrChanged:
			return nil
		}
		if err != nil || out.NothingToDo {
			return err
		}

		outcome := cyborg.Outcome{
			Operation: out.Operation.ID, State: cyborg.OperationSucceeded, BitstreamID: fmt.Sprint(random.IntN(1000)),
		}

		if _, err := store.Begin(ctx, runOf(out.Operation.ID)); err != nil || random.IntN(4) == 0 {
			outcome.State = cyborg.OperationFailed
		}
		return store.End(ctx, runOf(outcome.Operation), outcome)
	})

	write(2, func(random *rand.Rand) error { // operators
		store, id := pick(random)
		if _, err := store.Maintain(ctx, id, cyborg.Maintenance{Reason: "r"}, alice()); err != nil {
			return err
		}

		kind := fmt.Sprint(random.IntN(1000))
		_, err := store.UpdateSpecs(ctx, id, cyborg.SpecsPatch{Type: &kind}, 0, alice())
		if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrChanged {
			return err
		}

		_, err = store.Enable(ctx, id, alice())
		return err
	})

	var reports sync.Mutex
	write(2, func(random *rand.Rand) error { // agents, several in one transaction
		reports.Lock()
		var batch []agentapi.Report
		for _, h := range agents {
			b := content(each).Backends[0]
			if random.IntN(3) == 0 {
				b.Devices = b.Devices[:each-1]
			}
			b.Devices[0].Deployables[0].BitstreamID = fmt.Sprint(random.IntN(1000))
			h.content = agentapi.Content{Backends: []agentapi.BackendReport{b}}
			batch = append(batch, h.next())
		}

		reports.Unlock()
		_, err := r.MergeReports(ctx, batch)
		return err
	})

	write(4, func(random *rand.Rand) error { // others, slow, half of which roll back
		tx, err := r.sql.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value) VALUES ('slow', 'x', 'a', '', '')`)
		if err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/20); err != nil {
			return err
		}

		if random.IntN(2) == 0 {
			return tx.Rollback(ctx)
		}
		return tx.Commit(ctx)
	})

	writing.Wait()
	r.exec(t, `INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value) VALUES ('last', 'x', 'a', '', '')`)
	reading.Wait()
	require.False(t, t.Failed())

	rows, err := r.sql.Query(t.Context(), "SELECT transaction, id FROM events ORDER BY transaction, id")
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c cyborg.Cursor, err error) {
		return c, row.Scan(&c.Transaction, &c.Event)
	})
	require.NoError(t, err)
	require.Greater(t, len(all), 500)

	for i := range readers {
		cursors := make([]cyborg.Cursor, len(read[i]))
		for n, e := range read[i] {
			cursors[n] = e.Cursor
		}
		require.Equal(t, all, cursors, "reader %d", i)
	}
	requireStories(t, read[0])
}

// requireStories fails unless each change of one axis of one thing starts where
// the change before it ended.
func requireStories(t *testing.T, events []cyborg.Event) {
	t.Helper()
	value := map[string]string{}
	told := 0

	for _, e := range events {
		switch e.Axis {
		case cyborg.AxisSteps, cyborg.AxisReported, cyborg.AxisSettled, cyborg.AxisOptions, cyborg.AxisCancel, "a": // these are not changes of a state
			continue
		}

		thing := fmt.Sprint(e.Subject, e.Axis)
		if e.Axis == cyborg.AxisHolder {
			thing += fmt.Sprint(e.Data["handle"])
		}

		if before, ok := value[thing]; ok {
			told++
			require.Equal(t, before, e.From, "%s, event %s", thing, e.Cursor)
		} else if e.Axis == cyborg.AxisSpecs {
			require.Equal(t, "1", e.From)
		} else {
			require.Empty(t, e.From, "%s starts from nothing, event %s", thing, e.Cursor)
		}

		value[thing] = e.To
	}
	require.Greater(t, told, 200)
}

// endOfFeed is the place of the last event. It waits until that event can be
// read, because transactions of other tests on the same server hold it back.
func (r *records) endOfFeed(t testing.TB) cyborg.Cursor {
	t.Helper()
	var end cyborg.Cursor
	err := r.sql.QueryRow(t.Context(), "SELECT transaction, id FROM events ORDER BY transaction DESC, id DESC LIMIT 1").
		Scan(&end.Transaction, &end.Event)
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		last, err := r.LastCursor(t.Context())
		return err == nil && last == end
	}, 5*time.Minute, time.Millisecond)
	return end
}

// TestFeedWaitsForOlderTransactions: an event is held back while an older
// transaction still runs. It appears soon after that one ends, also by a
// rollback, of which PostgreSQL notifies nobody.
func TestFeedWaitsForOlderTransactions(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"commit", "rollback"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			a := r.addHost(t, "h1", 1).accelerator(t, "card0")
			cursor := r.endOfFeed(t)
			wake := r.Notify(t.Context())

			old, err := r.sql.Begin(t.Context())
			require.NoError(t, err)
			defer old.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // fails only where it has ended already
			_, err = old.Exec(t.Context(), "INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value) VALUES ('old', 'x', 'a', '', '')")
			require.NoError(t, err)
			_, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
			require.NoError(t, err)

			for range 5 { // readers are woken all the time, but have nothing to read
				<-wake
				events, err := r.Events(t.Context(), db.EventFilter{}, cursor, 0)
				require.NoError(t, err)
				require.Empty(t, events)
			}

			last, err := r.LastCursor(t.Context())
			require.NoError(t, err)
			require.Equal(t, cursor, last)

			want := []cyborg.SubjectKind{"old", cyborg.SubjectAccelerator}
			if end == "commit" {
				require.NoError(t, old.Commit(t.Context()))
			} else {
				require.NoError(t, old.Rollback(t.Context()))
				want = want[1:]
			}

			var kinds []cyborg.SubjectKind
			for len(kinds) < len(want) { // transactions of other databases may keep the second back for a moment
				select {
				case <-wake:
				case <-time.After(5 * time.Minute):
					t.Fatal("nobody woke us")
				}

				events, err := r.Events(t.Context(), db.EventFilter{}, cursor, 0)
				require.NoError(t, err)
				kinds = nil
				for _, e := range events {
					kinds = append(kinds, e.Subject.Kind)
				}
			}
			require.Equal(t, want, kinds)
		})
	}
}

// TestEventsNameActorAndOperation: an event names its actor, request,
// operation, host and time, and the filters find it by them.
func TestEventsNameActorAndOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	r.addHost(t, "h2", 1)
	a := h.ready(t, "card0")

	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	_, err := r.Record(t.Context(), runOf(work.Operation), []cyborg.Step{{Name: "attach"}})
	require.NoError(t, err)
	r.end(t, work, cyborg.OperationSucceeded)
	r.endOfFeed(t)

	list := func(f db.EventFilter) []cyborg.Event {
		events, err := r.Events(t.Context(), f, cyborg.Cursor{}, 0)
		require.NoError(t, err)
		return events
	}

	var axes []string
	for _, e := range list(db.EventFilter{Operation: work.Operation}) {
		require.Equal(t, "alice", e.Actor)
		require.Equal(t, "req-1", e.RequestID)
		require.Equal(t, work.Operation, e.Operation)
		require.Equal(t, "h1", e.Host)
		require.NotZero(t, e.Time)
		axes = append(axes, string(e.Axis)+":"+e.To)
	}

	require.Equal(t, []string{
		"state:admitted", "claim:" + work.Operation.String(), "holder:host:h1 (in doubt)", "state:running", "steps:",
		"holder:host:h1", "claim:", "state:succeeded",
	}, axes)

	subject := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: a.UUID.String()}
	history := list(db.EventFilter{Subjects: []cyborg.Subject{subject}})
	require.Equal(t, "agent", history[0].Actor)
	for _, e := range history {
		require.Equal(t, subject, e.Subject)
	}

	other := cyborg.Subject{Kind: cyborg.SubjectHost, ID: "h2"}
	require.Len(t, list(db.EventFilter{Subjects: []cyborg.Subject{subject, other}}), len(history)+1)
	require.Len(t, list(db.EventFilter{Subjects: []cyborg.Subject{other}, Operation: work.Operation}), len(axes)+1)
	require.Empty(t, list(db.EventFilter{Subjects: []cyborg.Subject{subject}, Hosts: []string{"h2"}}))
	for _, e := range list(db.EventFilter{Hosts: []string{"h2"}}) {
		require.Equal(t, "h2", e.Host)
	}

	page, err := r.Events(t.Context(), db.EventFilter{}, history[0].Cursor, 1)
	require.NoError(t, err)
	require.Len(t, page, 1)
}

// TestNotifierRecoversFromALostConnection: readers are woken again after the
// listening connection was killed.
func TestNotifierRecoversFromALostConnection(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).accelerator(t, "card0")
	wake := r.Notify(t.Context())
	listeners := "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%NOT transaction <%' AND pid <> pg_backend_pid()"

	require.Eventually(t, func() bool { return scalar[int](t, r, "SELECT count(*) "+listeners) == 1 }, 5*time.Minute, 10*time.Millisecond)
	r.exec(t, "SELECT pg_terminate_backend(pid) "+listeners)
	require.Eventually(t, func() bool { return scalar[int](t, r, "SELECT count(*) "+listeners) == 1 }, 5*time.Minute, 10*time.Millisecond)
	for len(wake) > 0 {
		<-wake
	}

	cursor := r.endOfFeed(t)
	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		<-wake
		events, err := r.Events(t.Context(), db.EventFilter{}, cursor, 0)
		return err == nil && len(events) > 0
	}, 5*time.Minute, time.Millisecond)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.NotNil(t, r.Notify(gone))
}
