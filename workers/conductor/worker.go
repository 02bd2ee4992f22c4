// Package conductor serves the conductor's queue: the workflows and the activities that touch the records. It also
// keeps the schedules and is the API's door to Temporal. It never imports a driver or an agent's package.
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

// registry is where workflows and activities are registered: a worker, or a test's environment or replayer.
type registry interface {
	RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions)
}

// RegisterWorkflows registers every workflow under its name.
func RegisterWorkflows(r registry) {
	for name, w := range map[string]any{
		workflows.ProvisionWorkflow: workflows.Provision,
		workflows.ProgramWorkflow:   workflows.Program,
		workflows.AttachWorkflow:    workflows.Attach,
		workflows.DetachWorkflow:    workflows.Detach,
		workflows.ConfigureWorkflow: workflows.Configure,
		workflows.ReconcileWorkflow: workflows.Reconcile,
		workflows.CensusWorkflow:    workflows.Census,
		workflows.DiscoverWorkflow:  workflows.Discover,
	} {
		r.RegisterWorkflowWithOptions(w, workflow.RegisterOptions{Name: name})
	}
}

// NewWorker returns a worker of the conductor's queue on the given client. The API runs one on the client with which it
// starts operations, so that they start in the same process.
func NewWorker(c client.Client, acts *activities.Activities, identity string) worker.Worker {
	w := worker.New(c, workflows.ConductorQueue, worker.Options{
		Identity:                   identity,
		WorkerStopTimeout:          20 * time.Second,
		WorkflowTaskPollerBehavior: worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{}),
		ActivityTaskPollerBehavior: worker.NewPollerBehaviorAutoscaling(worker.PollerBehaviorAutoscalingOptions{}),
	})
	RegisterWorkflows(w)
	for name, a := range acts.All() {
		w.RegisterActivityWithOptions(a, activity.RegisterOptions{Name: name})
	}
	return w
}

// Serve runs the worker until ctx ends, then lets what is running come to a good place. Temporal may be away when it
// starts: it keeps trying.
func Serve(ctx context.Context, w worker.Worker, log *slog.Logger) error {
	wait := 500 * time.Millisecond
	for {
		err := w.Start()
		if err == nil {
			break
		}
		log.WarnContext(ctx, "conductor worker cannot start yet", slog.String("error", err.Error()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			wait = min(2*wait, 10*time.Second)
		}
	}
	<-ctx.Done()
	w.Stop()
	return nil
}

// Identity names a worker process as Temporal's UI shows it.
func Identity(role, host, version string, pid int) string {
	return fmt.Sprintf("%s@%s/%s/%d", role, host, version, pid)
}
