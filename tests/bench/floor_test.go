package bench_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// The task queues of floor workflows and of their step, and the names of the
// activities.
const (
	floorQueue = "floor"
	floorHost  = "floor-host"
	commitName = "commit"
	stepName   = "step"
)

// floorEngine does what no operation can do without: a request, a commit before
// the workflow starts, one before its step and one at its end, and a synced note
// of the host before and after the step. It decides, locks, reads and checks
// nothing. What it takes more than the bare workflow is the floor of the REST
// call.
type floorEngine struct {
	*bareEngine

	pool *pgxpool.Pool
	api  *httptest.Server
	note *os.File

	mu      sync.Mutex
	waiting map[string]chan struct{} // by the ID of the workflow
}

// newFloorEngine starts the workers and the API, on the Temporal and the
// database of a standalone.
func newFloorEngine(b *testing.B, s *harness.Standalone) *floorEngine {
	b.Helper()
	address, err := s.DatabaseURL()
	require.NoError(b, err)
	e := &floorEngine{
		bareEngine: &bareEngine{client: dialTemporal(b, s.Temporal, s.Certificates(b))}, waiting: map[string]chan struct{}{},
	}
	e.pool, err = pgxpool.New(b.Context(), address)
	require.NoError(b, err)
	_, err = e.pool.Exec(b.Context(), "CREATE TABLE floor (id text, said timestamptz DEFAULT now())")
	require.NoError(b, err)
	e.note, err = os.Create(filepath.Join(b.TempDir(), "note"))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.note.Close()) })

	conductor := worker.New(e.client, floorQueue, worker.Options{})
	conductor.RegisterWorkflow(floor)
	conductor.RegisterActivityWithOptions(e.commit, activity.RegisterOptions{Name: commitName})
	host := worker.New(e.client, floorHost, worker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1})
	host.RegisterActivityWithOptions(e.step, activity.RegisterOptions{Name: stepName})

	e.workers = []worker.Worker{conductor, host}
	for _, w := range e.workers {
		require.NoError(b, w.Start())
	}

	e.api = httptest.NewServer(http.HandlerFunc(e.serve))
	return e
}

// close stops the API and the workers.
func (e *floorEngine) close() {
	e.api.Close()
	e.bareEngine.close()
	e.pool.Close()
}

// floor is the workflow of a floorEngine.
func floor(ctx workflow.Context) error {
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	step := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{TaskQueue: floorHost, StartToCloseTimeout: time.Minute})

	if err := workflow.ExecuteLocalActivity(local, commitName, false).Get(ctx, nil); err != nil {
		return err
	}

	if err := workflow.ExecuteActivity(step, stepName).Get(ctx, nil); err != nil {
		return err
	}

	return workflow.ExecuteLocalActivity(local, commitName, true).Get(ctx, nil)
}

// commit commits a row, and answers the request if it is the last.
func (e *floorEngine) commit(ctx context.Context, last bool) error {
	id := activity.GetInfo(ctx).WorkflowExecution.ID
	if err := e.write(ctx, id); err != nil || !last {
		return err
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.waiting[id])
	delete(e.waiting, id)
	return nil
}

// write commits a row.
func (e *floorEngine) write(ctx context.Context, id string) error {
	_, err := e.pool.Exec(ctx, "INSERT INTO floor (id) VALUES ($1)", id)
	return err
}

// step notes that it begins, and that it has ended.
func (e *floorEngine) step(context.Context) error {
	for range 2 {
		if _, err := e.note.Write(make([]byte, 256)); err != nil {
			return err
		}
		if err := e.note.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// serve answers when the workflow has made its last commit.
func (e *floorEngine) serve(w http.ResponseWriter, r *http.Request) {
	id, done := "floor/"+uuid.NewString(), make(chan struct{})
	e.mu.Lock()
	e.waiting[id] = done
	e.mu.Unlock()

	err := e.write(r.Context(), id)
	if err == nil {
		_, err = e.client.ExecuteWorkflow(r.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: floorQueue, EnableEagerStart: true}, floor)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	select {
	case <-done:
	case <-r.Context().Done(): // the client has gone; its workflow has failed
	}
}

// run sends one request, and waits for its answer.
func (e *floorEngine) run(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.api.URL, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := e.api.Client().Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
