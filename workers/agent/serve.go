package agent

import (
	"context"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// pingTimeout limits one try to reach Temporal.
	pingTimeout = 5 * time.Second
	// leaveTimeout is how long a stopping worker may take to say goodbye to
	// Temporal while no step runs.
	leaveTimeout = time.Second
	// firstRetryPause and lastRetryPause limit the pause between two tries to reach
	// Temporal.
	firstRetryPause = 500 * time.Millisecond
	lastRetryPause  = 15 * time.Second
)

// serve takes steps from Temporal until the context ends, however often
// Temporal is away, and returns when the steps that run then have ended. It
// takes steps only while the conductor approves this agent. Serving is closed
// when the first worker runs.
func (a *Agent) serve(
	ctx context.Context, activities *activity.Activities, approval *approval, bootID string, serving chan<- struct{},
) {
	pause, away := firstRetryPause, false

	for ctx.Err() == nil {
		verdict, changed := approval.get()
		// Without approval the steps on the queue are for the host's other agent.
		if verdict != granted {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}

		err := a.pingTemporal(ctx)

		// A worker can be started only once, so each try makes a new one.
		var fatal <-chan error
		var w worker.Worker
		if err == nil {
			w, fatal = a.newWorker(activities, bootID)
			err = w.Start()
		}

		if err == nil {
			if serving != nil {
				close(serving)
				serving = nil
			}

			a.log.InfoContext(ctx, "taking steps from Temporal", "task_queue", workflows.AgentQueue(a.config.Host))
			pause, away = firstRetryPause, false

			select {
			case <-ctx.Done():
				stopWorker(w, activities)
				return
			case <-changed:
				stopWorker(w, activities)
				a.log.InfoContext(ctx, "taking no more steps from Temporal")
				continue
			case err = <-fatal:
				w.Stop()
			}
		}

		// Only the first failure is logged: Temporal may be away for hours.
		if !away && ctx.Err() == nil {
			a.log.WarnContext(ctx, "Temporal does not answer; the agent keeps trying", "error", err)
			away = true
		}

		_ = clock.Sleep(ctx, spread(pause)) // the loop looks at ctx again
		pause = min(2*pause, lastRetryPause)
	}
}

// stopWorker stops taking steps and waits for those that run. A worker says
// goodbye to Temporal first, and tries that for ten seconds if Temporal is
// away; stopWorker does not wait for that once no step runs.
func stopWorker(w worker.Worker, activities *activity.Activities) {
	stopped := make(chan struct{})
	go func() {
		w.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		return
	case <-time.After(leaveTimeout):
	}

	look := time.NewTicker(leaveTimeout / 10)
	defer look.Stop()
	for activities.Running() > 0 { // at the latest, Stop returns when WorkerStopTimeout is over
		select {
		case <-stopped:
			return
		case <-look.C:
		}
	}
}

// pingTemporal returns nil where Temporal answers. Starting a worker asks the
// same, but cannot be interrupted.
func (a *Agent) pingTemporal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	_, err := a.deps.Temporal.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

// newWorker makes a worker for the host's queue, and the channel of its fatal
// errors. The worker runs no workflows; one poller is enough for the steps of
// one host.
func (a *Agent) newWorker(activities *activity.Activities, bootID string) (worker.Worker, <-chan error) {
	fatal := make(chan error, 1)

	w := worker.New(a.deps.Temporal, workflows.AgentQueue(a.config.Host), worker.Options{
		DisableWorkflowWorker:              true,
		DisableEagerActivities:             true,
		MaxConcurrentActivityTaskPollers:   1,
		MaxConcurrentActivityExecutionSize: a.config.Slots,
		MaxHeartbeatThrottleInterval:       activity.LongestHeartbeatInterval,
		Identity:                           "agent@" + a.config.Host + "/" + bootID,
		WorkerStopTimeout:                  a.config.StopTimeout,
		OnFatalError: func(err error) { // may be called several times; the first error is enough
			select {
			case fatal <- err:
			default:
			}
		},
	})

	for name, do := range activities.All() {
		w.RegisterActivityWithOptions(do, sdkactivity.RegisterOptions{Name: name})
	}

	return w, fatal
}
