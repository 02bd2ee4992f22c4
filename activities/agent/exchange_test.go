package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// otherSerial is the serial number of the card that comes into the place of the
// host's.
const otherSerial = "of another card"

// look has the agent look at its hardware, and returns the fingerprint of the card.
func (h *host) look() cyborg.Fingerprint {
	h.t.Helper()
	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, nil)
	return h.inventory.Content().Backends[0].Devices[0].Fingerprint
}

// exchange puts another card of the model into the place of the host's, as new but
// for the edit, and returns its fingerprint.
func (h *host) exchange(edit func(c *fake.Card)) cyborg.Fingerprint {
	h.t.Helper()
	require.NoError(h.t, h.bench.Exchange(h.t.Context(), card, "", otherSerial))
	h.edit(edit)
	return h.look()
}

// asAttached makes the other card look like the one that was attached.
func asAttached(c *fake.Card) {
	c.Deployables["r0"].Installed = true
	c.Deployables["r0"].Handles[handle].Attached = true
}

// of sets the fingerprint that the records know.
func of(target cyborg.Target, fingerprint cyborg.Fingerprint) cyborg.Target {
	target.Fingerprint = fingerprint
	return target
}

// TestStepsOnAnotherCard takes every step for a card in whose place there is
// another one. Nothing is done to that one: what begins is refused, and what takes
// away has nothing to take.
func TestStepsOnAnotherCard(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	programming := h.stage(op, region, "aes")
	was := of(target(), h.look())
	require.NotEmpty(t, was.Fingerprint.Serial)

	install := workflows.InstallInput{Operation: uuid.New(), Target: was}
	attaching, detaching, using := attach(uuid.New(), handle), detach(uuid.New(), handle), checkUse(handle)
	attaching.Target, detaching.Target, using.Given[0].Target = was, was, was
	programming.Target = was
	staging := workflows.StageInput{Operation: uuid.New(), Target: was, Image: programming.Image}
	now := h.exchange(asAttached)
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	before, calls := h.card(), len(h.fate.calls)
	for name, in := range map[string]any{
		workflows.InstallActivity: install, workflows.AttachActivity: attaching, workflows.CheckUseActivity: using,
		workflows.ProgramActivity: programming, workflows.StageActivity: staging,
	} {
		err := h.refused(cyborg.ErrChanged, name, in)
		require.Contains(t, err.Message, "there is now another card ("+now.String()+") in the place of "+card+" ("+was.Fingerprint.String()+")")
		require.NotEmpty(t, err.Hint)
	}
	h.refused(cyborg.ErrChanged, workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: was})

	h.must(workflows.DetachActivity, detaching, nil)
	h.must(workflows.DetachActivity, undo(detaching), nil)
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: was}, nil)
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: install.Operation, Target: was, Undo: true}, nil)
	require.Equal(t, before, h.card())
	require.Len(t, h.fate.calls, calls)
}

// TestDetachOfAnotherCard takes back what was attached to a card that was
// exchanged, in each way. The journal forgets it, and the other card is not
// touched: neither where the records know which card it was, nor where only the
// journal does.
func TestDetachOfAnotherCard(t *testing.T) {
	t.Parallel()
	op := uuid.New()
	for name, take := range map[string]func(h *host, was cyborg.Target){
		"detach": func(h *host, was cyborg.Target) {
			in := detach(uuid.New(), handle)
			in.Target = was
			h.must(workflows.DetachActivity, in, nil)
		},
		"undo of the attach": func(h *host, was cyborg.Target) {
			in := undo(detach(op, handle))
			in.Target = was
			h.must(workflows.DetachActivity, in, nil)
		},
		"settle": func(h *host, was cyborg.Target) {
			one := entry(op, handle, workflows.GoalDetached)
			one.Fingerprint = was.Fingerprint
			result := h.settle(one)
			require.Empty(h.t, result.Errors)
			require.Equal(h.t, map[string]bool{handle: true}, result.Changed)
			if one.Fingerprint != (cyborg.Fingerprint{}) {
				require.Empty(h.t, result.Observations, "what is there now is another device")
			}
			require.Equal(h.t, map[string]bool{handle: false}, h.settle(one).Changed)
		},
		"given up": func(h *host, was cyborg.Target) {
			one := entry(op, handle, workflows.GoalGivenUp)
			one.Fingerprint = was.Fingerprint
			require.Empty(h.t, h.settle(one).Errors)
		},
	} {
		for _, recorded := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newHost(t)
				h.ready()
				was := of(target(), h.look())
				in := attach(op, handle)
				in.Target = was
				h.must(workflows.AttachActivity, in, nil)
				if !recorded {
					was.Fingerprint = cyborg.Fingerprint{}
				}

				h.exchange(asAttached)
				require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())
				require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
				if name == "settle" && !recorded { // the repeat finds no entry, and then the hardware counts
					require.NoError(t, h.bench.Edit(t.Context(), card, func(c *fake.Card) { *c.Deployables["r0"].Handles[handle] = fake.Handle{} }))
				}
				before := h.card()
				take(h, was)
				require.Equal(t, before, h.card())
				require.Zero(t, h.fate.count("detach"))
				require.Empty(t, h.attachments())
			})
		}
	}
}

// TestAnotherCardIsNotGivenToTheHolder: Reconcile, a repeated attach and the undo of
// a detach bring back an attachment, and not to another card.
func TestAnotherCardIsNotGivenToTheHolder(t *testing.T) {
	t.Parallel()
	for _, recorded := range []bool{true, false} {
		h := newHost(t)
		h.ready()
		was := of(target(), h.look())
		in := attach(uuid.New(), handle)
		in.Target = was
		h.must(workflows.AttachActivity, in, nil)
		begun := attach(uuid.New(), second)
		begun.Target = was
		h.edit(func(c *fake.Card) {
			c.Fail[fake.StepAttach] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.After}
		})
		h.refused(cyborg.ErrBusy, workflows.AttachActivity, begun)
		taken := detach(uuid.New(), handle)
		taken.Target = was
		h.edit(func(c *fake.Card) {
			c.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}
		})
		h.refused(cyborg.ErrBusy, workflows.DetachActivity, taken)

		wanted := entry(in.Operation, handle, workflows.GoalAttached)
		back := again(taken.Operation, handle)
		back.Target = was
		if recorded {
			wanted.Fingerprint = was.Fingerprint
		} else {
			begun.Target, back.Target = target(), target()
		}

		h.exchange(func(c *fake.Card) { c.Deployables["r0"].Installed = true })
		calls := h.fate.count("attach")
		result := h.settle(wanted)
		require.Contains(t, result.Errors[handle], "there is now another card")
		require.Empty(t, result.Settled)
		h.refused(cyborg.ErrChanged, workflows.AttachActivity, back)
		h.refused(cyborg.ErrHardware, workflows.AttachActivity, begun) // its first try may have changed something, so it is undone
		require.Equal(t, calls, h.fate.count("attach"))
		require.False(t, h.attachedNow(handle))

		// The former card is put back, without anything attached to it.
		require.NoError(t, h.bench.Exchange(t.Context(), card, "", ""))
		h.edit(func(c *fake.Card) { c.Deployables["r0"].Installed = true })
		h.look()
		require.Empty(t, h.settle(wanted).Errors)
		require.True(t, h.attachedNow(handle))
	}
}

// TestAttachOfAnotherCard attaches another card for a holder of its own. The driver
// does not get the note of the former card, and a late detach of that one takes
// nothing from the new holder.
func TestAttachOfAnotherCard(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	was := of(target(), h.look())
	former := attach(uuid.New(), handle)
	former.Target = was
	h.must(workflows.AttachActivity, former, nil)

	now := of(target(), h.exchange(func(c *fake.Card) { c.Deployables["r0"].Installed = true }))
	using := checkUse(handle)
	using.Given[0].Target = now
	h.must(workflows.CheckUseActivity, using, nil)
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: now}, nil)
	h.must(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: now}, nil)

	in := attach(uuid.New(), handle)
	in.Target = now
	h.must(workflows.AttachActivity, in, nil)
	require.Empty(t, h.fate.priors[len(h.fate.priors)-1])
	require.True(t, h.attachedNow(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	late := detach(former.Operation, handle)
	late.Target = was
	h.must(workflows.DetachActivity, late, nil)
	h.must(workflows.DetachActivity, undo(late), nil)
	require.True(t, h.attachedNow(handle))
	known, _ := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: handle})
	require.Equal(t, in.Operation, known.Operation)
}

// TestBootWithAnotherCard: the card is exchanged while the machine is off.
func TestBootWithAnotherCard(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	wanted := entry(op, handle, workflows.GoalAttached)
	wanted.Fingerprint = h.look()
	in := attach(op, handle)
	in.Target.Fingerprint = wanted.Fingerprint
	h.must(workflows.AttachActivity, in, nil)

	h.boot = "boot-2"
	require.NoError(t, h.bench.Exchange(t.Context(), card, "fa11", otherSerial))
	h.start()
	h.look()
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentLost}, h.attachments())
	require.Contains(t, h.settle(wanted).Errors[handle], "there is now another card (abcd:fa11, serial "+otherSerial+")")
	require.Empty(t, h.fate.calls)

	wanted.Want = workflows.GoalDetached
	require.Empty(t, h.settle(wanted).Errors)
	require.Empty(t, h.fate.calls)
	require.Empty(t, h.attachments())
}

// failPrograms makes the next image fail after the card has lost the one before.
func (h *host) failPrograms() {
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.After}
	})
}

// TestImagesOfAnotherCard: what was loaded into the former card is not loaded into
// another one, also where the records do not know that.
func TestImagesOfAnotherCard(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.load(uuid.New(), region, "old")
	failed := h.stage(uuid.New(), region, "new")
	h.failPrograms()
	h.refused(cyborg.ErrBusy, workflows.ProgramActivity, failed)

	h.exchange(func(*fake.Card) {})
	programs := h.fate.count("program")
	h.refused(cyborg.ErrChanged, workflows.RestoreActivity, workflows.RestoreInput{Operation: failed.Operation, Target: target()})
	require.Equal(t, programs, h.fate.count("program"))
}

// TestAnotherCardsImageOfTheSameName: somebody else has programmed another card
// with an image of the same id as the one that the former card had.
func TestAnotherCardsImageOfTheSameName(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{true, false} {
		h := newHost(t)
		h.load(uuid.New(), region, "old")
		h.exchange(func(c *fake.Card) { c.Deployables["r0"].BitstreamID = "old" })

		op := uuid.New()
		in := h.stage(op, region, "new")
		if begun {
			h.failPrograms()
			h.refused(cyborg.ErrBusy, workflows.ProgramActivity, in)
		} else {
			h.edit(func(c *fake.Card) { c.Deployables["r0"].BitstreamID = "" }) // as at a boot
		}
		err := h.refused(cyborg.ErrHardware, workflows.RestoreActivity, workflows.RestoreInput{Operation: op, Target: withImage(target(), "old")})
		require.Contains(t, err.Message, "what was loaded before is not back", "nobody has the image that this card had")
	}
}

// TestSerialOfACardThatSlept: the journal has the serial number also of a card that
// did not tell it before it was attached.
func TestSerialOfACardThatSlept(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.asleep = true
	h.ready()
	require.Equal(t, cyborg.Fingerprint{Model: "abcd:fa01"}, h.look())
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)

	known, ok := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: handle})
	require.True(t, ok)
	require.Equal(t, h.look(), cyborg.Fingerprint(known.Fingerprint))
	require.NotEmpty(t, known.Fingerprint.Serial)

	h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
	require.Empty(t, h.look().Serial)
}

// asleepOther puts another card of the model into the place of the host's, which
// tells its serial number only while it is attached.
func (h *host) asleepOther() {
	h.t.Helper()
	h.asleep = true
	require.Empty(h.t, h.exchange(func(c *fake.Card) { c.Deployables["r0"].Installed = true }).Serial)
}

// TestStepsOnAnotherCardThatSleeps: a look does not wake the card, so it cannot see
// that it is another one. The driver can, and gets the recorded serial number.
func TestStepsOnAnotherCardThatSleeps(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	was := of(target(), h.look())
	taken := attach(uuid.New(), second)
	taken.Target = was
	h.must(workflows.AttachActivity, taken, nil)

	programming := h.stage(uuid.New(), region, "aes")
	programming.Target = was
	attaching, using := attach(uuid.New(), handle), checkUse(handle)
	attaching.Target, using.Given[0].Target = was, was
	h.asleepOther()
	before := h.card()
	for name, in := range map[string]any{
		workflows.InstallActivity: workflows.InstallInput{Operation: uuid.New(), Target: was}, workflows.AttachActivity: attaching,
		workflows.CheckUseActivity: using, workflows.ProgramActivity: programming,
	} {
		h.refused(cyborg.ErrChanged, name, in)
	}
	require.Equal(t, []string{second}, keys(h.attachments()))

	wanted := entry(taken.Operation, second, workflows.GoalAttached)
	wanted.Fingerprint = was.Fingerprint
	require.Contains(t, h.settle(wanted).Errors[second], "there is now another card")

	back := detach(uuid.New(), second)
	back.Target = was
	h.must(workflows.DetachActivity, back, nil)
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: was}, nil)
	require.Equal(t, before, h.card())
	require.Empty(t, h.attachments())
}

// TestLateDetachFromACardThatSleeps: the detach of a former card leaves the entry of
// the one that is there now, also where that one does not tell which it is.
func TestLateDetachFromACardThatSleeps(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	late := detach(uuid.New(), second)
	late.Target = of(target(), h.look())
	in := attach(uuid.New(), second)
	in.Target = of(target(), h.exchange(func(c *fake.Card) { c.Deployables["r0"].Installed = true }))
	h.must(workflows.AttachActivity, in, nil)

	h.asleep = true
	require.Empty(t, h.look().Serial)
	h.must(workflows.DetachActivity, late, nil)
	require.True(t, h.attachedNow(second))
	require.Equal(t, map[string]cyborg.AttachmentState{second: cyborg.AttachmentDone}, h.attachments())
}

// TestDriverThatDoesNotCompare: an attach wakes another card, and only then the
// agent sees which one it is. It takes the handle back, unless somebody uses it.
func TestDriverThatDoesNotCompare(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		used  bool
		after map[string]cyborg.AttachmentState
	}{
		"unused": {after: map[string]cyborg.AttachmentState{}},
		"used":   {used: true, after: map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCarelessHost(t)
			in := attach(uuid.New(), handle)
			in.Target = of(target(), h.look())
			h.asleepOther()
			h.blind = true
			h.after = func() {
				if c.used {
					require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
				}
			}

			err := h.do(workflows.AttachActivity, in, nil)
			require.NotNil(t, err)
			require.Contains(t, err.Message, "there is now another card")
			require.Equal(t, c.used, err.Kind == cyborg.ErrHardware, "what is left is to be undone: %s", err)
			require.Equal(t, c.used, h.attachedNow(handle))
			require.Equal(t, c.after, h.attachments())

			h.must(workflows.DetachActivity, undo(workflows.DetachInput{Operation: in.Operation, Target: in.Target, Handles: []cyborg.WorkHandle{in.Handle}}), nil)
			require.Equal(t, c.used, h.attachedNow(handle), "it is another card, and its user keeps it")
			require.Empty(t, h.attachments())
			h.untouched()
		})
	}
}

// TestSettleWithADriverThatDoesNotCompare is the same for Reconcile. The attachment
// stays in doubt, because the former card may come back.
func TestSettleWithADriverThatDoesNotCompare(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	in := attach(uuid.New(), handle)
	in.Target = of(target(), h.look())
	h.must(workflows.AttachActivity, in, nil)
	h.asleepOther()
	h.blind = true

	wanted := entry(in.Operation, handle, workflows.GoalAttached)
	wanted.Fingerprint = in.Target.Fingerprint
	result := h.settle(wanted)
	require.Contains(t, result.Errors[handle], "there is now another card")
	require.Empty(t, result.Observations)
	require.False(t, h.attachedNow(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())
}

// TestOtherStepsWithADriverThatDoesNotCompare: a card that is installed or programmed
// shows afterwards that it is another one. That is no success.
func TestOtherStepsWithADriverThatDoesNotCompare(t *testing.T) {
	t.Parallel()
	for _, name := range []string{workflows.InstallActivity, workflows.ProgramActivity} {
		h := newHost(t)
		h.ready()
		programming := h.stage(uuid.New(), region, "aes")
		programming.Target = of(target(), h.look())
		in := map[string]any{
			workflows.ProgramActivity: programming,
			workflows.InstallActivity: workflows.InstallInput{Operation: uuid.New(), Target: programming.Target},
		}
		h.asleepOther()
		h.blind, h.after = true, func() { h.asleep = false }
		require.Contains(t, h.refused(cyborg.ErrHardware, name, in[name]).Message, "there is now another card")
		_, known := h.loadedNow()
		require.False(t, known)
	}
}

// loadedNow returns what the journal has of the image in the host's first region.
func (h *host) loadedNow() (journal.Loaded, bool) {
	h.t.Helper()
	set := h.inventory.Content().Backends[0].Devices[0].Deployables[0].ProgramSet
	return h.journal.Loaded(journal.RegionKey{Backend: backend, Device: card, Region: "set " + set})
}

// TestImageOfACardThatSleeps: the journal knows into which card an image went, also
// where that one sleeps again.
func TestImageOfACardThatSleeps(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	programming := h.stage(uuid.New(), region, "aes")
	programming.Target = of(target(), h.look())
	h.asleep = true
	h.must(workflows.ProgramActivity, programming, nil)
	loaded, known := h.loadedNow()
	require.True(t, known)
	require.Equal(t, programming.Target.Fingerprint, cyborg.Fingerprint(loaded.Fingerprint))
}

// TestSettleKeepsTheSerial: Reconcile attaches a card again that sleeps. The journal
// keeps its serial number, and learns it where it had none.
func TestSettleKeepsTheSerial(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ slept, recorded bool }{
		"known to the journal": {}, "known to the records": {recorded: true}, "known to nobody": {slept: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			h.asleep = c.slept
			in := attach(uuid.New(), second) // which does not wake the card
			in.Target = of(target(), h.look())
			h.must(workflows.AttachActivity, in, nil)
			wanted := entry(in.Operation, second, workflows.GoalAttached)
			if c.recorded {
				wanted.Fingerprint = in.Target.Fingerprint
			}

			h.asleep = true
			h.edit(func(c *fake.Card) { *c.Deployables["r0"].Handles[second] = fake.Handle{} })
			require.Empty(t, h.look().Serial)
			if c.slept {
				h.after = func() { h.asleep = false }
			}
			require.Empty(t, h.settle(wanted).Errors)
			known, _ := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: second})
			require.NotEmpty(t, known.Fingerprint.Serial)
		})
	}
}

// TestACardThatWasWokenUpIsReported: a driver wakes a card to find out which one it
// is. What it has found is known at once, before the card sleeps again.
func TestACardThatWasWokenUpIsReported(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		workflows.InstallActivity, workflows.AttachActivity, workflows.CheckUseActivity, workflows.ProgramActivity, workflows.UninstallActivity,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			was := of(target(), h.look())
			attaching, using := attach(uuid.New(), handle), checkUse(handle)
			programming := h.stage(uuid.New(), region, "aes")
			attaching.Target, using.Given[0].Target, programming.Target = was, was, was
			install := workflows.InstallInput{Operation: uuid.New(), Target: was}
			h.asleepOther()
			for len(h.inventory.Changes()) > 0 {
				<-h.inventory.Changes()
			}

			h.wakes = true
			if name == workflows.UninstallActivity {
				var result workflows.ChangeResult
				h.must(name, install, &result)
				require.Positive(t, result.Observation.Sequence, "the former card counts as uninstalled")
				require.Equal(t, otherSerial, result.Observation.Device.Fingerprint.Serial)
				require.True(t, h.card().Deployables["r0"].Installed)
			} else {
				h.refused(cyborg.ErrChanged, name, map[string]any{
					workflows.InstallActivity: install, workflows.AttachActivity: attaching,
					workflows.CheckUseActivity: using, workflows.ProgramActivity: programming,
				}[name])
			}

			require.Equal(t, otherSerial, h.inventory.Content().Backends[0].Devices[0].Fingerprint.Serial)
			require.NotEmpty(t, h.inventory.Changes(), "it is reported soon")
		})
	}
}

// attachOther attaches another card that sleeps, with a driver that does not compare
// and whose detach then fails, in place of the host's.
func attachOther(t *testing.T) (*host, workflows.AttachInput) {
	t.Helper()
	h := newHost(t)
	h.ready()
	in := attach(uuid.New(), handle)
	in.Target = of(target(), h.look())
	h.asleepOther()
	h.blind = true
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}
	})
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.AttachActivity, in).Message, "there is now another card")
	require.True(t, h.attachedNow(handle))
	return h, in
}

// TestUndoFromAnotherCard: what was attached to another card could not be taken back
// at once. The undo of the attach does that, with the note of that card.
func TestUndoFromAnotherCard(t *testing.T) {
	t.Parallel()
	for _, sleeps := range []bool{false, true} {
		h, in := attachOther(t)
		known, _ := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: handle})
		require.Equal(t, otherSerial, known.Fingerprint.Serial)
		require.Equal(t, journal.InDoubt, known.State)
		require.NotEmpty(t, known.Note)

		back := undo(detach(in.Operation, handle))
		back.Target = in.Target
		h.edit(func(c *fake.Card) {
			c.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}
		})
		h.refused(cyborg.ErrBusy, workflows.DetachActivity, back)
		require.Equal(t, []string{handle}, keys(h.attachments()))

		if sleeps { // it was detached meanwhile, and does not tell which card it is
			h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[handle].Attached = false })
			require.Empty(t, h.look().Serial)
		}
		h.must(workflows.DetachActivity, back, nil)
		require.False(t, h.attachedNow(handle))
		require.Empty(t, h.attachments())
		require.Equal(t, string(known.Note), h.fate.priors[len(h.fate.priors)-1])
		h.must(workflows.DetachActivity, back, nil)
	}
}

// TestUndoFromACardThatWasExchangedAgain: the other card is gone, too. Nothing is
// done to the third one.
func TestUndoFromACardThatWasExchangedAgain(t *testing.T) {
	t.Parallel()
	h, in := attachOther(t)
	h.asleep = false
	require.NoError(t, h.bench.Exchange(t.Context(), card, "", "of a third card"))
	h.edit(asAttached)
	h.look()
	calls := h.fate.count("detach")

	back := undo(detach(in.Operation, handle))
	back.Target = in.Target
	h.must(workflows.DetachActivity, back, nil)
	require.True(t, h.attachedNow(handle))
	require.Equal(t, calls, h.fate.count("detach"))
	require.Empty(t, h.attachments())
}

// TestAttachOfAnotherCardIsNoRefusalWhereItWasAttached: the journal has the handle
// attached before. It has been detached since, so not all is as before.
func TestAttachOfAnotherCardIsNoRefusalWhereItWasAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	before := attach(uuid.New(), second) // which does not wake the card
	before.Target = of(target(), h.look())
	h.must(workflows.AttachActivity, before, nil)
	h.blind, h.asleep = true, true
	require.Empty(t, h.exchange(func(c *fake.Card) {
		c.Deployables["r0"].Installed = true
		c.Deployables["r0"].Handles[second].Attached = true
	}).Serial)
	h.after = func() { h.asleep = false }

	in := attach(uuid.New(), second)
	in.Target = before.Target
	require.Contains(t, h.refused(cyborg.ErrHardware, workflows.AttachActivity, in).Message, "there is now another card")
	require.False(t, h.attachedNow(second))
	known, _ := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: second})
	require.Equal(t, journal.InDoubt, known.State)
}
