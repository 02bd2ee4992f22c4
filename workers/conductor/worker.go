// Package conductor serves the conductor's queue: the workflows, and the
// activities that touch the records. It also keeps the schedules. It never
// imports a driver or an agent's package.
package conductor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// registry is where workflows are registered: a worker, or a test's environment
// or replayer.
type registry interface {
	RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions)
}

// RegisterWorkflows registers every workflow under its name.
func RegisterWorkflows(r registry) {
	register := func(name string, w any) { r.RegisterWorkflowWithOptions(w, workflow.RegisterOptions{Name: name}) }

	for _, w := range workflows.OperationWorkflows() {
		register(w.Name, w.Run)
	}

	register(workflows.ReconcileWorkflow, workflows.Reconcile)
	register(workflows.SettleHostWorkflow, workflows.SettleHost)
	register(workflows.CensusWorkflow, workflows.Census)
	register(workflows.DiscoverWorkflow, workflows.Discover)
	register(workflows.PreviewWhitelistWorkflow, workflows.PreviewWhitelist)
	register(workflows.PlacementSyncWorkflow, workflows.PlacementSync)
}

// newWorker returns a worker of the conductor's queue, and the channel of its
// fatal error as workerOf does.
func newWorker(c client.Client, acts *activities.Activities, identity string) (worker.Worker, <-chan error) {
	w, fatal := workerOf(c, workflows.ConductorQueue, acts.All(), worker.Options{
		Identity:                   identity,
		WorkerStopTimeout:          20 * time.Second,
		WorkflowTaskPollerBehavior: worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{}),
		ActivityTaskPollerBehavior: worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{}),
	})
	RegisterWorkflows(w)
	return w, fatal
}

// workerOf returns a worker of a queue that serves these activities. The
// channel gets the first error after which the worker cannot go on; the worker
// must then be stopped.
func workerOf(c client.Client, queue string, acts map[string]any, options worker.Options) (worker.Worker, <-chan error) {
	fatal := make(chan error, 1)
	options.OnFatalError = func(err error) {
		select {
		case fatal <- err:
		default:
		}
	}

	options.Interceptors = interceptors()
	w := worker.New(c, queue, options)

	for name, a := range acts {
		w.RegisterActivityWithOptions(a, activity.RegisterOptions{Name: name})
	}

	return w, fatal
}

// The pauses between two attempts to start a worker double from the first to
// the last.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Serve runs a worker of the conductor's queue until ctx ends, and then gives
// running activities 20 s to end. Temporal may be away at the start, or not
// know the namespace yet, so Serve keeps trying. It does so with a new worker
// each time, because Temporal's SDK cannot start a worker again whose start
// failed.
//
// The API runs a worker, too, on the client with which it starts operations:
// their runs can then start in the same process.
func Serve(ctx context.Context, c client.Client, acts *activities.Activities, identity string, log *slog.Logger) error {
	return serve(ctx, func() (worker.Worker, <-chan error) { return newWorker(c, acts, identity) }, log)
}

// serve runs workers, one after the other, until ctx ends. It returns nil then.
func serve(ctx context.Context, newWorker func() (worker.Worker, <-chan error), log *slog.Logger) error {
	pause := firstPause

	for {
		w, fatal := newWorker()
		err := w.Start()
		if err == nil {
			pause = firstPause

			select {
			case <-ctx.Done():
				w.Stop()
				return nil
			case err = <-fatal:
				w.Stop()
			}
		}

		log.WarnContext(ctx, "the conductor's worker cannot work yet; it keeps trying", slog.String("error", err.Error()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}

// Identity returns the name of a process in Temporal's UI.
func Identity(role, host, version, instance string) string {
	return fmt.Sprintf("%s@%s/%s/%s", role, host, version, instance)
}
