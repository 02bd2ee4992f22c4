package workflows_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// withPlacement returns a world whose operations have to ask Placement.
func withPlacement(kind cyborg.OperationKind) *world {
	w := newWorld(kind)
	w.work.Placement = true
	if kind == cyborg.OperationDetach {
		w.work.Handles[0].Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: "vm"}
		w.attached = w.attachedBefore()
	}
	return w
}

// asking lists the kinds that ask Placement, with their calls in order.
func asking() map[cyborg.OperationKind][]string {
	return map[cyborg.OperationKind][]string{
		cyborg.OperationProgram:   {"Begin", "Fence", "Stage", "Record", "Program", "End"},
		cyborg.OperationRetire:    {"Begin", "Fence", "Uninstall", "End"},
		cyborg.OperationDetach:    {"Begin", "CheckAllocations", "Detach", "End"},
		cyborg.OperationPartition: {"Begin", "Fence", "Partition", "End"},
	}
}

// TestPlacementIsFencedBeforeTheHost: Placement is asked before the host, and
// everything that an image disturbs is fenced there.
func TestPlacementIsFencedBeforeTheHost(t *testing.T) {
	t.Parallel()
	for kind, calls := range asking() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := withPlacement(kind)
			other := cyborg.Target{Accelerator: uuid.New(), Deployable: "d1"}
			w.work.Targets = append(w.work.Targets, other)

			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, calls, w.calls)

			if kind == cyborg.OperationDetach {
				require.Equal(t, workflows.CheckAllocationsInput{Operation: w.work.Operation, Accelerator: w.work.Targets[0].Accelerator, Consumers: []string{"vm"}}, w.checked)
				return
			}

			require.Equal(t, w.work.Operation, w.fenced.Operation)
			require.Equal(t, "h1", w.fenced.Host)
			require.Equal(t, []uuid.UUID{w.work.Targets[0].Accelerator, other.Accelerator}, w.fenced.Accelerators)
		})
	}
}

// TestPlacementRefusesAnOperation: nothing is touched where Placement has an
// allocation of the accelerator, or where somebody cancels meanwhile. A failure
// that may pass is retried.
func TestPlacementRefusesAnOperation(t *testing.T) {
	t.Parallel()
	for kind := range asking() {
		for name, test := range map[string]struct {
			change func(w *world)
			state  cyborg.OperationState
		}{
			"in use": {func(w *world) { w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrInUse, "allocated to vm") }, cyborg.OperationFailed},
			"passes": {func(w *world) { w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrUnavailable, "away") }, cyborg.OperationSucceeded},
			"cancel": {func(w *world) { w.cancelAt = 1 }, cyborg.OperationCancelled},
		} {
			t.Run(fmt.Sprintf("%s/%s", kind, name), func(t *testing.T) {
				t.Parallel()
				w := withPlacement(kind)
				test.change(w)
				result, err := w.run(t, false)
				require.NoError(t, err)
				require.Equal(t, test.state, result.State, w)

				if test.state != cyborg.OperationSucceeded {
					require.Len(t, w.calls, 3, "begin, ask, end")
					w.requireUntouched(t, w.String())
				}
			})
		}
	}
}

// TestPlacementIsUnavailable: while Placement is away, nothing is touched, and
// the operation says why.
func TestPlacementIsUnavailable(t *testing.T) {
	t.Parallel()
	for kind := range asking() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := withPlacement(kind)
			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				away := workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "Placement does not answer"))
				env.OnActivity(workflows.FencePlacementActivity, mock.Anything, mock.Anything).Return(away)
				env.OnActivity(workflows.CheckAllocationsActivity, mock.Anything, mock.Anything).Return(away)
			})

			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Contains(t, result.Error.Message, "Placement does not answer")
			require.Equal(t, []string{"Begin", "End"}, w.calls)
		})
	}
}

// TestPlacementSyncSeesEveryChange: a run goes on as long as the records change
// while it works, and then ends.
func TestPlacementSyncSeesEveryChange(t *testing.T) {
	t.Parallel()
	env := environment()
	env.RegisterWorkflowWithOptions(workflows.PlacementSync, workflow.RegisterOptions{Name: workflows.PlacementSyncWorkflow})

	synced := 0
	env.RegisterActivityWithOptions(func(_ context.Context, in workflows.SyncPlacementInput) (workflows.SyncPlacementResult, error) {
		require.Equal(t, "h1", in.Host)
		switch synced++; synced {
		case 1: // away for a moment
			return workflows.SyncPlacementResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrUnavailable, "away"))
		case 2: // two changes while it works need one more sync
			env.SignalWorkflow("changed", nil)
			env.SignalWorkflow("changed", nil)
		}
		return workflows.SyncPlacementResult{Differences: []string{fmt.Sprint(synced)}}, nil
	}, activity.RegisterOptions{Name: workflows.SyncPlacementActivity})

	env.RegisterDelayedCallback(func() { env.SignalWorkflow("changed", nil) }, 0)
	env.ExecuteWorkflow(workflows.PlacementSyncWorkflow, workflows.SyncPlacementInput{Host: "h1"})
	require.True(t, env.IsWorkflowCompleted())

	var out workflows.SyncPlacementResult
	require.NoError(t, env.GetWorkflowResult(&out))
	require.Equal(t, 3, synced)
	require.Equal(t, []string{"3"}, out.Differences)
}

// TestReconcileComparesPlacement: a round compares Placement where there is
// one, and goes on where that fails.
func TestReconcileComparesPlacement(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		env := environment()
		env.RegisterWorkflowWithOptions(workflows.Reconcile, workflow.RegisterOptions{Name: workflows.ReconcileWorkflow})

		on := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }
		on(workflows.InspectActivity, func(context.Context, workflows.InspectInput) (workflows.Findings, error) {
			return workflows.Findings{}, nil
		})
		on(workflows.TidyActivity, func(context.Context, workflows.TidyInput) (workflows.TidyResult, error) {
			return workflows.TidyResult{}, nil
		})
		on(workflows.ComparePlacementActivity, func(_ context.Context, in workflows.ComparePlacementInput) (workflows.ComparePlacementResult, error) {
			if away {
				return workflows.ComparePlacementResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "broken"))
			}
			return workflows.ComparePlacementResult{Compared: in.Hosts, Failed: []string{"host h9: away"}, Drift: map[cyborg.DriftClass]int{cyborg.DriftTraits: 1}}, nil
		})

		env.ExecuteWorkflow(workflows.ReconcileWorkflow, workflows.ReconcileInput{Limits: limits(), Placement: 7})
		var out workflows.ReconcileResult
		require.NoError(t, env.GetWorkflowResult(&out))

		if away {
			require.Equal(t, []string{"comparing Placement: broken"}, out.Unsettled)
			continue
		}

		require.Equal(t, 7, out.Placement.Compared)
		require.Equal(t, []string{"host h9: away"}, out.Unsettled)
		require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftTraits: 1}, out.Placement.Drift)
	}
}

// TestPlacementSyncContinues: a host that never comes to rest is synced by one
// run after the other, because Temporal ends a run whose history grows too
// long.
func TestPlacementSyncContinues(t *testing.T) {
	t.Parallel()
	env := environment()
	env.RegisterWorkflowWithOptions(workflows.PlacementSync, workflow.RegisterOptions{Name: workflows.PlacementSyncWorkflow})

	syncs := 0
	env.RegisterActivityWithOptions(func(context.Context, workflows.SyncPlacementInput) (workflows.SyncPlacementResult, error) {
		if syncs++; syncs <= 2 {
			env.SignalWorkflow("changed", nil)
		}
		env.SetContinueAsNewSuggested(syncs == 2)
		return workflows.SyncPlacementResult{}, nil
	}, activity.RegisterOptions{Name: workflows.SyncPlacementActivity})

	env.ExecuteWorkflow(workflows.PlacementSyncWorkflow, workflows.SyncPlacementInput{Host: "h1"})
	require.True(t, workflow.IsContinueAsNewError(env.GetWorkflowError()), "%v", env.GetWorkflowError())
	require.Equal(t, 2, syncs)
}
