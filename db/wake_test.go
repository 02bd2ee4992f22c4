package db_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// TestCommitsDoNotWaitForEachOther: a change is recorded although the commit of
// another one, which has written events as well, still waits for a standby.
func TestCommitsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	// Nobody is the standby, so only sessions that do not wait for it get their
	// commits acknowledged.
	server := startServer(t, filepath.Join(serverDir(t), "postgres"), postgres.Config{
		FsyncOff: true, Settings: map[string]string{"synchronous_standby_names": "nobody", "synchronous_commit": "local"},
	})
	r := recordsOn(t, server)
	waits, other := r.addHost(t, "h1", 1).accelerator(t, "card0"), r.addHost(t, "h2", 1).accelerator(t, "card0")
	patient := openStore(t, withParameter(t, r.url, "synchronous_commit", "on"), defaults())

	done := make(chan error, 1)
	go func() {
		_, err := patient.Maintain(t.Context(), waits.UUID, cyborg.Maintenance{Reason: "x"}, alice())
		done <- err
	}()
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1
	}, 5*time.Minute, time.Millisecond)

	// A wake-up writes nothing, so it waits for no standby.
	waker, err := pgx.Connect(t.Context(), withParameter(t, r.url, "synchronous_commit", "on"))
	require.NoError(t, err)
	defer waker.Close(context.WithoutCancel(t.Context()))
	waking, cancelWaking := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancelWaking()
	_, err = waker.Exec(waking, "NOTIFY cyborg_events")
	require.NoError(t, err)

	cursor, wake := r.lastCursor(t), r.Notify(t.Context())
	// No timeout of PostgreSQL ends a commit that waits.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err = r.Maintain(ctx, other.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)
	require.Empty(t, done, "nobody has acknowledged the first commit")

	r.exec(t, "ALTER SYSTEM SET synchronous_standby_names = ''")
	r.exec(t, "SELECT pg_reload_conf()")
	require.NoError(t, <-done)
	require.Eventually(t, func() bool {
		<-wake
		events, err := r.Events(t.Context(), db.EventFilter{}, cursor, 0)
		return err == nil && len(events) == 2
	}, 5*time.Minute, time.Millisecond)
}

// lastCursor is the place of the newest event that can be read.
func (r *records) lastCursor(t testing.TB) cyborg.Cursor {
	t.Helper()
	cursor, err := r.LastCursor(t.Context())
	require.NoError(t, err)
	return cursor
}

// listener is a connection that hears when readers of a database are woken.
type listener struct{ conn *pgx.Conn }

// listen begins to hear.
func (r *records) listen(t testing.TB) listener {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	_, err = conn.Exec(t.Context(), "LISTEN cyborg_events")
	require.NoError(t, err)
	return listener{conn}
}

// next waits until readers are woken.
func (l listener) next(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	_, err := l.conn.WaitForNotification(ctx)
	require.NoError(t, err, "nobody wakes the readers")
}

// TestReadersAreWokenAfterTheLastCommit: however many commits one wake-up
// stands for, one follows the last of them, so that a reader that looks only
// when it is woken has read everything.
func TestReadersAreWokenAfterTheLastCommit(t *testing.T) {
	t.Parallel()
	const writers, rounds = 8, 10
	r := newRecords(t)
	second := openStore(t, r.url, defaults())

	var cards []*cyborg.Accelerator
	for i := range writers {
		cards = append(cards, r.addHost(t, fmt.Sprint("h", i), 1).accelerator(t, "card0"))
	}
	heard := r.listen(t)

	var writing sync.WaitGroup
	for i, card := range cards {
		store := []*db.Store{r.Store, second}[i%2]
		writing.Go(func() {
			for n := range rounds {
				kind := fmt.Sprint(n)
				if _, err := store.UpdateSpecs(t.Context(), card.UUID, cyborg.SpecsPatch{Type: &kind}, 0, alice()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()

	for found := 0; found < writers*rounds; {
		heard.next(t)
		found = scalar[int](t, r, "SELECT count(*) FROM events WHERE axis = 'specs'")
	}
}

// TestReadersAreWokenAfterALostConnection: the connection that wakes them was
// ended while nothing happened, and the next commit wakes them all the same.
func TestReadersAreWokenAfterALostConnection(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).accelerator(t, "card0")

	change := func(kind string) {
		heard := r.listen(t)
		_, err := r.UpdateSpecs(t.Context(), card.UUID, cyborg.SpecsPatch{Type: &kind}, 0, alice())
		require.NoError(t, err)
		heard.next(t)
	}
	change("a")

	waker := scalar[int](t, r, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'NOTIFY cyborg_events'")
	r.exec(t, "SELECT pg_terminate_backend($1)", waker)
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", waker) == 0
	}, 5*time.Minute, time.Millisecond)
	change("b")
}

// TestAFailedWakeUpIsOwed: the readers could not be woken after a commit,
// because no connection could be opened. They are woken once one can, although
// nothing was committed since.
func TestAFailedWakeUpIsOwed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).accelerator(t, "card0")
	heard := r.listen(t)

	name := scalar[string](t, r, "SELECT current_database()")
	config, err := pgx.ParseConfig(r.url)
	require.NoError(t, err)
	config.Database = "postgres"
	outside, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer outside.Close(context.WithoutCancel(t.Context()))
	allow := func(yes bool) {
		_, err := outside.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %t", pgx.Identifier{name}.Sanitize(), yes))
		require.NoError(t, err)
	}

	woken := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := heard.conn.WaitForNotification(ctx)
		return err == nil
	}
	// The server sends a wake-up before it calls its session idle, so none can come
	// between the two questions.
	const wakers = "datname = current_database() AND query = 'NOTIFY cyborg_events'"
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND "+wakers) == 1 && !woken()
	}, 5*time.Minute, time.Millisecond, "the wake-ups of the preparation are over")

	allow(false)
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE "+wakers))
	kind := "b"
	_, err = r.UpdateSpecs(t.Context(), card.UUID, cyborg.SpecsPatch{Type: &kind}, 0, alice())
	require.NoError(t, err)
	require.False(t, woken(), "nobody can be woken")

	allow(true)
	heard.next(t)
}

// TestAStoreThatIsClosedHasWokenTheReaders: a command that changes something
// and ends at once leaves no commit untold.
func TestAStoreThatIsClosedHasWokenTheReaders(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).accelerator(t, "card0")

	for round := range 20 {
		heard, command := r.listen(t), openStore(t, r.url, defaults())
		change := func(kind string) {
			_, err := command.UpdateSpecs(t.Context(), card.UUID, cyborg.SpecsPatch{Type: &kind}, 0, alice())
			require.NoError(t, err)
		}

		change("a")
		heard.next(t)
		change("b") // soon after the last wake-up, so that the next one is not due yet
		command.Close()
		for found := 0; found < 2*(round+1); {
			heard.next(t)
			found = scalar[int](t, r, "SELECT count(*) FROM events WHERE axis = 'specs'")
		}
	}
}

// TestReadersFindWhatNobodyTold: events of a writer that wakes nobody, such as
// somebody with psql or a process that died after its commit, are found by the
// look that readers take each second.
func TestReadersFindWhatNobodyTold(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	cursor, wake := r.endOfFeed(t), r.Notify(t.Context())

	// The first may be found because the reader has just begun to listen.
	// Any, while another transaction is open, because readers look more often then.
	for n := range 10 {
		by := fmt.Sprint("hand ", n)
		r.exec(t, "UPDATE deployables SET bitstream_id = $1", by)
		require.Eventually(t, func() bool {
			<-wake
			events, err := r.Events(t.Context(), db.EventFilter{}, cursor, 0)
			return err == nil && len(events) == n+1 && events[n].To == by
		}, 5*time.Minute, time.Millisecond)
	}
}
