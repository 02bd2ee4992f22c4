package conductor_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"
	sdk "go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestARoundThatHangsEnds: no round of Reconcile begins while another one runs. So
// Temporal ends each that takes longer than any does, also where the schedule was made
// before.
func TestARoundThatHangsEnds(t *testing.T) {
	t.Parallel()
	in := workflows.ReconcileInput{AgentWait: time.Minute, Limits: workflows.Limits{Step: time.Hour}}
	requireTimeout := func(t *testing.T, action client.ScheduleAction) {
		t.Helper()
		require.Equal(t, in.RunTimeout(), action.(*client.ScheduleWorkflowAction).WorkflowRunTimeout)
	}

	for name, exists := range map[string]error{"new": nil, "made before": sdk.ErrScheduleAlreadyRunning} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schedules, handle, c := &mocks.ScheduleClient{}, &mocks.ScheduleHandle{}, &mocks.Client{}
			c.On("ScheduleClient").Return(schedules)
			schedules.On("Create", mock.Anything, mock.Anything).Return(func(_ context.Context, o client.ScheduleOptions) (client.ScheduleHandle, error) {
				requireTimeout(t, o.Action)
				return handle, exists
			})
			schedules.On("GetHandle", mock.Anything, "reconcile").Return(handle)
			handle.On("Update", mock.Anything, mock.Anything).Return(func(_ context.Context, o client.ScheduleUpdateOptions) error {
				update, err := o.DoUpdate(client.ScheduleUpdateInput{})
				require.NoError(t, err)
				requireTimeout(t, update.Schedule.Action)
				return nil
			})

			require.NoError(t, conductor.EnsureSchedules(t.Context(), c, time.Minute, in))
			if exists != nil {
				handle.AssertNumberOfCalls(t, "Update", 1)
			}
		})
	}
}
