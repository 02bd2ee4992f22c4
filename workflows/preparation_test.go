package workflows_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// prepared returns a handle of an instance that its host prepares.
func prepared(identity string, of cyborg.Target) cyborg.WorkHandle {
	return cyborg.WorkHandle{
		UUID: uuid.New(), Identity: identity, Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: "i1"},
		Accelerator: of.Accelerator, Prepared: true, Parameters: map[string]string{"mac": "52:54:00:12:34:56"},
	}
}

// twoTargets returns two accelerators of two devices.
func twoTargets() []cyborg.Target {
	return []cyborg.Target{
		{Accelerator: uuid.New(), Backend: "fake", Device: "d", Deployable: "d0", BitstreamID: "before"},
		{Accelerator: uuid.New(), Backend: "fake", Device: "e", Deployable: "e0", BitstreamID: "before"},
	}
}

// preparedBind is a bind of two prepared handles of two accelerators, the first so
// many of which get an image.
func preparedBind(images int) *world {
	w := newWorld(cyborg.OperationBind)
	targets := twoTargets()
	w.work.Targets, w.work.Handles, w.work.Loads = nil, nil, nil
	w.work.Notify = []uuid.UUID{uuid.New()}

	for i, target := range targets {
		given := cyborg.Target{Accelerator: target.Accelerator, Backend: target.Backend, Device: target.Device, Deployable: target.Deployable}
		w.work.Given = append(w.work.Given, cyborg.GivenHandles{Target: given, Handles: []cyborg.WorkHandle{prepared(target.Deployable+".vf", target)}})
		if i < images {
			w.work.Targets = append(w.work.Targets, target)
			w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: target.Accelerator, Image: cyborg.Image{Source: "new.img"}})
		}
	}
	return w
}

// preparedAttach is an attach of a prepared handle to an instance.
func preparedAttach() *world {
	w := newWorld(cyborg.OperationAttach)
	w.work.Handles = []cyborg.WorkHandle{prepared("d0.vf", w.work.Targets[0])}
	w.work.Given = []cyborg.GivenHandles{{Target: w.work.Targets[0], Handles: w.work.Handles}}
	return w
}

// preparedUnbind is an unbind of two prepared handles of two accelerators.
func preparedUnbind() *world {
	w := newWorld(cyborg.OperationUnbind)
	w.work.Targets, w.work.Handles = twoTargets(), nil
	for _, target := range w.work.Targets {
		w.work.Handles = append(w.work.Handles, prepared(target.Deployable+".vf", target))
	}
	w.attached = w.attachedBefore()
	return w
}

// preparedDetach is a detach of a prepared handle, and of one that its instance got
// as it was.
func preparedDetach() *world {
	w := newWorld(cyborg.OperationDetach)
	plain := prepared("d0.plain", w.work.Targets[0])
	plain.Prepared = false
	w.work.Handles = []cyborg.WorkHandle{plain, prepared("d0.vf", w.work.Targets[0])}
	w.attached = w.attachedBefore()
	return w
}

// preparedTable has a world of each operation with prepared handles, with its calls
// in order.
func preparedTable() map[string]struct {
	world func() *world
	calls []string
} {
	type row = struct {
		world func() *world
		calls []string
	}

	return map[string]row{
		"attach": {preparedAttach, []string{"Begin", "CheckUse", "Attach", "End"}},
		"bind": {
			func() *world { return preparedBind(0) },
			[]string{"Begin", "CheckUse", "Attach", "Attach", "End", "NotifyNova"},
		},
		"bind with an image": {
			func() *world { return preparedBind(1) },
			[]string{"Begin", "CheckUse", "Stage", "Record", "Program", "Attach", "Attach", "End", "NotifyNova"},
		},
		"bind with two images": {
			func() *world { return preparedBind(2) },
			[]string{"Begin", "CheckUse", "Stage", "Record", "Program", "Stage", "Record", "Program", "Attach", "Attach", "End", "NotifyNova"},
		},
		"unbind": {preparedUnbind, []string{"Begin", "Detach", "Detach", "End"}},
		"detach": {preparedDetach, []string{"Begin", "Detach", "End"}},
	}
}

// TestHostPreparesHandles: the host attaches what an instance gets, after it has
// looked who uses it and its image is loaded, and detaches what is taken back. Each
// step in turn fails, before or after its effect, or is cancelled; then the host has
// attached what it had before, and Nova is told once.
func TestHostPreparesHandles(t *testing.T) {
	t.Parallel()
	for name, row := range preparedTable() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := row.world()
			before := len(w.attached)
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
			require.Equal(t, row.calls, w.calls)
			require.NotEqual(t, before, len(w.attached))
			require.NotEmpty(t, w.outcome.Observations)

			for at, call := range row.calls {
				for _, after := range []bool{false, true} {
					w := row.world()
					w.failAt, w.failAfter, w.failure = at, after, cyborg.Errorf(cyborg.ErrHardware, "step %d broke", at)
					w.requireUndone(t, call, cyborg.OperationFailed)
				}

				w := row.world()
				w.failAt, w.failure = at, cyborg.Errorf(cyborg.ErrUnavailable, "away for a moment")
				result, err := w.run(t, false)
				require.NoError(t, err)
				require.Equal(t, cyborg.OperationSucceeded, result.State, w)

				w = row.world()
				w.cancelAt = at
				w.requireUndone(t, call, cyborg.OperationCancelled)
			}
		})
	}
}

// TestLastLookAtADeviceIsRecorded: of the handles of one device, the agent sees the
// whole device after each. Only the last look goes to the records, because an instance
// may have many functions of one card.
func TestLastLookAtADeviceIsRecorded(t *testing.T) {
	t.Parallel()
	for device, looks := range map[string][]int64{"d": {3}, "e": {2, 3}} {
		w := preparedBind(0)
		w.work.Given[1].Target.Device = device
		result, err := w.run(t, false)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, result.State)

		var recorded []int64
		for _, seen := range w.outcome.Observations {
			recorded = append(recorded, seen.Sequence)
		}
		require.Equal(t, looks, recorded, "%s", w)
	}
}

// TestRefusedPreparationIsNotUndone: a host that refuses the second step has changed
// nothing by it, so only the first one is undone.
func TestRefusedPreparationIsNotUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world *world
		undo  []string
	}{
		"bind":   {preparedBind(0), []string{"Detach"}},
		"unbind": {preparedUnbind(), []string{"Attach"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			calls := preparedTable()[name].calls
			second := slices.Index(calls, "End") - 1
			w.failAt, w.failure = second, cyborg.Errorf(cyborg.ErrInUse, "handle e0.vf is in use by qemu (4711)")
			w.requireUndone(t, calls[second], cyborg.OperationFailed)
			require.Equal(t, cyborg.ErrInUse, w.outcome.Error.Kind)

			undone := slices.DeleteFunc(slices.Clone(w.calls[second+1:]), func(call string) bool { return call != "Attach" && call != "Detach" })
			require.Equal(t, c.undo, undone, w)
		})
	}
}

// TestPreparationNamesItsStep: each step has what the host's journal keeps it by,
// and its undo has the same: a handle is known by its identity, and what is taken
// back of one accelerator by an id of its own. What was chosen for a handle goes
// along.
func TestPreparationNamesItsStep(t *testing.T) {
	t.Parallel()
	for name, world := range map[string]func() *world{"bind": func() *world { return preparedBind(0) }, "unbind": preparedUnbind} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world()
			var attaches []workflows.AttachInput
			var detaches []workflows.DetachInput
			broken := workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "it broke"))

			result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
				env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).Return(
					func(_ context.Context, in workflows.AttachInput) (workflows.ChangeResult, error) {
						in.Addressee = workflows.Addressee{}
						if attaches = append(attaches, in); !in.Undo && len(attaches) == 2 {
							return workflows.ChangeResult{}, broken
						}
						return workflows.ChangeResult{}, nil
					})
				env.OnActivity(workflows.DetachActivity, mock.Anything, mock.Anything).Return(
					func(_ context.Context, in workflows.DetachInput) (workflows.ChangeResult, error) {
						in.Addressee = workflows.Addressee{}
						if detaches = append(detaches, in); !in.Undo && len(detaches) == 2 {
							return workflows.ChangeResult{}, broken
						}
						return workflows.ChangeResult{}, nil
					})
			})
			require.Equal(t, cyborg.OperationFailed, result.State)
			require.Len(t, attaches, 2)
			require.Len(t, detaches, 2)

			for i := range attaches {
				undoOf := detaches[1-i] // the last one is undone first
				require.Equal(t, undoOf.Operation, attaches[i].Operation)
				require.Equal(t, undoOf.Target, attaches[i].Target)
				require.Equal(t, []cyborg.WorkHandle{attaches[i].Handle}, undoOf.Handles)
				require.NotEqual(t, undoOf.Undo, attaches[i].Undo)
				require.Equal(t, map[string]string{"mac": "52:54:00:12:34:56"}, attaches[i].Handle.Parameters)
			}

			if name == "bind" {
				require.Equal(t, w.work.Given[0].Target, attaches[0].Target)
				require.Equal(t, w.work.Operation, attaches[0].Operation)
				require.Equal(t, w.work.Operation, attaches[1].Operation)
			} else {
				require.Equal(t, w.work.Operation, detaches[0].Operation)
				require.NotEqual(t, w.work.Operation, detaches[1].Operation)
			}
		})
	}
}

// TestAbandonedPreparation: a run that takes over takes back what the terminated one
// may have prepared, handles before images. An unbind and a detach go forward, and an
// unbind does so also where Placement has the accelerator allocated: the terminated
// run may have detached it already.
func TestAbandonedPreparation(t *testing.T) {
	t.Parallel()
	undone := func(world *world) *world {
		for _, given := range world.work.Given {
			world.attached[given.Handles[0].Identity] = true
		}
		world.image = "half"
		return world
	}
	allocated := func() *world {
		w := preparedUnbind()
		w.work.Placement = true
		w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrInUse, "Placement has it allocated")
		return w
	}

	for name, c := range map[string]struct {
		world *world
		state cyborg.OperationState
		calls []string
	}{
		"attach": {undone(preparedAttach()), cyborg.OperationCancelled, []string{"Begin", "Detach", "End"}},
		"bind":   {undone(preparedBind(0)), cyborg.OperationCancelled, []string{"Begin", "Detach", "Detach", "End", "NotifyNova"}},
		"bind with an image": {
			undone(preparedBind(1)), cyborg.OperationCancelled, []string{"Begin", "Detach", "Detach", "Restore", "End", "NotifyNova"},
		},
		"unbind": {preparedUnbind(), cyborg.OperationSucceeded, []string{"Begin", "Detach", "Detach", "End"}},
		"unbind of what is allocated": {
			allocated(), cyborg.OperationSucceeded, []string{"Begin", "CheckAllocations", "Detach", "CheckAllocations", "Detach", "End"},
		},
		"detach": {preparedDetach(), cyborg.OperationSucceeded, []string{"Begin", "Detach", "End"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			result, err := w.run(t, true)
			require.NoError(t, err)
			require.Equal(t, c.state, result.State)
			require.Empty(t, w.attached)

			// Nova is told beside the undo, so only the order of the others is certain.
			calls := slices.DeleteFunc(slices.Clone(w.calls), func(call string) bool { return call == "FailARQs" || call == "NotifyNova" })
			require.Equal(t, slices.DeleteFunc(c.calls, func(call string) bool { return call == "NotifyNova" }), calls)
			require.Equal(t, len(w.work.Notify) > 0, slices.Contains(w.calls, "NotifyNova"))
			if len(w.work.Loads) > 0 {
				require.Equal(t, "before", w.image)
			}
		})
	}
}

// TestAbandonedUnbindOfPlainHandles: an unbind that has changed nothing on its host
// is not completed against Placement.
func TestAbandonedUnbindOfPlainHandles(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationUnbind)
	w.work.Placement = true
	w.failAt, w.failure = 1, cyborg.Errorf(cyborg.ErrInUse, "Placement has it allocated")
	result, err := w.run(t, true)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, []string{"Begin", "CheckAllocations", "End"}, w.calls)
}

// TestBindTimeoutHoldsForThePreparation: a host that takes too long to prepare its
// second handle keeps Nova no longer than its requests have time. Nova is told before
// the undo of the first, which may take long as well.
func TestBindTimeoutHoldsForThePreparation(t *testing.T) {
	t.Parallel()
	w := preparedBind(0)
	w.work.Within = 30 * time.Second
	var took time.Duration

	result := w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
		began := env.Now()
		second := w.work.Given[1].Handles[0].Identity
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.MatchedBy(func(in workflows.AttachInput) bool { return in.Handle.Identity == second })).
			After(time.Hour).Return(workflows.ChangeResult{}, errors.New("it was cancelled"))
		env.OnActivity(workflows.AttachActivity, mock.Anything, mock.Anything).Return(workflows.ChangeResult{}, nil)
		env.OnActivity(workflows.DetachActivity, mock.Anything, mock.Anything).After(time.Hour).
			Return(func(ctx context.Context, _ workflows.DetachInput) (workflows.ChangeResult, error) {
				return workflows.ChangeResult{}, w.call(ctx, "Detach", true, func() {})
			})
		env.OnActivity(workflows.NotifyNovaActivity, mock.Anything, mock.Anything).
			Return(func(ctx context.Context, _ workflows.NotifyNovaInput) error {
				took = env.Now().Sub(began)
				return w.call(ctx, "NotifyNova", false, func() {})
			})
	})

	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrTimeout, result.Error.Kind)
	require.Contains(t, result.Error.Message, "not bound within 30s")
	require.Contains(t, result.Error.Hint, "or to prepare it")
	require.Equal(t, []string{"FailARQs", "NotifyNova", "Detach", "End"}, w.calls[len(w.calls)-4:])
	require.Empty(t, w.outcome.Notify, "Nova was told before the end")
	require.Equal(t, 30*time.Second, took.Round(time.Second))
}

// TestUndoOfAPreparationFails: what an operator reads says what is left, which is no
// image where none was loaded.
func TestUndoOfAPreparationFails(t *testing.T) {
	t.Parallel()
	const byReconcile, byProgram = "Reconcile has its host", "Program it with an image that works"

	for name, c := range map[string]struct {
		world *world
		hint  []string
		not   string
	}{
		"attach":             {preparedAttach(), []string{"detach it by force"}, byProgram},
		"bind":               {preparedBind(0), []string{byReconcile}, byProgram},
		"bind with an image": {preparedBind(1), []string{byReconcile, byProgram}, "detach it by force"},
		"unbind":             {preparedUnbind(), []string{byReconcile}, byProgram},
		"detach":             {preparedDetach(), []string{"detach it by force"}, byProgram},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			w.failAt, w.failAfter, w.failUndo = slices.Index(preparedTable()[name].calls, "End")-1, true, true
			w.failure = cyborg.Errorf(cyborg.ErrHardware, "it broke")
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationNeedsOperator, result.State)
			require.Contains(t, result.Error.Message, "undo broke")
			for _, hint := range c.hint {
				require.Contains(t, result.Error.Hint, hint)
			}
			require.NotContains(t, result.Error.Hint, c.not)
		})
	}
}

// TestForcedDetachOfAPreparedHandle: it says that the host has not detached the
// handle.
func TestForcedDetachOfAPreparedHandle(t *testing.T) {
	t.Parallel()
	w := preparedDetach()
	w.work.Forced = "host h1 is silent since noon"
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{
		"handle d0.plain of instance i1 on host h1: nobody checked whether it is still used",
		"handle d0.vf of instance i1 on host h1: it was not detached",
	}, w.outcome.Result["not_done"])
}
