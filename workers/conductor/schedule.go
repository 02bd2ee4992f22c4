package conductor

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// reconcileSchedule is the id of the schedule and the prefix of its runs'
// workflow ids.
const reconcileSchedule = "reconcile"

// EnsureSchedules creates the schedule of Reconcile, or updates it to the given
// values. No round begins while another runs, and rounds that were missed while
// Temporal was down are not made up for: one round sees the same. The error is
// of kind ErrUnavailable.
func EnsureSchedules(ctx context.Context, c client.Client, every time.Duration, in workflows.ReconcileInput) error {
	spec := client.ScheduleSpec{
		Intervals: []client.ScheduleIntervalSpec{{Every: every}},
		Jitter:    every / 10,
	}
	action := &client.ScheduleWorkflowAction{
		ID:        reconcileSchedule,
		Workflow:  workflows.ReconcileWorkflow,
		Args:      []any{in},
		TaskQueue: workflows.ConductorQueue,
		// Without it, a run that hangs would be the last one.
		WorkflowRunTimeout: in.RunTimeout(),
	}

	_, err := c.ScheduleClient().Create(ctx, client.ScheduleOptions{
		ID: reconcileSchedule, Spec: spec, Action: action,
		Overlap: enums.SCHEDULE_OVERLAP_POLICY_SKIP, CatchupWindow: time.Minute,
		TriggerImmediately: true,
	})

	if err == nil {
		return nil
	}

	if !errors.Is(err, temporal.ErrScheduleAlreadyRunning) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the reconcile schedule cannot be created: %w", err)
	}

	handle := c.ScheduleClient().GetHandle(ctx, reconcileSchedule)
	err = handle.Update(ctx, client.ScheduleUpdateOptions{
		DoUpdate: func(current client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			schedule := current.Description.Schedule
			schedule.Spec, schedule.Action = &spec, action
			return &client.ScheduleUpdate{Schedule: &schedule}, nil
		},
	})
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the reconcile schedule cannot be updated: %w", err)
	}

	return nil
}
