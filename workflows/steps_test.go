package workflows_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// failedBind plays a bind of two images, of which the second fails. It returns
// the result, and the deployables whose image was brought back, in order;
// restore says how that ends.
func failedBind(t *testing.T, restore func(deployable string) error) (result workflows.OperationResult, restored []string) {
	t.Helper()
	w := newWorld(cyborg.OperationBind)
	w.work.Targets[0].Deployable = "first"
	second := cyborg.Target{Accelerator: uuid.New(), Backend: "fake", Device: "d", Deployable: "second", BitstreamID: "before"}
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "new.img"}})

	result = w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
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
				return workflows.ChangeResult{}, workflows.ToFailure(restore(in.Target.Deployable))
			})
	})

	return result, restored
}

// TestUndosRunInReverse: the last thing that was done is undone first, because
// what came later may stand on what came before.
func TestUndosRunInReverse(t *testing.T) {
	t.Parallel()
	result, restored := failedBind(t, func(string) error { return nil })
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"second", "first"}, restored)
}

// TestAFailedUndoDoesNotStopTheOthers: what can be undone is undone, and an
// operator is told of the rest.
func TestAFailedUndoDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	result, restored := failedBind(t, func(deployable string) error {
		if deployable == "second" {
			return cyborg.Errorf(cyborg.ErrHardware, "%s is on fire", deployable)
		}
		return nil
	})
	require.Equal(t, cyborg.OperationNeedsOperator, result.State)
	require.Contains(t, result.Error.Message, "second is on fire")
	require.Equal(t, "first", restored[len(restored)-1])
}

// TestEveryStepHasAHeartbeat: each call of an agent, undos included, has the
// heartbeat timeout of the limits. Without one, Temporal would notice only at
// the end of the step's limit that an agent has died.
func TestEveryStepHasAHeartbeat(t *testing.T) {
	t.Parallel()
	called, undone := 0, 0
	for _, o := range workflows.OperationWorkflows() {
		timeouts := heartbeatTimeouts(t, o.Kind, false)
		called += len(timeouts)
		for name, timeout := range timeouts {
			require.Equal(t, limits().Heartbeat, timeout, "%s of %s", name, o.Kind)
		}

		timeouts = heartbeatTimeouts(t, o.Kind, true)
		undone += max(0, len(timeouts)-1)
		for name, timeout := range timeouts {
			require.Equal(t, limits().Heartbeat, timeout, "%s of a failed %s", name, o.Kind)
		}
	}
	require.Positive(t, called)
	require.Positive(t, undone)
}

// heartbeatTimeouts plays an operation of a kind, and returns the timeouts of
// the activities that the host's agent was asked for. Where fails is set, the
// first of them fails after it had its effect, and is undone.
func heartbeatTimeouts(t *testing.T, kind cyborg.OperationKind, fails bool) map[string]time.Duration {
	t.Helper()
	w := newWorld(kind)
	w.failure, w.failAfter = cyborg.Errorf(cyborg.ErrHardware, "it smoked"), true

	var mu sync.Mutex
	timeouts := map[string]time.Duration{}
	w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
			mu.Lock()
			defer mu.Unlock()
			if info.IsLocalActivity || info.TaskQueue != workflows.AgentQueue(w.work.Host) {
				return
			}

			if fails && len(timeouts) == 0 {
				w.mu.Lock()
				w.failAt = len(w.calls)
				w.mu.Unlock()
			}
			timeouts[info.ActivityType.Name] = info.HeartbeatTimeout
		})
	})

	return timeouts
}
