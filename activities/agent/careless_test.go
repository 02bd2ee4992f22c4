package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// A driver may forget to look who uses a device. The agent looks by itself, so
// nothing is taken from anybody also with a careless driver. The cards note what
// is.

// newCarelessHost is newHost with a driver that refuses nothing because of a
// user. The first region is in service.
func newCarelessHost(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.options["careless"] = true
	h.start()
	h.ready()
	return h
}

// use lets somebody use a handle; an empty name ends that.
func (h *host) use(identity, by string) {
	h.t.Helper()
	require.NoError(h.t, h.bench.Use(h.t.Context(), card, identity, by))
}

// untouched requires that the cards have noted nothing.
func (h *host) untouched() {
	h.t.Helper()
	trips, err := h.bench.Trips()
	require.NoError(h.t, err)
	require.Empty(h.t, trips)
}

// TestAnAttachTakesNothingFromAnUnknownUser: the journal knows nothing of the
// handle, and somebody uses it.
func TestAnAttachTakesNothingFromAnUnknownUser(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.use(handle, "qemu (pid 42)")

	op := uuid.New()
	err := h.refused(cyborg.ErrInUse, workflows.AttachActivity, attach(op, handle))
	require.Contains(t, err.Message, "qemu (pid 42)")
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments(), "the workflow undoes nothing after a refusal")
	h.untouched()

	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)
	h.use(handle, "")
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	require.True(t, h.attachedNow(handle))
}

// TestAnAttachedHandleWithAnUnknownUserIsNotHandedOut: the hardware has it
// attached, and the journal does not know it. An earlier try of the same attach
// may have done that, so the error is no refusal.
func TestAnAttachedHandleWithAnUnknownUserIsNotHandedOut(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.lose()
	h.use(handle, "qemu")

	op := uuid.New()
	h.refused(cyborg.ErrHardware, workflows.AttachActivity, attach(op, handle))
	h.refused(cyborg.ErrHardware, workflows.DetachActivity, undo(detach(op, handle)))
	require.True(t, h.attachedNow(handle))
	h.untouched()
}

// TestAnAttachDoesNotBeginAgainUnderAUser: a boot has taken away what the journal
// has, and somebody uses the handle before it is attached again.
func TestAnAttachDoesNotBeginAgainUnderAUser(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	h.boot = "boot-2"
	h.start()
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil) // the card notices the boot
	h.use(handle, "qemu")

	result := h.settle(entry(op, handle, workflows.GoalAttached))
	require.Contains(t, result.Errors[handle], "in use by qemu")
	h.refused(cyborg.ErrInUse, workflows.AttachActivity, again(uuid.New(), handle))
	require.False(t, h.attachedNow(handle))
	h.untouched()

	h.use(handle, "")
	require.Empty(t, h.settle(entry(op, handle, workflows.GoalAttached)).Errors)
	require.True(t, h.attachedNow(handle))
}

// TestSettlingTakesNothingFromAnUnknownUser: the journal is lost, and the records
// say that a handle is attached which is not, or free although it is attached.
func TestSettlingTakesNothingFromAnUnknownUser(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, second), nil)
	h.lose()
	h.use(handle, "qemu")
	h.use(second, "its holder")

	result := h.settle(entry(uuid.New(), handle, workflows.GoalAttached), entry(op, second, workflows.GoalDetached))
	require.Contains(t, result.Errors[handle], "in use by qemu")
	require.Contains(t, result.Errors[second], "in use by its holder")
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())

	// Who holds it may use it: only the journal is corrected.
	require.Empty(t, h.settle(entry(op, second, workflows.GoalAttached)).Errors)
	require.Equal(t, map[string]cyborg.AttachmentState{second: cyborg.AttachmentDone}, h.attachments())
	h.untouched()
}

// TestAnUndoTakesNothingFromAUser: Temporal sends the undo of an attach that has
// long ended, and the undo of an image.
func TestAnUndoTakesNothingFromAUser(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	h.use(handle, "its holder")
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, undo(detach(op, handle)))
	require.True(t, h.attachedNow(handle))
	h.untouched()

	h.use(handle, "")
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.False(t, h.attachedNow(handle))

	h.load(uuid.New(), region, "old")
	load := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(load, region, "new"), nil)
	h.use(handle, "qemu")
	restore := workflows.RestoreInput{Operation: load, Target: withImage(target(), "old")}
	h.refused(cyborg.ErrInUse, workflows.RestoreActivity, restore)
	require.Equal(t, "new", h.loaded()["r0"])
	h.untouched()

	h.use(handle, "")
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, "old", h.loaded()["r0"])
}

// TestAnUndoIsRepeatedWhereTheDeviceIsAway: that a driver does not find the device
// does not mean that the image is missing, without which the undo would end.
func TestAnUndoIsRepeatedWhereTheDeviceIsAway(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.load(uuid.New(), region, "old")
	load := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(load, region, "new"), nil)

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrNotFound, When: fake.Before}
	})
	restore := workflows.RestoreInput{Operation: load, Target: withImage(target(), "old")}
	h.refused(cyborg.ErrBusy, workflows.RestoreActivity, restore)
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, "old", h.loaded()["r0"])
}

// TestAnUndoLooksAtEachPartThatItFills: an image for the whole device has failed,
// and each region gets its own back, of which somebody uses the other one.
func TestAnUndoLooksAtEachPartThatItFills(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.load(uuid.New(), region, "left")
	h.load(uuid.New(), other, "right")

	op := uuid.New()
	in := h.stage(op, region, "all")
	in.Image.WholeDevice = true
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	})
	h.refused(cyborg.ErrHardware, workflows.ProgramActivity, in)

	const ofOther = "00fa:01:00.2"
	h.use(ofOther, "qemu")
	restore := workflows.RestoreInput{Operation: op, Target: withImage(target(), "left")}
	err := h.refused(cyborg.ErrInUse, workflows.RestoreActivity, restore)
	require.Contains(t, err.Message, "an image for "+other+" would change "+ofOther)
	require.Empty(t, h.loaded()["r1"])
	h.untouched()

	h.use(ofOther, "")
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, map[string]string{"r0": "left", "r1": "right"}, h.loaded())
}

// TestAnUndoLooksWhereTheIDIsTheSame: two images have one id, so what is read back
// does not tell that the old one is gone.
func TestAnUndoLooksWhereTheIDIsTheSame(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.load(uuid.New(), region, "old")

	op := uuid.New()
	in := h.stage(op, region, "new")
	in.Image.ID = "old"
	h.must(workflows.ProgramActivity, in, nil)
	loaded := h.card().Deployables["r0"].SHA256

	h.use(handle, "qemu")
	restore := workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")}
	h.refused(cyborg.ErrInUse, workflows.RestoreActivity, restore)
	require.Equal(t, loaded, h.card().Deployables["r0"].SHA256)
	h.untouched()

	h.use(handle, "")
	h.must(workflows.RestoreActivity, restore, nil)
	require.NotEqual(t, loaded, h.card().Deployables["r0"].SHA256)
}

// TestOtherStepsTakeNothingFromAUser: a detach, an image, and an uninstall.
func TestOtherStepsTakeNothingFromAUser(t *testing.T) {
	t.Parallel()
	h := newCarelessHost(t)
	h.use(handle, "qemu")
	h.refused(cyborg.ErrInUse, workflows.ProgramActivity, h.stage(uuid.New(), region, "new"))
	h.refused(cyborg.ErrInUse, workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()})

	h.use(handle, "")
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.use(handle, "its holder")
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, detach(uuid.New(), handle))
	h.untouched()

	h.edit(func(c *fake.Card) { require.True(t, c.Deployables["r0"].Installed) })
}
