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
		workflows.AttachActivity:        workflows.AttachInput{Addressee: at, Operation: uuid.New(), Target: target(), Handle: workHandle(second)},
		workflows.DetachActivity:        workflows.DetachInput{Addressee: at, Operation: uuid.New(), Target: target(), Handles: []cyborg.WorkHandle{workHandle(handle)}},
		workflows.InstallActivity:       workflows.InstallInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.UninstallActivity:     workflows.InstallInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.ProgramActivity:       workflows.ProgramInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.RestoreActivity:       workflows.RestoreInput{Addressee: at, Operation: uuid.New(), Target: target()},
		workflows.PartitionActivity:     workflows.PartitionInput{Addressee: at, Operation: uuid.New(), Device: deviceTarget(region), Layout: vfs(2)},
		workflows.RestoreLayoutActivity: workflows.RestoreLayoutInput{Addressee: at, Operation: uuid.New(), Device: deviceTarget(region)},
		workflows.CleanActivity:         workflows.CleanInput{Addressee: at, Operation: uuid.New(), Target: target(), Handle: toClean(second, cyborg.CleanReset)},
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

// requireLate requires that an activity is refused because its number is too
// low for something.
func (h *host) requireLate(name string, in any, says string) {
	h.t.Helper()
	require.Contains(h.t, h.refused(cyborg.ErrLate, name, in).Message, says)
}

// A configure that comes after a later one of the same backend changes nothing.
// Other backends do not count.
func TestLateConfigure(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	install := configure(cyborg.ConfigureInstall, "off", "", nil)
	remove := configure(cyborg.ConfigureUninstall, "off", "", nil)
	install.Addressee, remove.Addressee = numbered(5), numbered(7)

	h.must(workflows.ConfigureActivity, install, nil)
	h.must(workflows.ConfigureActivity, install, nil)

	h.startAs(&fate{dieAt: 0})
	require.True(t, h.try(workflows.ConfigureActivity, remove), "the number cannot be written")
	require.NotEqual(t, cyborg.BackendDisabled, h.backends()["off"], "nothing is changed before the number is on the disk")

	h.start()
	h.inventory.Scan(t.Context())
	h.must(workflows.ConfigureActivity, remove, nil)
	h.start()
	h.inventory.Scan(t.Context())
	before := h.inventory.Content()
	h.requireLate(workflows.ConfigureActivity, install, "number 5 comes too late for backend off: this host has seen 7")
	require.Equal(t, before, h.inventory.Content())

	neighbour := configure(cyborg.ConfigureInstall, "gpus", "fake", cyborg.JSONObject{"park": "2xgpu"})
	neighbour.Addressee = numbered(6)
	h.must(workflows.ConfigureActivity, neighbour, nil)
	neighbour.Request.Action = cyborg.ConfigureUninstall
	h.must(workflows.ConfigureActivity, neighbour, nil)

	install.Assignment = 8
	h.must(workflows.ConfigureActivity, install, nil)
}

// The file of Nova's whitelist is not replaced by a write or an undo that comes
// after a later one.
func TestLateWhitelist(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	first, later := whitelist(uuid.New(), region), whitelist(uuid.New(), other)
	first.Addressee, later.Addressee = numbered(5), numbered(7)

	h.must(workflows.WriteWhitelistActivity, later, nil)
	before := h.whitelisted()
	h.start()
	h.requireLate(workflows.WriteWhitelistActivity, first, "number 5 comes too late for the whitelist of Nova: this host has seen 7")
	h.requireLate(workflows.RestoreWhitelistActivity, first, "number 5 comes too late for the whitelist of Nova")
	require.Equal(t, before, h.whitelisted())

	first.Assignment = 8
	h.must(workflows.WriteWhitelistActivity, first, nil)
	require.NotEqual(t, before, h.whitelisted())

	// The number of an undo is on the disk before the file changes.
	before = h.whitelisted()
	first.Assignment = 9
	h.startAs(&fate{dieAt: 0})
	require.True(t, h.try(workflows.RestoreWhitelistActivity, first))
	require.Equal(t, before, h.whitelisted())
	h.start()
	h.must(workflows.RestoreWhitelistActivity, first, nil)
	require.NotEqual(t, before, h.whitelisted())
}

// A write that has begun, and whose next try is refused for its number alone,
// is refused as late: the workflow then goes on with another number.
func TestLateWhitelistThatHasBegun(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	first, later := whitelist(uuid.New(), region), whitelist(uuid.New(), other)
	first.Addressee, later.Addressee = numbered(5), numbered(7)

	h.startAs(&fate{dieAt: 2}) // the journal says that it has begun
	require.True(t, h.try(workflows.WriteWhitelistActivity, first))
	h.start()
	h.must(workflows.WriteWhitelistActivity, later, nil)
	h.requireLate(workflows.WriteWhitelistActivity, first, "this host has seen 7")
	first.Assignment = 8
	h.must(workflows.WriteWhitelistActivity, first, nil)
	require.Len(t, h.whitelisted(), 2)
}

// An image that is brought after something later was done to its deployable is
// not kept.
func TestLateStage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	held := attach(uuid.New(), handle)
	held.Addressee = numbered(6)
	h.must(workflows.AttachActivity, held, nil)

	h.source.image = fpgaImage("far")
	image := cyborg.Image{Source: "https://images.example/far", SHA256: sum(fpgaImage("far")), ID: "far"}
	late := workflows.StageInput{Addressee: numbered(5), Operation: uuid.New(), Target: part(region), Image: image}
	h.requireLate(workflows.StageActivity, late, "number 5 comes too late for "+region)
	_, staged := h.journal.Staged(late.Operation)
	require.False(t, staged)
	require.Zero(t, h.source.asked)

	late.Assignment, late.Image = 7, h.image("new", fpgaImage("new"))
	h.must(workflows.StageActivity, late, nil)
	h.requireLate(workflows.AttachActivity, held, "this host has seen 7")

	// Something later passes while the image comes.
	h.source.meanwhile = func() {
		held.Assignment = 9
		h.must(workflows.AttachActivity, held, nil)
	}
	late.Operation, late.Assignment, late.Image = uuid.New(), 8, image
	h.requireLate(workflows.StageActivity, late, "this host has seen 9")
	_, staged = h.journal.Staged(late.Operation)
	require.False(t, staged)
}
