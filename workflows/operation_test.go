package workflows_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestOperationsSucceed: an operation of each kind takes its steps in order,
// and records what the agent saw.
func TestOperationsSucceed(t *testing.T) {
	t.Parallel()
	want := map[cyborg.OperationKind][]string{
		cyborg.OperationProvision: {"Begin", "Install", "End"},
		cyborg.OperationAttach:    {"Begin", "Attach", "End"},
		cyborg.OperationDetach:    {"Begin", "Detach", "End"},
		cyborg.OperationProgram:   {"Begin", "Stage", "Record", "Program", "End"},
		cyborg.OperationConfigure: {"Begin", "Configure", "End"},
		cyborg.OperationRetire:    {"Begin", "Uninstall", "End"},
		cyborg.OperationBind:      {"Begin", "Stage", "Record", "Program", "End"},
		cyborg.OperationUnbind:    {"Begin", "Detach", "End"},
		cyborg.OperationWhitelist: {"Begin", "WriteWhitelist", "End"},
		cyborg.OperationRescue:    {"Begin", "End"}, // of no instance; see TestRescue
		cyborg.OperationClean:     {"Begin", "Clean", "End"},
		cyborg.OperationPartition: {"Begin", "Partition", "End"},
	}

	for _, kind := range cyborg.OperationKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(kind)
			result, err := w.run(t, false)
			require.NoError(t, err)

			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, want[kind], w.calls)
			require.Equal(t, cyborg.OperationSucceeded, w.outcome.State)
			require.Nil(t, w.outcome.Error)

			for _, step := range w.outcome.Steps {
				require.Equal(t, cyborg.StepDone, step.State, step.Name)
			}

			if kind != cyborg.OperationConfigure && kind != cyborg.OperationWhitelist && kind != cyborg.OperationRescue { // these three see no device
				require.NotEmpty(t, w.outcome.Observations, "what the agent saw is recorded")
			}
		})
	}
}

// TestEachStepFails: each step in turn fails, before and after it took effect.
// The operation ends as failed, and the hardware is as before.
func TestEachStepFails(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		clean := newWorld(kind)
		_, err := clean.run(t, false)
		require.NoError(t, err)

		for at, name := range clean.calls {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/after=%v", kind, name, after), func(t *testing.T) {
					t.Parallel()
					w := newWorld(kind)
					w.failAt, w.failAfter, w.failure = at, after, cyborg.Errorf(cyborg.ErrHardware, "step %d broke", at)

					result, err := w.run(t, false)
					if name == "End" {
						require.Error(t, err, "an outcome that cannot be recorded is the only failure of a workflow")
						return
					}

					require.NoError(t, err)
					require.Equal(t, cyborg.OperationFailed, result.State, w)
					require.Equal(t, cyborg.ErrHardware, w.outcome.Error.Kind)
					require.Equal(t, w.work.Operation, w.outcome.Error.Operation)
					w.requireUntouched(t, w.String())

					// Without it, a report of before the undo would count as newer than it.
					var recorded []int64
					for _, observation := range w.outcome.Observations {
						recorded = append(recorded, observation.Sequence)
					}
					require.Subset(t, recorded, w.undone, "what the agent saw after an undo is recorded")
				})
			}
		}
	}
}

// A failure that may pass is tried again, and the operation succeeds.
func TestRetryableFailuresPass(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		clean := newWorld(kind)
		_, err := clean.run(t, false)
		require.NoError(t, err)

		for at, name := range clean.calls {
			t.Run(fmt.Sprintf("%s/%s", kind, name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(kind)
				w.failAt, w.failure = at, cyborg.Errorf(cyborg.ErrUnavailable, "away for a moment")

				result, err := w.run(t, false)
				require.NoError(t, err)
				require.Equal(t, cyborg.OperationSucceeded, result.State, w)
			})
		}
	}
}

// TestCancelDuringEachStep: somebody cancels during each step in turn. The
// operation is cancelled with everything undone, unless it had succeeded
// already. The test environment cancels an activity as the server does when no
// agent has taken it yet. tests/journey has the cancel that reaches an agent at
// work.
func TestCancelDuringEachStep(t *testing.T) {
	t.Parallel()
	for _, kind := range cyborg.OperationKinds() {
		clean := newWorld(kind)
		_, err := clean.run(t, false)
		require.NoError(t, err)

		for at, name := range clean.calls {
			t.Run(fmt.Sprintf("%s/%s", kind, name), func(t *testing.T) {
				t.Parallel()
				w := newWorld(kind)
				w.cancelAt = at
				result, err := w.run(t, false)
				require.NoError(t, err)
				require.NotNil(t, w.outcome, "a terminal state is always written")
				require.Equal(t, result.State, w.outcome.State)

				if name == "End" {
					require.Equal(t, cyborg.OperationSucceeded, result.State, "it was too late")
					return
				}

				require.Equal(t, cyborg.OperationCancelled, result.State, w)
				w.requireUntouched(t, w.String())
			})
		}
	}
}

// TestUndoFails: where the undo fails too, the operation says that an operator
// is needed, why, and what the operator can do.
func TestUndoFails(t *testing.T) {
	t.Parallel()
	out := map[cyborg.OperationKind]string{
		cyborg.OperationProvision: "make it ready again, or retire it", cyborg.OperationRetire: "make it ready again, or retire it",
		cyborg.OperationAttach: "detach it by force", cyborg.OperationDetach: "detach it by force",
		cyborg.OperationProgram: "Program it with an image that works", cyborg.OperationBind: "Program it with an image that works",
		cyborg.OperationWhitelist: "stays Nova's in the records", cyborg.OperationPartition: "Partition it again, with a layout that works",
	}

	for kind, step := range map[cyborg.OperationKind]string{
		cyborg.OperationProvision: "Install", cyborg.OperationAttach: "Attach", cyborg.OperationDetach: "Detach", cyborg.OperationProgram: "Program",
		cyborg.OperationRetire: "Uninstall", cyborg.OperationBind: "Program", cyborg.OperationWhitelist: "WriteWhitelist",
		cyborg.OperationPartition: "Partition",
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			clean := newWorld(kind)
			_, err := clean.run(t, false)
			require.NoError(t, err)

			w := newWorld(kind)
			w.failAfter, w.failUndo, w.failure = true, true, cyborg.Errorf(cyborg.ErrHardware, "it broke")
			for i, name := range clean.calls {
				if name == step {
					w.failAt = i
				}
			}

			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationNeedsOperator, result.State)
			require.Contains(t, w.outcome.Error.Message, "it broke")
			require.Contains(t, w.outcome.Error.Message, "undo broke")
			require.Contains(t, w.outcome.Error.Hint, out[kind], "the way out")
		})
	}
}

// TestRefusedDetach: a host refuses a detach because the device is in use or
// its backend is disabled. Nothing has changed, so nothing is undone, and no
// operator is needed.
func TestRefusedDetach(t *testing.T) {
	t.Parallel()
	for _, failure := range []*cyborg.Error{
		cyborg.Errorf(cyborg.ErrInUse, "/dev/vfio/7 is open by qemu (4711)"),
		cyborg.Errorf(cyborg.ErrChanged, "backend fake of host h1 is disabled"),
	} {
		t.Run(string(failure.Kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationDetach)
			w.failAt, w.failure, w.failUndo = 1, failure, true

			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, failure.Kind, result.Error.Kind)
			require.Equal(t, []string{"Begin", "Detach", "End"}, w.calls)
			w.requireUntouched(t, w.String())
		})
	}
}

// TestRefusedRetryIsUndone: a host that refuses a later attempt may have lost
// its journal, and with it the record of what the first attempt did. So the
// operation undoes it.
func TestRefusedRetryIsUndone(t *testing.T) {
	t.Parallel()
	for kind, step := range map[cyborg.OperationKind]string{
		cyborg.OperationProvision: "Install", cyborg.OperationAttach: "Attach", cyborg.OperationDetach: "Detach", cyborg.OperationProgram: "Program",
		cyborg.OperationRetire: "Uninstall", cyborg.OperationBind: "Program", cyborg.OperationWhitelist: "WriteWhitelist",
		cyborg.OperationPartition: "Partition",
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			clean := newWorld(kind)
			_, err := clean.run(t, false)
			require.NoError(t, err)

			w := newWorld(kind)
			w.failAt, w.failAfter = slices.Index(clean.calls, step), true
			w.failure, w.refuse = cyborg.Errorf(cyborg.ErrUnavailable, "the agent was killed"), cyborg.Errorf(cyborg.ErrNotFound, "what image?")

			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, cyborg.ErrNotFound, result.Error.Kind)
			w.requireUntouched(t, w.String())
		})
	}
}

// TestAbandoned: a run that takes over from a terminated one only undoes. A
// detach and a retire go forward instead, and a clean only ends. A cancel changes none of it.
func TestAbandoned(t *testing.T) {
	t.Parallel()
	for kind, want := range map[cyborg.OperationKind][]string{
		cyborg.OperationProvision: {"Begin", "Uninstall", "End"},
		cyborg.OperationAttach:    {"Begin", "Detach", "End"},
		cyborg.OperationProgram:   {"Begin", "Restore", "End"},
		cyborg.OperationDetach:    {"Begin", "Detach", "End"},
		cyborg.OperationRetire:    {"Begin", "Uninstall", "End"},
		cyborg.OperationBind:      {"Begin", "Restore", "End"},
		cyborg.OperationWhitelist: {"Begin", "RestoreWhitelist", "End"},
		cyborg.OperationClean:     {"Begin", "End"},
		cyborg.OperationPartition: {"Begin", "RestoreLayout", "End"},
	} {
		for name, cancelAt := range map[string]int{"": never, "/cancelled as it begins": 0, "/cancelled during a step": 1} {
			t.Run(string(kind)+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(kind)
				w.installed, w.image, w.whitelisted, w.layout = true, "half", true, cyborg.Layout{"vf": 1}
				w.cancelAt = cancelAt
				if cancelAt == 1 {
					w.failAt, w.failAfter, w.failure = 1, true, cyborg.Errorf(cyborg.ErrUnavailable, "the agent stops")
				}
				w.requireAbandoned(t, want)
			})
		}
	}
}

// requireAbandoned plays a run that takes over from a terminated one. It
// asserts that the run undoes or completes what that one had done, with these
// calls.
func (w *world) requireAbandoned(t *testing.T, want []string) {
	t.Helper()
	kind := w.kind
	result, err := w.run(t, true)
	require.NoError(t, err)

	calls := slices.DeleteFunc(w.calls, func(name string) bool { return name == "FailARQs" }) // runs beside the undo
	if w.failAt != never {                                                                    // that call is tried again
		calls = slices.Compact(calls)
	}
	require.Equal(t, want, calls)

	if kind == cyborg.OperationDetach || kind == cyborg.OperationRetire {
		require.Equal(t, cyborg.OperationSucceeded, result.State)
		return
	}

	require.Equal(t, cyborg.OperationCancelled, result.State)
	if kind == cyborg.OperationProvision {
		require.False(t, w.installed)
	}
	if kind == cyborg.OperationProgram || kind == cyborg.OperationBind {
		require.Equal(t, "before", w.image)
	}
	if kind == cyborg.OperationPartition {
		require.Equal(t, cyborg.Layout{"vf": 2}, w.layout)
	}
	require.Equal(t, kind != cyborg.OperationWhitelist, w.whitelisted)
}

// TestAbandonedAndRecordsUnavailable: a run that takes over and cannot learn
// what there is to undo does not end the operation, because that would free
// what an earlier run may have attached.
func TestAbandonedAndRecordsUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.attached[w.work.Handles[0].Identity] = true
	w.failAt, w.failure = 0, cyborg.Errorf(cyborg.ErrInternal, "the record cannot be read")
	_, err := w.run(t, true)
	require.Error(t, err, "Reconcile finds a closed run, and starts another")
	require.Equal(t, []string{"Begin"}, w.calls)
	require.Nil(t, w.outcome)
}

// TestEndedOperationIsNotRepeated: an operation that has ended is left alone,
// so a second start does no harm.
func TestEndedOperationIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.work.Ended = cyborg.OperationSucceeded
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin"}, w.calls)
}

// TestCancelledBeforeTheFirstStep: a cancel before the first step ends the
// operation, and nothing is touched.
func TestCancelledBeforeTheFirstStep(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationProvision)
	w.failAt, w.failure = 0, cyborg.Errorf(cyborg.ErrCancelled, "cancelled before it began")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationCancelled, result.State)
	require.Equal(t, []string{"Begin", "End"}, w.calls)
}

// TestOperationFailsWithoutAnAgent: no agent takes the step. The operation
// fails, says which host is silent since when, and has nothing to undo.
func TestOperationFailsWithoutAnAgent(t *testing.T) {
	t.Parallel()
	for kind, step := range map[cyborg.OperationKind]struct {
		activity string
		nothing  any
	}{
		cyborg.OperationProvision: {workflows.InstallActivity, workflows.ChangeResult{}},
		cyborg.OperationAttach:    {workflows.AttachActivity, workflows.ChangeResult{}},
		cyborg.OperationDetach:    {workflows.DetachActivity, workflows.ChangeResult{}},
		cyborg.OperationProgram:   {workflows.StageActivity, workflows.StageResult{}},
		cyborg.OperationConfigure: {workflows.ConfigureActivity, workflows.ConfigureResult{}},
		cyborg.OperationRetire:    {workflows.UninstallActivity, workflows.ChangeResult{}},
		cyborg.OperationBind:      {workflows.StageActivity, workflows.StageResult{}},
		cyborg.OperationUnbind:    {workflows.DetachActivity, workflows.ChangeResult{}},
		cyborg.OperationWhitelist: {workflows.WriteWhitelistActivity, workflows.WhitelistResult{}},
		cyborg.OperationClean:     {workflows.CleanActivity, workflows.CleanResult{}},
		cyborg.OperationPartition: {workflows.PartitionActivity, workflows.PartitionResult{}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(kind)
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.OnActivity(step.activity, mock.Anything, mock.Anything).
					Return(step.nothing, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
			})

			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Equal(t, cyborg.ErrHostSilent, result.Error.Kind)
			require.Contains(t, result.Error.Message, "host h1 has been silent since 2026-01-02T03:04:05Z")
			require.Contains(t, result.Error.Hint, "Start cyborg-agent on h1")
			require.Equal(t, []string{"Begin", "End"}, w.calls, "nothing began, so nothing is undone")
		})
	}
}

// TestBusyAgentIsNotCalledSilent: an agent that is heard but does not take the
// step is not called silent.
func TestBusyAgentIsNotCalledSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.SetStartTime(time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)) // 5 s before the host was last heard
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).
			Return(workflows.ChangeResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
	})

	require.Equal(t, cyborg.ErrHostSilent, result.Error.Kind)
	require.Contains(t, result.Error.Message, "host h1 was heard at 2026-01-02T03:04:05Z, but its agent did not take")
	require.Contains(t, result.Error.Hint, "agent.slots")
}

// TestAgentWithoutASlot: the operation waits for an agent that lives but has no
// free slot, because other steps will end.
func TestAgentWithoutASlot(t *testing.T) {
	t.Parallel()
	play := func(busy int) (*world, workflows.OperationResult) {
		w := newWorld(cyborg.OperationAttach)
		w.busy = busy
		return w, w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
			env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).
				Return(func(context.Context, workflows.AttachInput) (workflows.ChangeResult, error) {
					if w.busy > 0 { // the agent takes it when it has a slot again
						return workflows.ChangeResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil)
					}
					return workflows.ChangeResult{}, nil
				})
		})
	}

	w, result := play(7) // more often than a step is attempted
	require.Equal(t, cyborg.OperationSucceeded, result.State, "%+v", result.Error)
	require.Equal(t, cyborg.StepDone, w.outcome.Steps[0].State)
}

// TestAgentNeverHasASlot: the wait for a free slot has an end.
func TestAgentNeverHasASlot(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.busy = 1 << 20
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).After(10*time.Second).
			Return(workflows.ChangeResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil))
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrHostSilent, result.Error.Kind)
	require.Contains(t, result.Error.Message, `the agent of host h1 had no slot left for "attach`)
	require.Equal(t, []string{"Begin", "End"}, w.calls, "nothing began, so nothing is undone")
}

// TestAgentDiesDuringAStep: the agent took the step and then fell silent. What
// it may have done is undone once it is back.
func TestAgentDiesDuringAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationAttach)
	w.attached[w.work.Handles[0].Identity] = true // the first attempt got that far
	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).
			Return(workflows.ChangeResult{}, temporal.NewHeartbeatTimeoutError()).Once()
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).
			Return(workflows.ChangeResult{}, temporal.NewTimeoutError(enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START, nil)).Once()
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrHostSilent, result.Error.Kind)
	require.Equal(t, []string{"Begin", "Detach", "End"}, w.calls)
	require.Empty(t, w.attached)
}

// TestCancelBetweenTwoAttempts: somebody cancels between two attempts of a
// step. What the first attempt did is undone.
func TestCancelBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	for kind, activity := range map[cyborg.OperationKind]string{
		cyborg.OperationProvision: "Install", cyborg.OperationAttach: "Attach", cyborg.OperationDetach: "Detach", cyborg.OperationProgram: "Program",
		cyborg.OperationRetire: "Uninstall", cyborg.OperationBind: "Program", cyborg.OperationWhitelist: "WriteWhitelist",
		cyborg.OperationPartition: "Partition",
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			clean := newWorld(kind)
			_, err := clean.run(t, false)
			require.NoError(t, err)

			w := newWorld(kind)
			w.failAt, w.failAfter = slices.Index(clean.calls, activity), true
			w.failure = cyborg.Errorf(cyborg.ErrUnavailable, "the agent stops")
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.SetOnTimerScheduledListener(func(string, time.Duration) { env.CancelWorkflow() })
			})

			require.Equal(t, cyborg.OperationCancelled, result.State, w)
			w.requireUntouched(t, w.String())
		})
	}
}

// TestForcedDetach: a forced detach asks nothing of the host, which is gone,
// and says what was not done there. It always goes forward: a cancel comes too
// late, and a run that takes over does the same.
func TestForcedDetach(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(t *testing.T, w *world) (workflows.OperationResult, error){
		"once":      func(t *testing.T, w *world) (workflows.OperationResult, error) { t.Helper(); return w.run(t, false) },
		"abandoned": func(t *testing.T, w *world) (workflows.OperationResult, error) { t.Helper(); return w.run(t, true) },
		"cancelled at its end": func(t *testing.T, w *world) (workflows.OperationResult, error) {
			t.Helper()
			w.cancelAt = 1
			return w.run(t, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(cyborg.OperationDetach)
			w.work.Forced = "host h1 is silent since noon"
			w.work.Handles = append(w.work.Handles, cyborg.WorkHandle{
				Identity: "0000:01:00.1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: "i1"},
			})

			result, err := play(t, w)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, []string{"Begin", "End"}, w.calls)
			require.Equal(t, cyborg.JSONObject{
				"forced": "host h1 is silent since noon",
				"not_done": []string{
					"handle 0000:01:00.0 of host h1 on host h1: it was not detached",
					"handle 0000:01:00.1 of instance i1 on host h1: nobody checked whether it is still used",
				},
			}, w.outcome.Result)
			require.NotEmpty(t, w.attached)
		})
	}

	// Begin refuses where the host has come back: the operation fails, and nothing
	// has happened.
	w := newWorld(cyborg.OperationDetach)
	w.failAt, w.failure = 0, cyborg.Errorf(cyborg.ErrChanged, "it can be detached without force")
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"Begin", "End"}, w.calls)
}
