package agent

import (
	"context"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// reachWithin bounds one try to reach Temporal.
	reachWithin = 5 * time.Second
	// leaveWithin is how long Temporal is waited for at the end.
	leaveWithin = time.Second
	// firstReach and lastReach bound the pause between two such tries.
	firstReach = 500 * time.Millisecond
	lastReach  = 15 * time.Second
)

// serve takes steps from Temporal until the context ends, however often Temporal is away, and returns when the steps that
// run then have ended. It does so while the conductor takes this agent for the host's. Serving is closed when the first
// worker runs.
func (a *Agent) serve(
	ctx context.Context, activities *activity.Activities, standing *approval, bootID string, serving chan<- struct{},
) {
	pause, away := firstReach, false
	for ctx.Err() == nil {
		verdict, moved := standing.get()
		if verdict != granted {
			select {
			case <-moved:
			case <-ctx.Done():
			}
			continue
		}
		err := a.reach(ctx)
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
			pause, away = firstReach, false
			select {
			case <-ctx.Done():
				stopWorker(w, activities)
				return
			case <-moved:
				stopWorker(w, activities)
				a.log.InfoContext(ctx, "taking no more steps from Temporal")
				continue
			case err = <-fatal:
				w.Stop()
			}
		}
		if !away && ctx.Err() == nil {
			a.log.WarnContext(ctx, "Temporal does not answer; the agent keeps trying", "error", err)
			away = true
		}
		timer := time.NewTimer(spread(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, lastReach)
	}
}

// stopWorker stops taking steps and waits for those that run. A worker takes its leave of Temporal first, and tries for
// ten seconds where Temporal is away: nobody waits for that once no step runs.
func stopWorker(w worker.Worker, activities *activity.Activities) {
	stopped := make(chan struct{})
	go func() {
		w.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
		return
	case <-time.After(leaveWithin):
	}
	look := time.NewTicker(leaveWithin / 10)
	defer look.Stop()
	for activities.Running() > 0 {
		select {
		case <-stopped:
			return
		case <-look.C:
		}
	}
}

// reach says whether Temporal answers. Starting a worker asks the same, but cannot be interrupted.
func (a *Agent) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	_, err := a.deps.Temporal.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

// newWorker makes a worker for the host's queue. A worker cannot be started twice, so each try gets a new one.
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
		OnFatalError: func(err error) {
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
