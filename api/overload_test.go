package api_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/db"
)

// retryAfter is the answer's Retry-After, which must be a number of seconds
// that a client would wait.
func (r *reply) retryAfter() int {
	r.t.Helper()
	seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
	require.NoError(r.t, err, r.what)
	require.GreaterOrEqual(r.t, seconds, 1, r.what)
	require.LessOrEqual(r.t, seconds, 30, r.what)
	return seconds
}

// While slow operations take every place, further ones are shed. Reads, health
// checks and cancels go on.
func TestSlowOperationsAreShed(t *testing.T) {
	t.Parallel()
	h := setup(t, func(config *api.Config) {
		config.Operate.MaxInFlight, config.Limits.QueueWait, config.Operate.InFlightHold = 2, 50*time.Millisecond, time.Hour
	})

	accelerators := h.host("h1", 4)
	release := h.engine.block()
	defer release()

	provision := func(name string) *reply {
		return h.do("POST", path(accelerators[name], "/ready"), nil, "Prefer", "respond-async")
	}

	first := as[cyborg.Operation](provision("fpga-0").expect(http.StatusAccepted))
	provision("fpga-1").expect(http.StatusAccepted)

	for range 3 {
		refused := provision("fpga-2")
		problem := refused.problem(cyborg.ErrOverloaded)
		require.Contains(t, problem.Hint, "Retry-After")
		refused.retryAfter()
		require.Equal(t, cyborg.LifecycleInactive, h.accelerator(accelerators["fpga-2"].UUID).Lifecycle)
	}

	h.isReady()
	for _, read := range []string{"/healthz", "/v1/accelerators", "/v1/operations", path(accelerators["fpga-2"]), operationPath(first.ID)} {
		h.do("GET", read, nil).expect(http.StatusOK)
	}

	h.do("POST", path(accelerators["fpga-2"], "/maintain"), map[string]any{"reason": "a new fan"}).expect(http.StatusOK)
	h.do("POST", operationPath(first.ID)+"/cancel", nil).expect(http.StatusAccepted)
	h.ended(first.ID)
	require.Eventually(t, func() bool { return provision("fpga-3").status == http.StatusAccepted }, waitLimit, poll)
	require.GreaterOrEqual(t, h.metric("cyborg_requests_shed_total"), 3.0)
}

// slowReads traces the queries of a store. During a flood it holds up the
// statements with the given text until they are released, or for a pause each.
type slowReads struct {
	text    string
	flood   atomic.Bool
	stalled atomic.Int64 // now
	all     atomic.Int64 // so far
	release chan struct{}
	pause   <-chan time.Time
}

const (
	listOfAccelerators = "ORDER BY d.id LIMIT"
	readOfDeployable   = "SELECT d.uuid, d.name, coalesce((d.specs_set"
)

func (s *slowReads) TraceQueryStart(ctx context.Context, _ *pgx.Conn, statement pgx.TraceQueryStartData) context.Context {
	if !s.flood.Load() || !strings.Contains(statement.SQL, s.text) {
		return ctx
	}

	s.all.Add(1)
	s.stalled.Add(1)
	defer s.stalled.Add(-1)

	select {
	case <-s.release:
	case <-s.pause:
	case <-ctx.Done():
	}
	return ctx
}

func (*slowReads) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A flood of slow reads takes its share of the store's connections and no more.
// Reads that find no place are shed, while changes, event streams and health
// checks go on.
func TestSlowReadsAreShed(t *testing.T) {
	t.Parallel()
	slow := &slowReads{text: listOfAccelerators, release: make(chan struct{})}
	h := setupOf(t, db.Options{Tracer: slow}, func(*api.Deps) {}, func(config *api.Config) {
		config.Limits.Connections, config.Limits.QueueWait = 6, 50*time.Millisecond
	})

	accelerator := h.host("h1", 1)["fpga-0"]

	slow.flood.Store(true)

	const flood = 20
	var (
		sent   sync.WaitGroup
		served atomic.Int64
	)

	for range flood {
		sent.Go(func() {
			answer := h.do("GET", "/v1/accelerators", nil)
			if answer.status == http.StatusOK {
				served.Add(1)
				return
			}

			answer.problem(cyborg.ErrOverloaded)
			answer.retryAfter()
		})
	}

	// Reads may still be on their way to the database when the others are shed.
	require.Eventually(t, func() bool {
		return h.metric("cyborg_requests_shed_total") >= flood-3 && slow.stalled.Load() >= 3
	}, waitLimit, poll)
	require.EqualValues(t, 3, slow.stalled.Load(), "half of the connections, and no more")

	h.do("GET", "/healthz", nil).expect(http.StatusOK)
	h.isReady()
	h.do("GET", path(accelerator), nil).problem(cyborg.ErrOverloaded) // single reads share the places of lists

	stream := h.stream("/v1/events?after=0-0")
	_, ok := stream.next()
	require.True(t, ok)
	stream.close()

	h.do("POST", path(accelerator, "/ready"), nil).expect(http.StatusOK)
	h.do("POST", path(accelerator, "/maintain"), map[string]any{"reason": "a new fan"}).expect(http.StatusOK)

	close(slow.release)
	sent.Wait()
	require.EqualValues(t, 3, served.Load())
	h.do("GET", "/v1/accelerators", nil).expect(http.StatusOK)
}

// A request with a service token waits for its turn, because a service such as
// Nova would give up an instance at a refusal. It does not wait for ever.
func TestServiceTokenRequestsWaitInsteadOfBeingShed(t *testing.T) {
	t.Parallel()
	for _, patience := range []time.Duration{2 * time.Second, time.Hour} {
		slow := &slowReads{text: listOfAccelerators, release: make(chan struct{})}
		slow.flood.Store(true)
		h := setupOf(t, db.Options{Tracer: slow}, func(*api.Deps) {}, withTokens, func(config *api.Config) {
			config.Limits.Connections, config.Limits.QueueWait, config.V2.BindTimeout = 6, 50*time.Millisecond, patience
		}).as(adminToken)

		var flood sync.WaitGroup
		for range 3 {
			flood.Go(func() { h.do("GET", "/v1/accelerators", nil).expect(http.StatusOK) })
		}
		require.Eventually(t, func() bool { return slow.stalled.Load() == 3 }, waitLimit, poll)

		const service = "X-Service-Token"
		h.do("GET", requestsPath, nil).fault(http.StatusTooManyRequests)
		h.do("GET", requestsPath, nil, service, memberToken).expect(http.StatusUnauthorized)

		answered := make(chan *reply, 1)
		flood.Go(func() { answered <- h.do("GET", requestsPath, nil, service, adminToken) })
		if patience < waitLimit {
			(<-answered).fault(http.StatusGatewayTimeout)
		}

		h.do("GET", requestsPath, nil).fault(http.StatusTooManyRequests)
		require.Empty(t, answered)

		close(slow.release)
		flood.Wait()

		if patience > waitLimit {
			(<-answered).expect(http.StatusOK)
		}
	}
}

// toProgramNothing is the path of a change that reads a deployable which does
// not exist, and does nothing more.
func toProgramNothing() string { return "/v2/deployables/" + uuid.NewString() + "/program" }

// A bind whose turn at the database comes late is told of the overload in time,
// asks again, and is not given up while it has time left.
func TestBindOutlastsAFullDatabase(t *testing.T) {
	t.Parallel()
	slow := &slowReads{text: readOfDeployable, release: make(chan struct{})}
	h := setupOf(t, db.Options{Tracer: slow}, func(*api.Deps) {}, func(config *api.Config) {
		config.Limits.Connections, config.V2.BindTimeout = 6, time.Hour
	})

	accelerator := h.ready("first")
	arqs := h.requests("one", 1)
	slow.flood.Store(true)

	// Of six connections, changes may use one. This change keeps it.
	var sent sync.WaitGroup
	sent.Go(func() { h.do("PATCH", toProgramNothing(), programPatch).fault(http.StatusNotFound) })
	require.Eventually(t, func() bool { return slow.stalled.Load() == 1 }, waitLimit, poll)

	answered := make(chan *reply, 1)
	sent.Go(func() {
		answered <- h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...))
	})
	require.Eventually(t, func() bool {
		return h.metric("cyborg_requests_shed_total") >= 1 || len(answered) > 0
	}, waitLimit, poll)
	require.Empty(t, answered)

	close(slow.release)
	sent.Wait()
	(<-answered).expect(http.StatusAccepted)
	require.Eventually(t, func() bool {
		return h.do("GET", requestsPath, nil).arqs(http.StatusOK)[0].State == cyborg.ARQBound
	}, waitLimit, poll)
}

// Once the image is loaded, the answer is not refused for overload: the read
// for it waits for its turn.
func TestProgramDeployableIsAnsweredUnderFullLoad(t *testing.T) {
	t.Parallel()
	pauses := time.NewTicker(20 * time.Millisecond)
	defer pauses.Stop()
	slow := &slowReads{text: readOfDeployable, pause: pauses.C}
	h := setupOf(t, db.Options{Tracer: slow}, func(*api.Deps) {}, withTokens, func(config *api.Config) {
		config.Limits.Connections, config.Limits.QueueWait, config.V2.SyncWait = 6, time.Millisecond, waitLimit
	}).as(adminToken)

	accelerator := h.ready("first")
	release := h.engine.block()
	defer release()

	var sent, flood sync.WaitGroup
	sent.Go(func() {
		h.do("PATCH", "/v2/deployables/"+accelerator.UUID.String()+"/program", programPatch).expect(http.StatusOK)
	})
	require.Eventually(t, func() bool { return h.accelerator(accelerator.UUID).Claim != nil }, waitLimit, poll)

	// From here on, changes of services hold the only place for changes, and others
	// wait for it.
	slow.flood.Store(true)
	var over atomic.Bool
	defer over.Store(true)
	for range 4 {
		flood.Go(func() {
			for !over.Load() {
				h.do("PATCH", toProgramNothing(), programPatch, "X-Service-Token", adminToken).fault(http.StatusNotFound)
			}
		})
	}
	require.Eventually(t, func() bool { return slow.all.Load() > 8 }, waitLimit, poll)

	release()
	sent.Wait()
	over.Store(true)
	flood.Wait()
}

// A caller with many requests that wait delays the request of another one by one
// turn, and not until its own are done.
func TestCallersTakeTurnsAtTheDatabase(t *testing.T) {
	t.Parallel()
	const flood = 60
	slow := &slowReads{text: listOfAccelerators, release: make(chan struct{})}
	h := setupOf(t, db.Options{Tracer: slow}, func(*api.Deps) {}, withTokens, func(config *api.Config) {
		config.Limits.Connections, config.Limits.QueueWait = 2, time.Hour
	})

	accelerator := h.as(adminToken).host("h1", 1)["fpga-0"]
	slow.flood.Store(true)

	var sent sync.WaitGroup
	for range flood {
		sent.Go(func() { h.as(readerToken).do("GET", "/v1/accelerators", nil).expect(http.StatusOK) })
	}
	waiting := func() float64 { return h.metric(`cyborg_requests_waiting`) }
	require.Eventually(t, func() bool { return waiting() == flood-1 }, waitLimit, poll)

	answered := make(chan struct{})
	sent.Go(func() {
		defer close(answered)
		h.as(memberToken).do("GET", path(accelerator), nil).expect(http.StatusOK)
	})
	require.Eventually(t, func() bool { return waiting() == flood }, waitLimit, poll)

	// One of the flood was ahead in turn, and one has its turn when the other caller
	// has had its own.
	for turn := range 2 {
		slow.release <- struct{}{}
		require.Eventually(t, func() bool { return slow.all.Load() == int64(turn)+2 }, waitLimit, poll)
	}
	require.Equal(t, flood-3, int(waiting()), "the other caller waits no longer")
	<-answered

	close(slow.release)
	sent.Wait()
	require.Zero(t, waiting())
}
