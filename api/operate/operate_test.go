package operate_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// world is a store with one operation, and a Temporal.
type world struct {
	leave     context.CancelFunc // makes the caller go away
	operation cyborg.Operation
	admitted  int
	startFail error
	started   int
	cancelled int
	reads     int
	run       workflows.Run // of the operation
}

// alive calls leave, and returns how the context is afterwards.
func (w *world) alive(ctx context.Context) error {
	if w.leave != nil {
		w.leave()
	}
	return ctx.Err()
}

func (w *world) AdmittedBefore(context.Context, db.Admission) (db.Admitted, error) {
	return db.Admitted{}, nil
}

func (w *world) Admit(ctx context.Context, a db.Admission) (db.Admitted, error) {
	if err := w.alive(ctx); err != nil {
		return db.Admitted{}, err
	}
	w.admitted++
	w.operation = cyborg.Operation{ID: a.ID, Kind: a.Request.Kind(), State: cyborg.OperationAdmitted}
	return db.Admitted{Operation: w.operation}, nil
}

func (w *world) Operation(context.Context, uuid.UUID) (cyborg.Operation, error) {
	w.reads++
	return w.operation, nil
}

func (w *world) RequestCancel(ctx context.Context, id uuid.UUID, _ cyborg.Actor) (cyborg.Operation, error) {
	return cyborg.Operation{ID: id}, w.alive(ctx)
}

func (*world) Notify(context.Context) <-chan struct{} { return nil }

func (w *world) Start(ctx context.Context, _ cyborg.Operation) (workflows.Run, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.startFail != nil {
		return nil, w.startFail
	}
	w.started++
	return w.run, nil
}

func (w *world) Cancel(ctx context.Context, _ cyborg.Operation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.cancelled++
	return nil
}

func (*world) Ping(context.Context) error { return nil }

// endless is a run that goes on until nobody waits any more. It is closed when
// somebody waits.
type endless chan struct{}

func (e endless) Wait(ctx context.Context) error {
	close(e)
	<-ctx.Done()
	return ctx.Err()
}

// runner returns a runner in this world.
func (w *world) runner(t *testing.T, config operate.Config) *operate.Runner {
	t.Helper()
	registry := prometheus.NewRegistry()
	limits, err := limiter.New(limiter.Config{QueueWait: 30 * time.Second}, registry)
	require.NoError(t, err)
	r, err := operate.New(config, w, w, limits, registry, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return r
}

// request is one that does not wait for its operation.
func request() operate.Request {
	return operate.Request{Admission: db.Admission{Request: cyborg.AttachRequest{Accelerator: uuid.New()}}}
}

// TestACallerLeavesDuringTheAdmission: nobody can tell whether the operation
// was recorded before its caller left, so it is recorded, and it is started at
// once, not only when Reconcile finds it.
func TestACallerLeavesDuringTheAdmission(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	w := &world{leave: leave}
	_, err := w.runner(t, operate.Config{}).Do(ctx, request())
	require.NoError(t, err)
	require.Equal(t, 1, w.admitted)
	require.Equal(t, 1, w.started)
}

// TestACallerLeavesDuringACancel: a cancel that is recorded also reaches the
// run.
func TestACallerLeavesDuringACancel(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	w := &world{leave: leave}
	_, err := w.runner(t, operate.Config{}).Cancel(ctx, uuid.New(), cyborg.Actor{})
	require.NoError(t, err)
	require.Equal(t, 1, w.cancelled)
}

// TestAStartThatFailsIsTold: an operation that is recorded and not started is no
// error, and is not waited for: Reconcile starts it when Temporal is back.
func TestAStartThatFailsIsTold(t *testing.T) {
	t.Parallel()
	w := &world{startFail: errors.New("busy")}
	outcome, err := w.runner(t, operate.Config{}).Do(t.Context(), request())
	require.NoError(t, err)
	require.Equal(t, operate.StartPending, outcome.Result)
	require.Equal(t, w.operation, outcome.Operation)
	require.Zero(t, w.reads)
}

// TestALongOperationGivesItsPlaceBack: an operation that waits for hardware
// costs this process nothing, so it does not keep its place in flight for ever.
func TestALongOperationGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	run := make(endless)
	w := &world{run: run}
	r := w.runner(t, operate.Config{MaxInFlight: 1, InFlightHold: time.Millisecond})
	slow := request()
	slow.Wait = time.Hour

	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = r.Do(ctx, slow) // it ends when its caller leaves
	}()

	<-run
	release, err := r.TakePlace(t.Context())
	require.NoError(t, err)
	release()
	leave()
	<-done
}
