package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// withImage returns a target that is recorded to have this image loaded.
func withImage(t cyborg.Target, id string) cyborg.Target {
	t.BitstreamID = id
	return t
}

// part is a deployable of the card.
func part(name string) cyborg.Target {
	t := target()
	t.Deployable = name
	return t
}

// stage stages an image for an operation, and returns the input that programs
// it.
func (h *host) stage(op uuid.UUID, deployable, id string) workflows.ProgramInput {
	h.t.Helper()
	image := h.image(id, fpgaImage(id))
	var staged workflows.StageResult
	h.must(workflows.StageActivity, workflows.StageInput{Operation: op, Target: part(deployable), Image: image}, &staged)
	require.Equal(h.t, image.SHA256, staged.SHA256)
	require.Equal(h.t, int64(len(fpgaImage(id))), staged.Size)
	return workflows.ProgramInput{Operation: op, Target: part(deployable), Image: image, SHA256: staged.SHA256}
}

// load stages an image and programs it.
func (h *host) load(op uuid.UUID, deployable, id string) workflows.ProgramResult {
	h.t.Helper()
	var result workflows.ProgramResult
	h.must(workflows.ProgramActivity, h.stage(op, deployable, id), &result)
	return result
}

// loaded returns the image of each region.
func (h *host) loaded() map[string]string {
	ids := map[string]string{}
	for name, state := range h.card().Deployables {
		ids[name] = state.BitstreamID
	}
	return ids
}

// A program can be repeated by a later process, which does not load the image
// again.
func TestProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	op := uuid.New()
	in := h.stage(op, region, "aes")

	var first, again workflows.ProgramResult
	h.must(workflows.ProgramActivity, in, &first)
	require.Equal(t, "aes", first.BitstreamID)
	require.Equal(t, map[string]string{"r0": "aes", "r1": ""}, h.loaded())
	require.Equal(t, "aes", first.Observation.Device.Deployables[0].BitstreamID)

	h.start()
	h.must(workflows.ProgramActivity, in, &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("program"))
}

func TestFailedProgramRestoresThePreviousImage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "old")
	op := uuid.New()
	in := h.stage(op, region, "new")
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	})

	h.refused(cyborg.ErrHardware, workflows.ProgramActivity, in)
	require.Empty(t, h.loaded()["r0"], "the new image was not loaded, and the old one is gone")

	h.start()
	var restored workflows.ChangeResult
	h.must(workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")}, &restored)
	require.Equal(t, "old", h.loaded()["r0"])
	require.Equal(t, "old", restored.Observation.Device.Deployables[0].BitstreamID)
	require.Positive(t, restored.Observation.Sequence)
	h.refused(cyborg.ErrCancelled, workflows.ProgramActivity, in)

	h.load(uuid.New(), region, "newer") // the journal knows what is loaded again
	last := uuid.New()
	in = h.stage(last, region, "newest")
	h.must(workflows.ProgramActivity, in, nil)
	h.must(workflows.RestoreActivity, workflows.RestoreInput{Operation: last, Target: withImage(target(), "newer")}, nil)
	require.Equal(t, "newer", h.loaded()["r0"])
}

// An undo may overtake the program that it undoes. It changes nothing then, and
// the late program is refused.
func TestRestoreBeforeProgramBegan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "old")
	op := uuid.New()
	in := h.stage(op, region, "new")

	h.must(workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")}, nil)
	require.Equal(t, 1, h.fate.count("program"), "nothing had been changed")
	h.refused(cyborg.ErrCancelled, workflows.ProgramActivity, in)
	require.Equal(t, "old", h.loaded()["r0"])
}

// TestRestoreAfterABootBeforeProgramBegan: a boot empties the card while the program
// step has not begun, so no note says what was there. The records say which images
// these were, and the journal has loaded them. An undo that finds them in place touches
// nothing, even where somebody uses them.
func TestRestoreAfterABootBeforeProgramBegan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "left")
	h.load(uuid.New(), other, "right")
	op := uuid.New()
	in := h.stage(op, region, "new")

	h.boot = "boot-2" // the card loses its images with it
	h.start()
	restore := workflows.RestoreInput{
		Operation: op, Target: withImage(target(), "left"), Disturbed: []cyborg.Target{withImage(part(other), "right")},
	}
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, map[string]string{"r0": "left", "r1": "right"}, h.loaded())
	h.refused(cyborg.ErrCancelled, workflows.ProgramActivity, in)

	lose := func() {
		h.edit(func(c *fake.Card) { c.Deployables["r0"].BitstreamID, c.Deployables["r0"].SHA256 = "", "" })
		h.start()
	}
	lose()
	h.use("00fa:01:00.2", "qemu") // a handle of the other region
	restore.Operation = uuid.New()
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, 1, h.fate.count("program"), "what is in place is left alone")
	require.Equal(t, map[string]string{"r0": "left", "r1": "right"}, h.loaded())

	lose()
	restore = workflows.RestoreInput{Operation: uuid.New(), Target: withImage(target(), "by-hand")}
	err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restore)
	require.Contains(t, err.Message, region+" had by-hand and has no image")
	require.Empty(t, h.loaded()["r0"], "it loads no other image instead")
}

// TestRestoreAfterABootOfTheWholeDevice: an image of the whole device comes back where it
// was the last one in every region. Where another region has got an image of its own
// since, it would be replaced, so an operator decides.
func TestRestoreAfterABootOfTheWholeDevice(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		h := newHost(t)
		whole := h.stage(uuid.New(), region, "all")
		whole.Image.WholeDevice = true
		h.must(workflows.ProgramActivity, whole, nil)
		if replaced {
			h.load(uuid.New(), other, "right")
		}

		h.boot = "boot-2"
		h.start()
		restore := workflows.RestoreInput{Operation: uuid.New(), Target: withImage(target(), "all")}
		if replaced {
			h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restore)
			require.Equal(t, map[string]string{"r0": "", "r1": ""}, h.loaded())
			continue
		}
		h.must(workflows.RestoreActivity, restore, nil)
		require.Equal(t, map[string]string{"r0": "all", "r1": "all"}, h.loaded())
	}
}

// An image that this agent did not load cannot be restored. The undo succeeds
// only if the image is still loaded.
func TestRestoreOfAnUnknownImage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	h.edit(func(c *fake.Card) { c.Deployables["r0"].BitstreamID = "from-flash" })

	op := uuid.New()
	in := h.stage(op, region, "new")
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.Before}
	})
	h.refused(cyborg.ErrHardware, workflows.ProgramActivity, in)

	restore := workflows.RestoreInput{Operation: op, Target: withImage(target(), "from-flash")}
	h.must(workflows.RestoreActivity, restore, nil)
	require.Equal(t, "from-flash", h.loaded()["r0"], "it had not been changed")

	restore.Operation = uuid.New()
	in = h.stage(restore.Operation, region, "new")
	h.must(workflows.ProgramActivity, in, nil)
	err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restore)
	require.Contains(t, err.Message, region+" had from-flash and has new")
	require.Contains(t, err.Hint, "Program it")
}

// If somebody loaded another image by hand, then the image that this agent
// loaded before is not what an undo has to restore. The undo fails and leaves
// the region as it is.
func TestImageLoadedByHandIsRestored(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "old")
	h.edit(func(c *fake.Card) { c.Deployables["r0"].BitstreamID = "by-hand" })
	h.start()

	op := uuid.New()
	h.must(workflows.ProgramActivity, h.stage(op, region, "new"), nil)
	err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "by-hand")})
	require.Contains(t, err.Message, "had by-hand and has new")
	require.Equal(t, "new", h.loaded()["r0"], "the undo loads no other image instead")
}

func TestAnImageForTheWholeDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "left")
	h.load(uuid.New(), other, "right")

	op := uuid.New()
	in := h.stage(op, region, "all")
	in.Image.WholeDevice = true
	h.must(workflows.ProgramActivity, in, nil)
	require.Equal(t, map[string]string{"r0": "all", "r1": "all"}, h.loaded())

	h.must(workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "left")}, nil)
	require.Equal(t, map[string]string{"r0": "left", "r1": "right"}, h.loaded(), "both regions get back what they had")
}

// The journal is lost after the target's own image was loaded again, this time
// for the whole device. The target then looks untouched, and only the recorded
// images of the other regions show that there is something to undo.
func TestALostJournalAndAnImageForTheWholeDevice(t *testing.T) {
	t.Parallel()
	for _, loaded := range []bool{false, true} {
		h := newHost(t)
		h.load(uuid.New(), region, "all")
		h.load(uuid.New(), other, "right")

		op := uuid.New()
		in := h.stage(op, region, "all")
		in.Image.WholeDevice = true
		if loaded {
			h.must(workflows.ProgramActivity, in, nil)
		}

		h.lose()
		second := target()
		second.Deployable = other
		restore := workflows.RestoreInput{Operation: op, Target: withImage(target(), "all"), Disturbed: []cyborg.Target{withImage(second, "right")}}

		if !loaded {
			h.must(workflows.RestoreActivity, restore, nil)
			continue
		}
		err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restore)
		require.Contains(t, err.Message, other+" had right and has all")
	}
}

// A driver that rejects an image before a change leaves the old image loaded. A
// rejection after a change is reported as a failure that has to be undone.
func TestRefusedProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "old")
	op := uuid.New()
	in := h.stage(op, region, "new")
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrImageRejected, When: fake.Before}
	})

	h.refused(cyborg.ErrImageRejected, workflows.ProgramActivity, in)
	require.Equal(t, "old", h.loaded()["r0"])

	h.stage(op, region, "new")
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrImageRejected, When: fake.After}
	})
	h.refused(cyborg.ErrHardware, workflows.ProgramActivity, in)
	require.Empty(t, h.loaded()["r0"])

	h.must(workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")}, nil)
	require.Equal(t, "old", h.loaded()["r0"], "the refused try has kept the old image in the journal")
}

// Another image that is on the host is not loaded in the place of the one that was
// staged, whatever the input says: Temporal has carried it.
func TestProgramLoadsWhatWasStaged(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	other := h.stage(uuid.New(), region, "other")
	in := h.stage(uuid.New(), region, "wanted")

	forged := in
	forged.SHA256 = other.SHA256
	err := h.refused(cyborg.ErrImageRejected, workflows.ProgramActivity, forged)
	require.Contains(t, err.Message, other.SHA256)
	require.Zero(t, h.fate.count("program"))

	none := in
	none.SHA256 = "../journal"
	h.refused(cyborg.ErrImageRejected, workflows.ProgramActivity, none)
	_, statErr := os.Stat(filepath.Join(h.dir, "journal"))
	require.NoError(t, statErr)

	h.must(workflows.ProgramActivity, in, nil)
}

// An image that was damaged in the cache is not programmed, and can be staged
// again.
func TestProgramRefusesADamagedImage(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	op := uuid.New()
	in := h.stage(op, region, "new")

	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "cache", in.SHA256), fpgaImage("evil"), 0o600))
	err := h.refused(cyborg.ErrNotStaged, workflows.ProgramActivity, in)
	require.Contains(t, err.Message, "was damaged")
	require.Zero(t, h.fate.count("program"))

	h.load(op, region, "new")
}

// An image that does not fit the target is rejected before anything is changed.
func TestStageChecksTheTarget(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	gpu := h.image("gpu", fake.MakeImage(cyborg.DeviceTypeGPU, "gpu", []byte("x")))
	err := h.refused(cyborg.ErrImageRejected, workflows.StageActivity, workflows.StageInput{Operation: uuid.New(), Target: target(), Image: gpu})
	require.Contains(t, err.Message, "is for a card of type GPU")

	h.must(workflows.ConfigureActivity, workflows.ConfigureInput{Request: cyborg.ConfigureRequest{
		Backend: "plain", Action: cyborg.ConfigureInstall, Driver: "plain",
	}}, nil)
	h.refused(cyborg.ErrUnsupported, workflows.StageActivity, workflows.StageInput{Operation: uuid.New(), Target: plainTarget("plain_0"), Image: gpu})
}

func TestStageFromTheConductor(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.source.image = fpgaImage("remote")
	image := cyborg.Image{Source: "https://images.example/aes", SHA256: sum(h.source.image)}

	op := uuid.New()
	var staged workflows.StageResult
	h.must(workflows.StageActivity, workflows.StageInput{Operation: op, Target: target(), Image: image}, &staged)
	var result workflows.ProgramResult
	h.must(workflows.ProgramActivity, workflows.ProgramInput{Operation: op, Target: target(), Image: image, SHA256: staged.SHA256}, &result)
	require.Equal(t, image.SHA256, result.BitstreamID, "an image without id is known by its checksum")

	h.must(workflows.StageActivity, workflows.StageInput{Operation: uuid.New(), Target: target(), Image: image}, &staged)
	require.Equal(t, 1, h.source.asked, "what is on the host is not fetched again")
}

// While somebody uses a handle that an image would change, the driver is not
// asked to program. An instance may hold the accelerator, as its image may have
// to be loaded again.
func TestProgramInUseIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	in := h.stage(uuid.New(), region, "aes")

	use := func(by string) {
		h.edit(func(c *fake.Card) {
			for _, handle := range c.Deployables["r0"].Handles {
				handle.InUseBy = by
			}
		})
	}

	use("qemu")
	refused := h.refused(cyborg.ErrInUse, workflows.ProgramActivity, in)
	require.Contains(t, refused.Message, "in use by qemu")
	require.Zero(t, h.fate.count("program"))
	require.Equal(t, map[string]string{"r0": "", "r1": ""}, h.loaded())

	use("")
	var result workflows.ProgramResult
	h.must(workflows.ProgramActivity, in, &result)
	require.Equal(t, "aes", result.BitstreamID)
}
