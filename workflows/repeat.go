package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// repeat says how a run repeats an activity that asks another service.
//
// Temporal could repeat it, within a ScheduleToCloseTimeout. But the SDK
// compares that limit with the clock of the worker: one whose clock is ahead of
// Temporal's by more than the limit could then ask nothing. Our workers do not see
// it, see package temporalclient; those of release 0.1 do. A run reads only
// Temporal's clock.
type repeat struct {
	within            time.Duration // after this time no new attempt begins
	attempts          int32         // 0 for as many as there is time for
	shortest, longest time.Duration // the pauses between two attempts, which double
}

// run runs the activity until it succeeds, fails for good, or has no attempt
// left.
func (r repeat) run(ctx workflow.Context, options workflow.ActivityOptions, activity string, in, out any) error {
	options.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 1}
	limit := options.StartToCloseTimeout
	ends, pause := workflow.Now(ctx).Add(r.within), r.shortest

	for attempt := int32(1); ; attempt++ {
		options.StartToCloseTimeout = min(limit, max(ends.Sub(workflow.Now(ctx)), time.Second))
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), activity, in).Get(ctx, out)

		last := attempt == r.attempts || !workflow.Now(ctx).Add(pause).Before(ends)
		if err == nil || last || !retryable(err) || !repeats(ctx) {
			return err
		}

		if err := workflow.Sleep(ctx, pause); err != nil {
			return err
		}

		pause = min(2*pause, r.longest)
	}
}

// repeats says that the run goes on to repeat an activity that has failed. In
// the history of a run of release 0.1, where Temporal repeated it, a failure was
// for good.
func repeats(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "repeat", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}
