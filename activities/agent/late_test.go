package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// numbered is the part of a step that has its assignment number.
func numbered(number int64) workflows.Addressee { return workflows.Addressee{Assignment: number} }

// settleLate settles an attachment with the number of a decision.
func (h *host) settleLate(number int64, entry workflows.SettleEntry) workflows.SettleResult {
	h.t.Helper()
	var result workflows.SettleResult
	h.must(workflows.SettleActivity, workflows.SettleInput{
		Addressee: numbered(number), Host: hostName, Entries: []workflows.SettleEntry{entry},
	}, &result)
	return result
}

// Reconcile decides that a boot has to be followed by an attach. Before that
// arrives, the holder gives the handle back. The late decision must not attach
// what nobody holds any more, also where the agent was started anew since.
func TestSettleAfterADetachIsTooLate(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		h := newHost(t)
		h.ready()
		held, given := attach(uuid.New(), handle), detach(uuid.New(), handle)
		held.Addressee, given.Addressee = numbered(10), numbered(12)

		h.must(workflows.AttachActivity, held, nil)
		h.must(workflows.DetachActivity, given, nil)
		if restart {
			h.start()
		}

		calls := len(h.fate.calls)
		late := h.settleLate(11, entry(held.Operation, handle, workflows.GoalAttached))
		require.Contains(t, late.Errors[handle], "number 11 comes too late for "+region+": this host has seen 12")
		require.Empty(t, late.Settled)
		require.False(t, h.attachedNow(handle))
		require.Len(t, h.fate.calls, calls)

		require.Empty(t, h.settleLate(13, entry(held.Operation, handle, workflows.GoalAttached)).Errors, "a decision of after the detach counts")
		require.True(t, h.attachedNow(handle))
	}
}

// A step that comes after a later one for the same deployable changes nothing;
// the same number again is a repeat, and 0 that of a release without numbers.
func TestLateStepsAreRefused(t *testing.T) {
	t.Parallel()
	at := numbered(5)
	for name, input := range map[string]any{
		workflows.AttachActivity:    workflows.AttachInput{Addressee: at, Operation: uuid.New(), Target: target(), Handle: workHandle(second)},
		workflows.DetachActivity:    workflows.DetachInput{Addressee: at, Operation: uuid.New(), Target: target(), Handles: []cyborg.WorkHandle{workHandle(handle)}},
		workflows.InstallActivity:   workflows.InstallInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.UninstallActivity: workflows.InstallInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.ProgramActivity:   workflows.ProgramInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.RestoreActivity:   workflows.RestoreInput{Addressee: at, Operation: uuid.New(), Target: target()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			held := attach(uuid.New(), handle)
			held.Addressee = numbered(6)
			h.must(workflows.AttachActivity, held, nil)

			before, calls := h.card(), len(h.fate.calls)
			failure := h.refused(cyborg.ErrLate, name, input)
			require.Contains(t, failure.Message, "number 5 comes too late for "+region)
			require.Equal(t, before, h.card())
			require.Len(t, h.fate.calls, calls)

			h.must(workflows.AttachActivity, held, nil)
			held.Addressee = numbered(0)
			h.must(workflows.AttachActivity, held, nil)
		})
	}
}

// A detach of a device that was pulled has nothing to do and nothing to write.
// What was decided before it must not attach the handle when the device is back.
func TestDetachOfAGoneDeviceKeepsItsNumber(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	held, given := attach(uuid.New(), handle), detach(uuid.New(), second)
	held.Addressee, given.Addressee = numbered(3), numbered(9)
	h.must(workflows.AttachActivity, held, nil)

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.inventory.Scan(t.Context())
	h.must(workflows.DetachActivity, given, nil)
	h.start()
	require.NoError(t, h.bench.Return(t.Context(), card))

	late := h.settleLate(8, entry(held.Operation, second, workflows.GoalAttached))
	require.Contains(t, late.Errors[second], "this host has seen 9")
}

// An image for the whole device comes after a later image for another of its
// regions. It is refused, though nothing later was seen for its own region.
func TestLateImageForANeighbour(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	whole, neighbour := h.stage(uuid.New(), region, "whole"), h.stage(uuid.New(), other, "new")
	whole.Image.WholeDevice = true
	whole.Addressee, neighbour.Addressee = numbered(4), numbered(5)

	h.must(workflows.ProgramActivity, neighbour, nil)
	before := h.loaded()
	failure := h.refused(cyborg.ErrLate, workflows.ProgramActivity, whole)
	require.Contains(t, failure.Message, "number 4 comes too late for "+other)
	require.Equal(t, before, h.loaded())

	whole.Assignment = 6
	h.must(workflows.ProgramActivity, whole, nil)
	require.NotEqual(t, before, h.loaded())
}

// A restore comes after a later image for a region that it would fill as well,
// of which only its note knows. It is refused.
func TestLateRestore(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "first")
	whole := h.stage(uuid.New(), region, "whole")
	whole.Image.WholeDevice, whole.Addressee = true, numbered(4)
	h.must(workflows.ProgramActivity, whole, nil)
	later := h.stage(uuid.New(), other, "new")
	later.Addressee = numbered(8)
	h.must(workflows.ProgramActivity, later, nil)

	restore := workflows.RestoreInput{Addressee: numbered(4), Operation: whole.Operation, Target: withImage(target(), "first")}
	failure := h.refused(cyborg.ErrLate, workflows.RestoreActivity, restore)
	require.Contains(t, failure.Message, "number 4 comes too late for "+other)
	require.Equal(t, map[string]string{"r0": "whole", "r1": "new"}, h.loaded())
}

// The records give a handle to an instance, and the journal has it attached to
// the host. The host gives it up, unless somebody uses it; where the journal
// does not have it any more, what the hardware shows is the instance's.
func TestSettleWhatWasGivenToAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	given := entry(op, handle, workflows.GoalGivenUp)

	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	require.Contains(t, h.settle(given).Errors[handle], "in use by qemu")
	require.True(t, h.attachedNow(handle))

	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	require.Empty(t, h.settle(given).Errors)
	require.False(t, h.attachedNow(handle))

	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[handle].Attached = true })
	require.Empty(t, h.settle(given).Errors)
	require.True(t, h.attachedNow(handle))
}
