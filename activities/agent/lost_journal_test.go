package agent_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// lose ends the agent's process, empties its state directory and starts another
// process. The hardware stays as it is.
func (h *host) lose() {
	h.t.Helper()
	names, err := os.ReadDir(h.dir)
	require.NoError(h.t, err)
	for _, name := range names {
		if !slices.Contains([]string{"park", "boot_id", "images"}, name.Name()) {
			require.NoError(h.t, os.RemoveAll(filepath.Join(h.dir, name.Name())))
		}
	}
	h.start()
}

// again is an attach that undoes a detach of the same operation.
func again(operation uuid.UUID, identity string) workflows.AttachInput {
	in := attach(operation, identity)
	in.Undo = true
	return in
}

// The first try of a step is killed at each of its points, or completes, and
// then the journal is lost. The step can still be repeated or undone.
func TestJournalLostAtEachPoint(t *testing.T) {
	t.Parallel()
	for name, c := range crashes() {
		if name == "partition" || c.activity == workflows.ProgramActivity {
			continue // nobody else knows what was there before; they have tests of their own
		}
		for _, how := range []string{"again", "undo"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				for point, killed := 0, true; killed; point++ {
					h := newHost(t)
					c.prepare(h)
					h.startAs(&fate{dieAt: point})
					killed = h.try(c.activity, c.input)
					h.lose()

					if how == "again" {
						h.must(c.activity, c.input, nil)
						c.done(t, h)
						continue
					}

					h.must(c.undo, c.undoing, nil)
					c.undone(t, h)
					require.Equal(t, c.late, h.do(c.activity, c.input, nil) != nil, "what is undone does not begin any more")
				}
			})
		}
	}
}

// An undo detaches what the hardware has attached even if the journal does not
// know of it, unless somebody uses it.
func TestJournalLostBeforeAnUndo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)

	h.lose()
	require.Empty(t, h.attachments())

	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.refused(cyborg.ErrHardware, workflows.DetachActivity, undo(detach(op, handle)))
	require.True(t, h.attachedNow(handle))

	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
}

// The journal is lost after the first of two handles was detached. When the
// retry finds the second handle in use, the workflow can still attach both
// again.
func TestJournalLostDuringADetach(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)

	op := uuid.New()
	h.startAs(&fate{dieAt: 4}) // the first handle is detached by then
	require.True(t, h.try(workflows.DetachActivity, detach(op, handle, second)))
	require.False(t, h.attachedNow(handle))
	require.True(t, h.attachedNow(second))

	h.lose()
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, detach(op, handle, second))

	h.must(workflows.AttachActivity, again(op, handle), nil)
	h.must(workflows.AttachActivity, again(op, second), nil)
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone, second: cyborg.AttachmentDone}, h.attachments())
	h.refused(cyborg.ErrCancelled, workflows.DetachActivity, detach(op, handle, second))
}

// Without the journal nobody knows which image was loaded before. A retry
// therefore does not program, and the undo succeeds only where the hardware
// shows the old image.
func TestJournalLostDuringAProgram(t *testing.T) {
	t.Parallel()
	for _, when := range []fake.When{fake.Before, fake.After} {
		t.Run(string(when), func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.load(uuid.New(), region, "old")
			op := uuid.New()
			in := h.stage(op, region, "new")
			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrUnavailable, When: when}
			})

			h.refused(cyborg.ErrUnavailable, workflows.ProgramActivity, in)
			before := h.loaded()["r0"]

			h.lose()
			h.stage(uuid.New(), region, "new") // by another operation, so that the image is there
			err := h.refused(cyborg.ErrNotStaged, workflows.ProgramActivity, in)
			require.Contains(t, err.Message, "lost its journal")
			require.Equal(t, before, h.loaded()["r0"], "it is not touched")

			restore := workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")}
			if before == "old" {
				h.must(workflows.RestoreActivity, restore, nil)
			} else {
				h.refused(cyborg.ErrHardware, workflows.RestoreActivity, restore)
			}

			h.refused(cyborg.ErrCancelled, workflows.ProgramActivity, in)
			last := uuid.New()
			h.must(workflows.ProgramActivity, h.stage(last, region, "new"), nil)
			require.Equal(t, "new", h.loaded()["r0"])
		})
	}
}

// A host that does not have the staged image any more says so and touches nothing.
// The image can be staged again for the same operation, and loaded then.
func TestProgramWithoutTheStagedImage(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]func(h *host){
		"the journal is lost": (*host).lose,
		"the image is lost":   func(h *host) { require.NoError(h.t, os.RemoveAll(filepath.Join(h.dir, "cache"))); h.start() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.load(uuid.New(), region, "old")
			op := uuid.New()
			in := h.stage(op, region, "new")

			loses(h)
			err := h.refused(cyborg.ErrNotStaged, workflows.ProgramActivity, in)
			require.True(t, err.Kind.Refusal(), "there is nothing to undo")
			require.Equal(t, "old", h.loaded()["r0"])
			require.Zero(t, h.fate.count("program"))

			require.Equal(t, in, h.stage(op, region, "new"))
			h.must(workflows.ProgramActivity, in, nil)
			require.Equal(t, "new", h.loaded()["r0"])
		})
	}
}
