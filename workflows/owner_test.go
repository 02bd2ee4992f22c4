package workflows_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestSupersededRunTouchesNothing: at each moment in turn another run gets the
// operation, while the steps go well and while one of them fails. The run sends
// no further step or undo, records nothing, and fails with the reason.
func TestSupersededRunTouchesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		clean := newWorld(kind)
		_, err := clean.run(t, false)
		require.NoError(t, err)

		for at, name := range clean.calls {
			for _, failing := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/failing=%v", kind, name, failing), func(t *testing.T) {
					t.Parallel()
					w := newWorld(kind)
					w.supersededAt = at
					if failing {
						w.failAt, w.failAfter, w.failure = at, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
					}

					_, err := w.run(t, false)
					if name == "NotifyNova" || name == "End" && failing {
						return // the operation has ended before, or its end is what failed
					}

					require.Error(t, err, w)
					require.Equal(t, cyborg.ErrSuperseded, workflows.FromFailure(err).Kind, "%v; %s", err, w)
					require.Nil(t, w.outcome, w)
					require.LessOrEqual(t, len(w.stepsSince(at)), 1, "one step was sent before; %s", w)
				})
			}
		}
	}
}

// stepsSince are the steps that an agent took from the call with this index on.
func (w *world) stepsSince(at int) []string {
	return slices.DeleteFunc(slices.Clone(w.calls[at:]), func(name string) bool {
		return slices.Contains([]string{"Begin", "Record", "End", "FailARQs", "Find", "Fence", "CheckAllocations", "NotifyNova"}, name)
	})
}

// TestServiceIsNotAskedForASupersededRun: an attempt to ask Placement or Glance
// finds that another run has the operation. The run ends with that, and records
// nothing.
func TestServiceIsNotAskedForASupersededRun(t *testing.T) {
	t.Parallel()
	for call, w := range map[string]*world{
		"Find": fromGlance(), "Fence": withPlacement(cyborg.OperationRetire), "CheckAllocations": withPlacement(cyborg.OperationDetach),
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrSuperseded, "another run has it")
			_, err := w.run(t, false)
			require.Error(t, err)
			require.Equal(t, cyborg.ErrSuperseded, workflows.FromFailure(err).Kind, "%v", err)
			require.Equal(t, []string{"Begin", call}, w.calls)
			require.Nil(t, w.outcome)
		})
	}
}

// TestRunOfAnEndedOperationEndsWithASentence: somebody resets the run of an
// operation that has ended. The reset run says so.
func TestRunOfAnEndedOperationEndsWithASentence(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.supersededAt = 0
	_, err := w.run(t, false)
	require.ErrorContains(t, err, "another run has it")
	require.Equal(t, []string{"Begin"}, w.calls)
}

// TestStepOfAnotherAgent: a step was taken by another agent of the host than
// the one that the records have, which refuses it. It is sent again, to the
// agent that the host has by then, and nothing counts as begun.
func TestStepOfAnotherAgent(t *testing.T) {
	t.Parallel()
	const refusals = 5 // more than a step has attempts
	for name, last := range map[string]error{
		"taken": nil, "refused": cyborg.Errorf(cyborg.ErrInUse, "somebody uses it"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationAttach)
			w.work.Instance = "agent-1"

			var to []string
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.RegisterActivityWithOptions(func(ctx context.Context, in workflows.AttachInput) (workflows.ChangeResult, error) {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.asked = false
					if run := activity.GetInfo(ctx).WorkflowExecution.RunID; in.SentBy() != run {
						return workflows.ChangeResult{}, fmt.Errorf("run %q sent it, and not %q", in.SentBy(), run)
					}
					to = append(to, in.Instance)
					if len(to) <= refusals {
						return workflows.ChangeResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrOtherAgent, "for another"))
					}
					if last == nil && len(to) < refusals+int(limits().Attempts) { // the attempts of the host's agent
						return workflows.ChangeResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrBusy, "busy"))
					}
					return workflows.ChangeResult{}, workflows.ToFailure(last)
				}, activity.RegisterOptions{Name: workflows.AttachActivity, DisableAlreadyRegisteredCheck: true})
			})

			require.NotEmpty(t, to, "%+v", result.Error)
			require.Equal(t, "agent-1", to[0])
			require.NotContains(t, to[1:], "agent-1")
			require.Greater(t, len(to), refusals)
			require.Equal(t, []string{"Begin", "End"}, w.calls, "nothing is undone")
			if last == nil {
				require.Equal(t, cyborg.OperationSucceeded, result.State)
			} else {
				require.Equal(t, cyborg.OperationFailed, result.State)
				require.Equal(t, cyborg.ErrInUse, result.Error.Kind)
			}
		})
	}
}

// TestUndoFollowsTheHostsAgent: the host boots while an undo waits, and has
// another agent then. The undo is sent to that one.
func TestUndoFollowsTheHostsAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.work.Instance = "agent-1"
	w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")

	var to []string
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterActivityWithOptions(func(_ context.Context, in workflows.DetachInput) (workflows.ChangeResult, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked = false
			to = append(to, in.Instance)
			if len(to) == 1 {
				return workflows.ChangeResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrOtherAgent, "for another"))
			}
			clear(w.attached)
			return workflows.ChangeResult{}, nil
		}, activity.RegisterOptions{Name: workflows.DetachActivity, DisableAlreadyRegisteredCheck: true})
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"agent-2", "agent-2"}, to)
	w.requireUntouched(t, w.String())
}

// TestUndoOutlivesTheRecords: the records cannot say whether the operation is
// the run's when it is to be undone. The undo is sent once they can.
func TestUndoOutlivesTheRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
	w.unanswered = 4

	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	w.requireUntouched(t, w.String())
}

// TestUndoEnds: no try of an undo begins once its time is over and enough were
// made. Tries that are quick fill the time; where the tries are slow, enough are
// made all the same.
func TestUndoEnds(t *testing.T) {
	t.Parallel()
	limit := limits()
	for name, test := range map[string]struct {
		takes         time.Duration // of one try
		atLeast, most int           // tries
		over          time.Duration // within which the last try has ended
	}{
		"quick": {takes: 0, atLeast: int(limit.Attempts) + 1, most: 20, over: limit.Undo},
		"slow":  {takes: 3 * limit.Undo / 4, atLeast: int(limit.Attempts), most: int(limit.Attempts), over: time.Duration(limit.Attempts) * limit.Undo},
		"last":  {takes: limit.Step, atLeast: int(limit.Attempts) + 1, most: 20, over: limit.Undo + limit.AgentWait + limit.Step},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationAttach)
			w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")

			var first, last time.Time
			tries := 0
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
					if info.ActivityType.Name == workflows.DetachActivity && first.IsZero() {
						first = env.Now()
					}
				})
				env.SetOnActivityCompletedListener(func(info *activity.Info, _ converter.EncodedValue, _ error) {
					if info.ActivityType.Name == workflows.DetachActivity {
						last = env.Now()
						tries++
					}
				})
				env.OnActivity(workflows.DetachActivity, mock.Anything, mock.Anything).After(test.takes).
					Return(workflows.ChangeResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "the agent stops")))
			})

			require.Equal(t, cyborg.OperationNeedsOperator, result.State)
			require.GreaterOrEqual(t, tries, test.atLeast)
			require.LessOrEqual(t, tries, test.most)
			require.LessOrEqual(t, last.Sub(first), test.over, "by Temporal's clock, which this test moves")
		})
	}
}
