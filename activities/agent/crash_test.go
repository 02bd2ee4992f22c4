package agent_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// crash is an activity to kill at every point, with what must hold after it was
// tried again, and what must hold after it was undone instead.
type crash struct {
	prepare  func(h *host)
	activity string
	input    any
	done     func(t *testing.T, h *host)
	undo     string
	undoing  any
	undone   func(t *testing.T, h *host)
	// late says that after the undo the activity must no longer begin.
	late bool
}

// crashes returns one case for each activity that changes the host.
func crashes() map[string]crash {
	op, before := uuid.New(), uuid.New()

	attached := func(t *testing.T, h *host) {
		t.Helper()
		require.True(t, h.attachedNow(handle))
		require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	}
	detached := func(t *testing.T, h *host) {
		t.Helper()
		require.False(t, h.attachedNow(handle))
		require.Empty(t, h.attachments())
	}

	given := func(t *testing.T, h *host) {
		t.Helper()
		attached(t, h)
		require.Equal(t, prepared(handle).Parameters, h.parametersOf(handle))
	}

	install := workflows.InstallInput{Operation: op, Target: target()}
	loads := func(id string) func(t *testing.T, h *host) {
		return func(t *testing.T, h *host) {
			t.Helper()
			require.Equal(t, id, h.card().Deployables["r0"].BitstreamID)
			require.Equal(t, "beside", h.card().Deployables["r1"].BitstreamID)
		}
	}

	// device is the mediated device that the card has for the handle.
	device := func(id uuid.UUID) func(t *testing.T, h *host) {
		return func(t *testing.T, h *host) {
			t.Helper()
			require.Equal(t, id, h.device(handle))
			require.Equal(t, id != uuid.Nil, h.attachedNow(handle))
		}
	}

	return map[string]crash{
		"install": {
			prepare: func(*host) {}, activity: workflows.InstallActivity, input: install,
			done: func(t *testing.T, h *host) { t.Helper(); require.True(t, h.installed()) },
			undo: workflows.UninstallActivity, undoing: asUndo(install), late: true,
			undone: func(t *testing.T, h *host) { t.Helper(); require.False(t, h.installed()) },
		},
		"retire": {
			prepare: (*host).ready, activity: workflows.UninstallActivity, input: install,
			done: func(t *testing.T, h *host) { t.Helper(); require.False(t, h.installed()) },
			undo: workflows.InstallActivity, undoing: asUndo(install), late: true,
			undone: func(t *testing.T, h *host) { t.Helper(); require.True(t, h.installed()) },
		},
		"attach": {
			prepare: (*host).ready, activity: workflows.AttachActivity, input: attach(op, handle), done: attached,
			undo: workflows.DetachActivity, undoing: undo(detach(op, handle)), undone: detached, late: true,
		},
		"detach": {
			prepare: func(h *host) {
				h.ready()
				h.must(workflows.AttachActivity, attach(before, handle), nil)
			},
			activity: workflows.DetachActivity, input: detach(op, handle), done: detached,
			undo: workflows.AttachActivity, undoing: again(op, handle), undone: attached, late: true,
		},
		"attach for an instance": {
			prepare: preparing, activity: workflows.AttachActivity, input: prepare(op, handle), done: given,
			undo: workflows.DetachActivity, undoing: undo(takeBack(op, handle)), undone: detached, late: true,
		},
		"detach from an instance": {
			prepare: func(h *host) {
				preparing(h)
				h.must(workflows.AttachActivity, prepare(before, handle), nil)
			},
			activity: workflows.DetachActivity, input: takeBack(op, handle), done: detached,
			undo: workflows.AttachActivity, undoing: prepareAgain(op, handle), undone: given, late: true,
		},
		"attach of a mediated device": {
			prepare: mediated, activity: workflows.AttachActivity, input: prepare(op, handle), done: device(prepared(handle).UUID),
			undo: workflows.DetachActivity, undoing: undo(takeBack(op, handle)), undone: device(uuid.Nil), late: true,
		},
		"detach of a mediated device": {
			prepare: func(h *host) {
				mediated(h)
				h.must(workflows.AttachActivity, prepare(before, handle), nil)
			},
			activity: workflows.DetachActivity, input: takeBack(op, handle), done: device(uuid.Nil),
			undo: workflows.AttachActivity, undoing: prepareAgain(op, handle), undone: device(prepared(handle).UUID), late: true,
		},
		"whitelist": {
			prepare:  func(h *host) { h.must(workflows.WriteWhitelistActivity, whitelist(before, region), nil) },
			activity: workflows.WriteWhitelistActivity, input: had(whitelist(op, other), region),
			done: func(t *testing.T, h *host) { t.Helper(); require.Equal(t, []string{third, fourth}, h.whitelisted()) },
			undo: workflows.RestoreWhitelistActivity, undoing: had(whitelist(op, other), region), late: true,
			undone: func(t *testing.T, h *host) { t.Helper(); require.Equal(t, []string{handle, second}, h.whitelisted()) },
		},
		"partition": {
			prepare: func(h *host) {
				h.divisible()
				h.must(workflows.PartitionActivity, partition(before, vfs(2)), nil)
			},
			activity: workflows.PartitionActivity, input: partition(op, vfs(3)),
			done: func(t *testing.T, h *host) { t.Helper(); h.requireDivided(vfs(3), vfs(3)) },
			undo: workflows.RestoreLayoutActivity, undoing: asBefore(op), late: true,
			undone: func(t *testing.T, h *host) { t.Helper(); h.requireDivided(vfs(2), vfs(2)) },
		},
		"program": {
			prepare: func(h *host) {
				h.load(uuid.New(), region, "old")
				h.load(uuid.New(), other, "beside")
				h.stage(op, region, "new")
			},
			activity: workflows.ProgramActivity, input: loading(op, "new"), done: loads("new"),
			undo: workflows.RestoreActivity, undoing: restoreTo(op, "old"),
			undone: loads("old"), late: true,
		},
		"program that takes effect later": {
			prepare: func(h *host) {
				flashing(h)
				h.load(uuid.New(), region, "old")
				h.powerCycle()
				h.stage(op, region, "new")
			},
			activity: workflows.ProgramActivity, input: loading(op, "new"),
			done: func(t *testing.T, h *host) { t.Helper(); h.requireFlashed("old", "new") },
			undo: workflows.RestoreActivity, undoing: restoreTo(op, "old"),
			undone: func(t *testing.T, h *host) { t.Helper(); h.requireFlashed("old", "") }, late: true,
		},
		"program over a pending image": {
			prepare: func(h *host) {
				flashing(h)
				h.load(uuid.New(), region, "old")
				h.powerCycle()
				h.load(uuid.New(), region, "waits")
				h.stage(op, region, "new")
			},
			activity: workflows.ProgramActivity, input: loading(op, "new"),
			done: func(t *testing.T, h *host) { t.Helper(); h.requireFlashed("old", "new") },
			undo: workflows.RestoreActivity, undoing: restoreTo(op, "waits"),
			undone: func(t *testing.T, h *host) { t.Helper(); h.requireFlashed("old", "waits") }, late: true,
		},
	}
}

// loading is the input that loads an image into the first region.
func loading(operation uuid.UUID, id string) workflows.ProgramInput {
	return workflows.ProgramInput{
		Operation: operation, Target: target(), Image: cyborg.Image{Source: "file:" + id, ID: id}, SHA256: sum(fpgaImage(id)),
	}
}

// The agent may be killed before or after each write of its journal and each
// change of its hardware. The next process can always repeat the activity, or
// undo it.
func TestAgentKilledAtEachWrite(t *testing.T) {
	t.Parallel()

	for name := range crashes() {
		for _, how := range []string{"again", "undo", "undo killed as well"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				t.Parallel()
				for point := 0; ; point++ {
					require.Less(t, point, 40, "the activity never gets through")
					if !killedAt(t, crashes()[name], how, point) {
						require.Greater(t, point, 3, "the activity has more points than this")
						return
					}
				}
			})
		}
	}
}

// killedAt kills the agent at one point of an activity, which the next process
// repeats or undoes. It returns false once the point lies behind the activity's
// last one, so that nothing was killed.
func killedAt(t *testing.T, c crash, how string, point int) bool {
	t.Helper()
	at := fmt.Sprintf("killed at point %d", point)
	h := newHost(t)
	c.prepare(h)

	h.startAs(&fate{dieAt: point})
	died := h.try(c.activity, c.input)
	h.start()

	if how == "again" {
		require.Nil(t, h.do(c.activity, c.input, nil), at)
		c.done(t, h)
		return died
	}

	if how == "undo killed as well" {
		h.startAs(&fate{dieAt: point})
		h.try(c.undo, c.undoing)
		h.start()
	}

	require.Nil(t, h.do(c.undo, c.undoing, nil), at)
	c.undone(t, h)
	if c.late {
		h.refused(cyborg.ErrCancelled, c.activity, c.input)
	}
	c.undone(t, h)

	h.start()
	c.undone(t, h)
	return died
}

// The journal is written before the hardware is touched, so a journal that
// cannot be written leaves the hardware as it was.
func TestFullDiskLeavesTheHardwareAlone(t *testing.T) {
	t.Parallel()
	for name, c := range crashes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.inventory.Scan(t.Context())
			c.prepare(h)
			before := h.card()

			h.startAs(&fate{dieAt: 0})
			require.NotNil(t, h.do(c.activity, c.input, nil))
			require.Equal(t, before, h.card())
			require.Empty(t, h.fate.calls)
		})
	}
}

// A step that has completed can be undone, and its undo can be repeated.
func TestUndoOfACompletedStep(t *testing.T) {
	t.Parallel()
	for name, c := range crashes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			c.prepare(h)

			h.must(c.activity, c.input, nil)
			c.done(t, h)

			h.must(c.undo, c.undoing, nil)
			c.undone(t, h)
			h.must(c.undo, c.undoing, nil)
			c.undone(t, h)
		})
	}
}

// An attach that a boot of the host interrupts can be repeated after it.
func TestHostBootDuringAttach(t *testing.T) {
	t.Parallel()
	for point := range 6 {
		h := newHost(t)
		h.ready()
		op := uuid.New()

		h.startAs(&fate{dieAt: point})
		h.try(workflows.AttachActivity, attach(op, handle))
		h.boot = "boot-2"
		h.start()

		h.must(workflows.AttachActivity, attach(op, handle), nil)
		require.True(t, h.attachedNow(handle))
		require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	}
}

// A try that was given up but still runs must not overlap with the undo that
// follows it.
func TestAttemptsDoNotOverlap(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.edit(func(c *fake.Card) { c.Latency[fake.StepAttach] = fake.Duration(400e6) })

	op := uuid.New()
	first := make(chan *cyborg.Error, 1)
	go func() { first <- h.do(workflows.AttachActivity, attach(op, handle), nil) }()
	require.Eventually(t, func() bool { return h.fate.count("attach") == 1 }, 300e9, 1e6)

	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.Nil(t, <-first, "it ended before the undo began")
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
}
