package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// The task queues of bare workflows and of their step, and the step's name.
const (
	bareQueue = "bench"
	bareHost  = "bench-host"
	nothing   = "nothing"
)

// bare is the smallest possible operation: a local activity, a step on the
// queue of a host, and another local activity.
func bare(ctx workflow.Context) error {
	local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	step := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{TaskQueue: bareHost, StartToCloseTimeout: time.Minute})

	if err := workflow.ExecuteLocalActivity(local, doNothing).Get(ctx, nil); err != nil {
		return err
	}

	if err := workflow.ExecuteActivity(step, nothing).Get(ctx, nil); err != nil {
		return err
	}

	return workflow.ExecuteLocalActivity(local, doNothing).Get(ctx, nil)
}

// doNothing is the activity of bare workflows.
func doNothing(context.Context) error { return nil }

// bareEngine runs bare workflows on the Temporal of a standalone, with workers
// in this process.
type bareEngine struct {
	client  client.Client
	workers []worker.Worker
}

// newBareEngine starts the workers.
func newBareEngine(b *testing.B, address string, certificates *harness.Certificates) *bareEngine {
	b.Helper()
	c := dialTemporal(b, address, certificates)
	conductor := worker.New(c, bareQueue, worker.Options{})
	conductor.RegisterWorkflow(bare)
	host := worker.New(c, bareHost, worker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1})
	host.RegisterActivityWithOptions(doNothing, activity.RegisterOptions{Name: nothing})

	e := &bareEngine{client: c, workers: []worker.Worker{conductor, host}}
	for _, w := range e.workers {
		require.NoError(b, w.Start())
	}

	return e
}

// dialTemporal connects as our own server does.
func dialTemporal(b *testing.B, address string, certificates *harness.Certificates) client.Client {
	b.Helper()
	c, err := client.Dial(client.Options{
		HostPort: address, Namespace: "cyborg", Logger: quiet{},
		ConnectionOptions: client.ConnectionOptions{ // as our own client
			TLS: certificates.Client(b, identity.Server, "bench"), GrpcCompression: &client.GrpcCompressionNone{},
		},
	})
	require.NoError(b, err)
	return c
}

// close stops the workers.
func (e *bareEngine) close() {
	for _, w := range e.workers {
		w.Stop()
	}
	e.client.Close()
}

// run runs one bare workflow, and waits for its end.
func (e *bareEngine) run(ctx context.Context) error {
	run, err := e.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: "bare/" + uuid.NewString(), TaskQueue: bareQueue, EnableEagerStart: true,
	}, bare)
	if err != nil {
		return err
	}

	return run.Get(ctx, nil)
}

// BenchmarkBareWorkflow runs bare workflows on the Temporal of a standalone. It
// measures the cost of Temporal alone.
func BenchmarkBareWorkflow(b *testing.B) {
	s := harness.Start(b, harness.Options{})
	engine := newBareEngine(b, s.Temporal, s.Certificates(b))
	defer engine.close()

	concurrency(b, func(b *testing.B, clients int) {
		b.Helper()
		var took samples

		b.ResetTimer()
		share(b, clients, b.N, func(int) error {
			return took.measure(func() error { return engine.run(b.Context()) })
		})
		b.StopTimer()
		took.report(b, "")
	})
}

// quiet is a logger that discards everything.
type quiet struct{}

var _ log.Logger = quiet{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
