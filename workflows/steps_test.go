package workflows_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestUndosRunInReverse loads two images, of which the second fails. The last
// thing that was done is undone first: what came later may stand on what came
// before.
func TestUndosRunInReverse(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	first := w.work.Targets[0]
	second := cyborg.Target{Accelerator: uuid.New(), Backend: "fake", Device: "d", Deployable: "d1", BitstreamID: "before"}
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "new.img"}})

	var restored []string
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.ProgramActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.ProgramInput) (workflows.ProgramResult, error) {
				if in.Target.Deployable == second.Deployable {
					return workflows.ProgramResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "it smoked"))
				}
				return workflows.ProgramResult{BitstreamID: "new"}, nil
			})
		env.OnActivity(workflows.RestoreActivity, mock.Anything, mock.Anything).Return(
			func(_ context.Context, in workflows.RestoreInput) (workflows.ChangeResult, error) {
				restored = append(restored, in.Target.Deployable)
				return workflows.ChangeResult{}, nil
			})
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{second.Deployable, first.Deployable}, restored)
}

// TestEveryStepHasAHeartbeat: each call of an agent, undos included, has the
// heartbeat timeout of the limits. Without one, Temporal would notice only at
// the end of the step's limit that an agent has died.
func TestEveryStepHasAHeartbeat(t *testing.T) {
	t.Parallel()
	undone := 0
	for _, o := range workflows.OperationWorkflows() {
		for _, fails := range []bool{false, true} {
			w := newWorld(o.Kind)
			if fails {
				w.failure, w.failAfter = cyborg.Errorf(cyborg.ErrHardware, "it smoked"), true
			}

			var mu sync.Mutex
			steps := map[string]bool{}
			w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
					mu.Lock()
					defer mu.Unlock()
					if info.IsLocalActivity || info.TaskQueue != workflows.AgentQueue(w.work.Host) {
						return
					}
					if fails && len(steps) == 0 {
						w.mu.Lock()
						w.failAt = len(w.calls)
						w.mu.Unlock()
					}

					steps[info.ActivityType.Name] = true
					require.Equal(t, limits().Heartbeat, info.HeartbeatTimeout, "%s of %s", info.ActivityType.Name, o.Kind)
				})
			})

			if len(steps) > 1 {
				undone++
			}
		}
	}
	require.Positive(t, undone)
}
