package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// counter counts the statements of a store.
type counter struct{ statements atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	c.statements.Add(int64(data.Batch.Len()))
	return ctx
}

func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// since returns the number of statements since the last call.
func (c *counter) since(before *int64) int64 {
	now := c.statements.Load()
	n := now - *before
	*before = now
	return n
}

// startIngester runs an ingester until the test ends.
func startIngester(t *testing.T, store *db.Store, opts db.IngesterOptions) *db.Ingester {
	t.Helper()
	ingester := db.NewIngester(store, opts, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- ingester.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return ingester
}

// TestUnchangedHostsCostNoStatement: the heartbeats of a thousand hosts take
// one statement, and their reports hardly more than those of one host.
func TestUnchangedHostsCostNoStatement(t *testing.T) {
	t.Parallel()
	const hosts = 1000
	count := &counter{}
	r := newRecordsWith(t, db.Options{Tracer: count})

	agents := make([]*host, hosts)
	batch := make([]agentapi.Report, hosts)
	for i := range agents {
		name := fmt.Sprintf("h%04d", i)
		agents[i] = &host{records: r, name: name, boot: "b", content: content(1)}
		batch[i] = agents[i].next()
	}

	before := count.statements.Load()
	replies, err := r.MergeReports(t.Context(), batch)
	require.NoError(t, err)
	first := count.since(&before)
	require.Less(t, first, int64(25), "a thousand new hosts cost what one costs")

	for i, h := range agents {
		require.True(t, replies[i].Accepted)
		h.reply = replies[i]
	}

	ingester := startIngester(t, r.Store, db.IngesterOptions{FlushInterval: time.Hour, BatchSize: hosts})
	var wg sync.WaitGroup
	for _, h := range agents {
		wg.Go(func() {
			reply, err := ingester.Heartbeat(t.Context(), h.beat())
			if err != nil || reply.Report {
				t.Error(reply, err)
			}
		})
	}

	wg.Wait()
	require.EqualValues(t, 1, count.since(&before), "a full batch does not wait for the interval")

	for i, h := range agents {
		batch[i] = h.next()
	}
	_, err = r.MergeReports(t.Context(), batch)
	require.NoError(t, err)
	require.Less(t, count.since(&before), int64(9), "reports that say nothing new")
}

// TestUnchangedHostsCostTheSameAtAnySize: a host where nothing has changed
// costs no statement of its own, however many devices it has, because one
// statement writes the signs of life of all hosts. A full report without
// changes costs the same whatever is in it.
func TestUnchangedHostsCostTheSameAtAnySize(t *testing.T) {
	t.Parallel()
	count := &counter{}
	r := newRecordsWith(t, db.Options{Tracer: count})

	var (
		agents []*host
		beats  []agentapi.Heartbeat
	)
	for _, devices := range []int{1, 16, 512} {
		h := r.addHost(t, fmt.Sprintf("h%d", devices), devices)
		agents, beats = append(agents, h), append(beats, h.beat())
	}

	before := count.statements.Load()
	for n := range agents {
		replies, err := r.RecordHeartbeats(t.Context(), beats[:n+1])
		require.NoError(t, err)
		require.EqualValues(t, 1, count.since(&before), "one for all, and none for one more")
		for _, reply := range replies {
			require.False(t, reply.Report)
		}
	}

	var whole []int64
	for _, h := range agents {
		replies, err := r.MergeReports(t.Context(), []agentapi.Report{h.next()})
		require.NoError(t, err)
		require.True(t, replies[0].Accepted)
		whole = append(whole, count.since(&before))
	}

	require.Equal(t, []int64{whole[0], whole[0], whole[0]}, whole)
}

// TestIngesterBatchesCallers: heartbeats that come together are written
// together, and so are the reports that come after the first. There is at most
// one write in each interval, and how many intervals pass depends on how long
// the callers take to come.
func TestIngesterBatchesCallers(t *testing.T) {
	t.Parallel()
	const interval = 300 * time.Millisecond
	count := &counter{}
	r := newRecordsWith(t, db.Options{Tracer: count})
	ingester := startIngester(t, r.Store, db.IngesterOptions{FlushInterval: interval})

	var wg sync.WaitGroup
	agents := make([]*host, 50)
	began := time.Now()
	for i := range agents {
		name := fmt.Sprintf("h%d", i)
		agents[i] = &host{records: r, name: name, boot: "b", content: content(1)}
		wg.Go(func() {
			reply, err := ingester.Report(t.Context(), agents[i].next())
			if err != nil || !reply.Accepted {
				t.Error(reply, err)
			}
			agents[i].reply = reply
		})
	}
	wg.Wait()

	intervals := int(time.Since(began) / interval)
	hosts, err := r.Hosts(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Len(t, hosts, 50)
	// Each transaction's events carry its number. The first report does not wait.
	require.LessOrEqual(t, scalar[int](t, r, "SELECT count(DISTINCT transaction) FROM events"), 1+intervals)

	before := count.statements.Load()
	began = time.Now()
	for _, h := range agents {
		wg.Go(func() {
			if reply, err := ingester.Heartbeat(t.Context(), h.beat()); err != nil || reply.Report {
				t.Error(reply, err)
			}
		})
	}

	wg.Wait()
	intervals = int(time.Since(began) / interval)
	require.LessOrEqual(t, count.since(&before), int64(intervals))
}

// TestFewReportsOfManyDevices: reports of many devices are recorded a few at a
// time, because together they would hold the locks of their hosts for long.
func TestFewReportsOfManyDevices(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var mu sync.Mutex
	var batches []int
	ingester := startIngester(t, r.Store, db.IngesterOptions{FlushInterval: 50 * time.Millisecond, Flushed: func(_ string, batch int, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, batch)
	}})

	const hosts, devices, together = 9, 400, 3 // the third report makes it 1,200 devices
	var wg sync.WaitGroup
	for i := range hosts {
		h := &host{records: r, name: fmt.Sprintf("h%d", i), boot: "b", content: content(devices)}
		wg.Go(func() {
			reply, err := ingester.Report(t.Context(), h.next())
			for cyborg.ErrorKindOf(err) == cyborg.ErrTimeout { // the machine is very busy; an agent would send it again, too
				reply, err = ingester.Report(t.Context(), h.next())
			}
			if err != nil || !reply.Accepted {
				t.Error(reply, err)
			}
		})
	}

	wg.Wait()
	mu.Lock()
	defer mu.Unlock()

	recorded := 0
	for _, batch := range batches {
		require.LessOrEqual(t, batch, together, "%v", batches)
		recorded += batch
	}
	require.GreaterOrEqual(t, recorded, hosts)
}

// TestLoneReportDoesNotWait: a report that comes alone is recorded at once, not
// after the interval.
func TestLoneReportDoesNotWait(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	ingester := startIngester(t, r.Store, db.IngesterOptions{FlushInterval: time.Hour})
	h := &host{records: r, name: "h1", boot: "b", content: content(1)}
	reply, err := ingester.Report(t.Context(), h.next())
	require.NoError(t, err)
	require.True(t, reply.Accepted)
}

// TestIngesterGivesEachCallerItsOwnError: callers in one batch do not get each
// other's errors.
func TestIngesterGivesEachCallerItsOwnError(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	ingester := startIngester(t, r.Store, db.IngesterOptions{FlushInterval: 200 * time.Millisecond})

	fine := &host{records: r, name: "fine", boot: "b", content: content(1)}
	bad := fine.next()
	bad.Host = ""

	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if _, err := ingester.Report(t.Context(), bad); cyborg.ErrorKindOf(err) != cyborg.ErrInvalid {
				t.Error(err)
			}
		})
	}

	report := fine.next()
	wg.Go(func() {
		if reply, err := ingester.Report(t.Context(), report); err != nil || !reply.Accepted {
			t.Error(reply, err)
		}
	})
	wg.Wait()
}

// TestIngesterIsBounded: a full queue refuses further callers, and no caller
// waits for ever when the ingester stops.
func TestIngesterIsBounded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 0)
	idle := db.NewIngester(r.Store, db.IngesterOptions{QueueSize: 1}, slog.New(slog.DiscardHandler))

	// The ingester does not run, so one of these fills the queue and waits.
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() {
			_, err := idle.Heartbeat(t.Context(), h.beat())
			errs <- err
		}()
	}
	requireKind(t, cyborg.ErrOverloaded, <-errs)

	// A caller that waits when the ingester stops gets an error.
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, idle.Run(stopped))
	require.ErrorContains(t, <-errs, "stops")
	_, err := idle.Report(t.Context(), h.next())
	requireKind(t, cyborg.ErrUnavailable, err, "stops")
}
