package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// flashing has the images of the card take effect with a power cycle, which each boot is.
func flashing(h *host) {
	h.options["activation"] = "power_cycle"
	h.start()
}

// powerCycle boots the host.
func (h *host) powerCycle() {
	h.t.Helper()
	h.boot += ", next"
	h.start()
}

// requireFlashed requires which image the first region has in effect, and which one is
// pending there.
func (h *host) requireFlashed(inEffect, pending string) {
	h.t.Helper()
	h.inventory.Scan(h.t.Context())
	backends := h.inventory.Content().Backends
	require.NotEmpty(h.t, backends)
	require.NotEmpty(h.t, backends[0].Devices)
	one := backends[0].Devices[0].Deployables[0]
	is := ""
	if one.PendingImage != nil {
		is = one.PendingImage.BitstreamID
	}
	require.Equal(h.t, []string{inEffect, pending}, []string{one.BitstreamID, is}, "in effect, and pending")
}

// flashed is a host whose card has booted from the image old.
func flashed(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	flashing(h)
	h.load(uuid.New(), region, "old")
	h.powerCycle()
	h.requireFlashed("old", "")
	return h
}

// restoreTo is the undo of a program, of a region that had this image as the last one.
func restoreTo(operation uuid.UUID, id string) workflows.RestoreInput {
	return workflows.RestoreInput{Operation: operation, Target: withImage(target(), id)}
}

// TestPendingProgram: a program of an image that takes effect later says so, also when a later
// process repeats it. With the power cycle the image is in effect, and it is the one that the
// undo of the next program brings back.
func TestPendingProgram(t *testing.T) {
	t.Parallel()
	h := flashed(t)
	op := uuid.New()
	in := h.stage(op, region, "new")

	var first, again workflows.ProgramResult
	h.must(workflows.ProgramActivity, in, &first)
	pending := &cyborg.PendingImage{BitstreamID: "new", Until: cyborg.ActivationPowerCycle}
	require.Equal(t, "new", first.BitstreamID)
	require.Equal(t, pending, first.Pending)
	require.Equal(t, "old", first.Observation.Device.Deployables[0].BitstreamID)
	require.Equal(t, pending, first.Observation.Device.Deployables[0].PendingImage)

	h.start()
	h.must(workflows.ProgramActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("program"))
	h.requireFlashed("old", "new")

	h.powerCycle()
	h.requireFlashed("new", "")
	next := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(next, region, "newer"), nil)
	h.requireFlashed("new", "newer")
	h.must(workflows.RestoreActivity, restoreTo(next, "new"), nil)
	h.requireFlashed("new", "")
}

// TestProgramOfWhatIsInEffect: an image that is in effect already is not pending, whatever was
// pending before.
func TestProgramOfWhatIsInEffect(t *testing.T) {
	t.Parallel()
	h := flashed(t)
	h.load(uuid.New(), region, "new")
	result := h.load(uuid.New(), region, "old")
	require.Equal(t, "old", result.BitstreamID)
	require.Nil(t, result.Pending)
	h.requireFlashed("old", "")
}

// TestProgramRepeatedAfterAPowerCycle: the agent dies before or after its driver has loaded the
// image, and the host loses its power. The repeated program finds the image in effect, or
// loads it.
func TestProgramRepeatedAfterAPowerCycle(t *testing.T) {
	t.Parallel()
	for point, inEffect := 0, false; !inEffect; point++ {
		require.Less(t, point, 10, "the image is never loaded")
		h := flashed(t)
		op := uuid.New()
		in := h.stage(op, region, "new")
		h.startAs(&fate{dieAt: point})
		require.True(t, h.try(workflows.ProgramActivity, in))
		pending := h.card().Deployables["r0"].Pending
		inEffect = pending != nil

		h.powerCycle()
		var result workflows.ProgramResult
		h.must(workflows.ProgramActivity, in, &result)
		require.Equal(t, "new", result.BitstreamID)
		require.Equal(t, inEffect, result.Pending == nil)
		if inEffect {
			h.requireFlashed("new", "")
			continue
		}
		h.requireFlashed("old", "new")
	}
}

// TestUndoOfAProgramOverAPendingImage: what was loaded last before, and was not in effect yet,
// is pending again.
func TestUndoOfAProgramOverAPendingImage(t *testing.T) {
	t.Parallel()
	h := flashed(t)
	h.load(uuid.New(), region, "waits")

	op := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(op, region, "new"), nil)
	h.requireFlashed("old", "new")
	h.start()
	var restored workflows.ChangeResult
	h.must(workflows.RestoreActivity, restoreTo(op, "waits"), &restored)
	require.Equal(t, "waits", restored.Observation.Device.Deployables[0].LoadedLast())
	h.requireFlashed("old", "waits")

	// The journal knows it as the image of the region.
	next := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(next, region, "newer"), nil)
	h.must(workflows.RestoreActivity, restoreTo(next, "waits"), nil)
	h.requireFlashed("old", "waits")
	h.powerCycle()
	h.requireFlashed("waits", "")
}

// TestPendingImageIsNotLost: an undo of a program that has never begun finds what was loaded
// last, which is pending, and leaves it alone. What a boot did not bring into effect is loaded
// again.
func TestPendingImageIsNotLost(t *testing.T) {
	t.Parallel()
	h := flashed(t)
	h.load(uuid.New(), region, "waits")
	loaded := h.fate.count("program")

	h.must(workflows.RestoreActivity, restoreTo(uuid.New(), "waits"), nil)
	require.Equal(t, loaded, h.fate.count("program"), "it is there already")
	h.requireFlashed("old", "waits")

	h.edit(func(c *fake.Card) { c.Deployables["r0"].Pending = nil }) // as where the card boots from its spare image
	h.start()
	h.must(workflows.RestoreActivity, restoreTo(uuid.New(), "waits"), nil)
	h.requireFlashed("old", "waits")
}

// TestJournalLostDuringAPendingProgram: without the journal, the undo of what is pending
// succeeds only where the hardware shows the image before as the one that was loaded last.
func TestJournalLostDuringAPendingProgram(t *testing.T) {
	t.Parallel()
	for _, when := range []fake.When{fake.Before, fake.After, ""} {
		h := flashed(t)
		op := uuid.New()
		in := h.stage(op, region, "new")
		if when != "" {
			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrUnavailable, When: when}
			})
		}
		require.Equal(t, when != "", h.try(workflows.ProgramActivity, in))

		h.lose()
		if when == fake.Before {
			h.must(workflows.RestoreActivity, restoreTo(op, "old"), nil)
			h.requireFlashed("old", "")
			continue
		}
		has := map[fake.When]string{fake.After: "half-written", "": "new"}[when]
		err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restoreTo(op, "old"))
		require.Contains(t, err.Message, region+" had old and has "+has)
		h.requireFlashed("old", has)
	}
}

// TestRefusedPendingProgram: a driver that refuses an image before it has written anything has
// changed nothing. One that refuses it in the middle has: the image in effect does not hide
// that.
func TestRefusedPendingProgram(t *testing.T) {
	t.Parallel()
	h := flashed(t)
	fail := func(when fake.When) {
		h.edit(func(c *fake.Card) {
			c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrImageRejected, When: when}
		})
	}
	op := uuid.New()
	in := h.stage(op, region, "new")
	fail(fake.Before)
	h.refused(cyborg.ErrImageRejected, workflows.ProgramActivity, in)
	h.requireFlashed("old", "")

	h.stage(op, region, "new")
	fail(fake.After)
	h.refused(cyborg.ErrHardware, workflows.ProgramActivity, in)
	h.requireFlashed("old", "half-written")
	h.must(workflows.RestoreActivity, restoreTo(op, "old"), nil)
	h.requireFlashed("old", "")
}
