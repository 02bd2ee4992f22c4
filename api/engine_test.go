package api_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// engine runs operations in this process, straight on the store. It makes their
// first and last step, and nothing happens on any host.
type engine struct {
	t     testing.TB
	store *db.Store
	work  sync.WaitGroup

	mu        sync.Mutex
	away      bool
	refuse    bool              // Start fails though Ping does not
	hold      chan struct{}     // while set, operations wait for its closing before they end
	fail      *cyborg.Error     // with which operations end
	result    cyborg.JSONObject // with which they succeed
	loads     string            // the id of the image that they load
	progress  *cyborg.Progress
	divisions int64 // how many devices it has divided
	census    func(hosts, deployables []string) (cyborg.Census, error)
	runs      map[uuid.UUID]*run
}

// run is an operation that the engine has started.
type run struct {
	ended    chan struct{}
	canceled chan struct{}
	cancel   func()
}

// Wait returns when the run has ended.
func (r *run) Wait(ctx context.Context) error {
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return cyborg.Errorf(cyborg.ErrTimeout, "not yet: %w", ctx.Err())
	}
}

func newEngine(t testing.TB, store *db.Store) *engine {
	t.Helper()
	return &engine{t: t, store: store, runs: map[uuid.UUID]*run{}}
}

// set changes how the engine behaves from now on.
func (e *engine) set(change func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

// block makes operations wait before they end, until the returned function is
// called.
func (e *engine) block() (release func()) {
	hold := make(chan struct{})
	e.set(func(e *engine) { e.hold = hold })
	return sync.OnceFunc(func() {
		e.set(func(e *engine) { e.hold = nil })
		close(hold)
	})
}

func (e *engine) Start(ctx context.Context, op cyborg.Operation) (workflows.Run, error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.away || e.refuse {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "connection refused at 10.0.0.7")
	}

	if r, ok := e.runs[op.ID]; ok {
		return r, nil
	}

	r := &run{ended: make(chan struct{}), canceled: make(chan struct{})}
	r.cancel = sync.OnceFunc(func() { close(r.canceled) })
	e.runs[op.ID] = r
	hold, fail, result, loads := e.hold, e.fail, e.result, e.loads
	ctx = db.WithTurn(context.WithoutCancel(ctx), nil) // a worker is no caller of the interface

	e.work.Go(func() {
		defer close(r.ended)
		e.operate(ctx, op, r, hold, fail, result, loads)
	})

	return r, nil
}

// operate begins the operation, waits while it is held up, and ends it with
// success or as told.
func (e *engine) operate(ctx context.Context, op cyborg.Operation, r *run, hold <-chan struct{}, fail *cyborg.Error, result cyborg.JSONObject, loads string) {
	outcome := cyborg.Outcome{Operation: op.ID, State: cyborg.OperationSucceeded, Result: result, BitstreamID: loads, Steps: []cyborg.Step{
		{Name: "work", State: cyborg.StepDone, At: time.Now()},
	}}

	end := func(state cyborg.OperationState, err *cyborg.Error) {
		outcome.State, outcome.Error, outcome.Result = state, err, nil
		outcome.Steps[0].State = cyborg.StepFailed
	}

	work, err := e.store.Begin(ctx, db.Run{Operation: op.ID, ID: "run"})
	switch {
	case err != nil && cyborg.ErrorKindOf(err) == cyborg.ErrCancelled:
		end(cyborg.OperationCancelled, cyborg.AsError(err))
	case err != nil:
		end(cyborg.OperationFailed, cyborg.AsError(err))
	case work.Ended != "":
		return
	}

	if err == nil && hold != nil {
		select {
		case <-hold:
		case <-r.canceled:
			end(cyborg.OperationCancelled, cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled"))
		}
	}

	if fail != nil && outcome.State == cyborg.OperationSucceeded {
		end(cyborg.OperationFailed, fail)
	}

	if work.Partition != nil && outcome.State == cyborg.OperationSucceeded {
		outcome.Observations = []cyborg.Observation{e.divide(work.Partition)}
	}

	if err := e.store.End(ctx, db.Run{Operation: outcome.Operation, ID: "run"}, outcome); err != nil {
		e.t.Errorf("operation %s (%s) cannot end: %v", op.ID, op.Kind, err)
	}
}

// divide divides a device, and returns what its host sees of it then.
func (e *engine) divide(work *cyborg.PartitionWork) cyborg.Observation {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.divisions++
	return cyborg.Observation{Sequence: 1 + e.divisions, Backend: work.Device.Backend, Device: divided(work.Layout)}
}

func (e *engine) Cancel(ctx context.Context, op cyborg.Operation) error {
	e.mu.Lock()
	r, away := e.runs[op.ID], e.away
	e.mu.Unlock()

	if away {
		return cyborg.Errorf(cyborg.ErrUnavailable, "connection refused at 10.0.0.7")
	}

	if r == nil {
		_, err := e.Start(ctx, op)
		return err
	}

	r.cancel()
	return nil
}

func (e *engine) Progress(context.Context, cyborg.Operation) (*cyborg.Progress, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.progress, nil
}

func (e *engine) Census(_ context.Context, hosts, deployables []string, _ time.Duration) (cyborg.Census, error) {
	e.mu.Lock()
	census := e.census
	e.mu.Unlock()
	return census(hosts, deployables)
}

func (e *engine) Discover(context.Context, string, time.Duration) (workflows.DiscoverResult, error) {
	return workflows.DiscoverResult{Sequence: 7, Generation: 3, Devices: map[string]int{"fake": 2}}, nil
}

func (e *engine) PreviewWhitelist(_ context.Context, host string, work cyborg.WhitelistWork, _ time.Duration) (cyborg.WhitelistPreview, error) {
	preview := cyborg.WhitelistPreview{Host: host, File: "/etc/nova/nova.conf.d/cyborg-pci.conf", Changed: true, Notes: []string{"restart"}}
	for _, entry := range work.Entries {
		preview.Diff += "+" + entry.Target.Deployable + "\n"
	}
	return preview, nil
}

func (e *engine) Ping(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.away {
		return cyborg.Errorf(cyborg.ErrUnavailable, "connection refused at 10.0.0.7")
	}
	return nil
}
