package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// An attach can be repeated, also by a later process, and calls the driver only
// once. A detach gets the note that the driver wrote while it attached.
func TestAttachAndDetach(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	var attached workflows.ChangeResult
	h.must(workflows.AttachActivity, attach(op, handle), &attached)
	require.True(t, h.attachedNow(handle))
	require.Equal(t, card, attached.Observation.Device.Identity)
	require.Equal(t, backend, attached.Observation.Backend)
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	var again workflows.ChangeResult
	h.must(workflows.AttachActivity, attach(op, handle), &again)
	require.Equal(t, attached, again, "a repeated try returns what the first one did")
	require.Equal(t, 1, h.fate.count("attach"))

	h.start()
	h.must(workflows.AttachActivity, attach(op, handle), &again)
	require.Equal(t, attached, again, "also by a later process")
	require.Zero(t, h.fate.count("attach"))

	report, err := h.inventory.Report(t.Context())
	require.NoError(t, err)
	require.Greater(t, report.Sequence, attached.Observation.Sequence)

	var detached workflows.ChangeResult
	h.must(workflows.DetachActivity, detach(uuid.New(), handle), &detached)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
	require.Greater(t, detached.Observation.Sequence, report.Sequence)
	require.Equal(t, []string{`{"handle":"` + handle + `"}`}, h.fate.priors, "the driver's note of the attach, written by an earlier process")
}

// An instance's handle is attached by its hypervisor, never by the agent.
func TestAttachForInstanceIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	in := attach(uuid.New(), handle)
	in.Handle.Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	h.refused(cyborg.ErrInvalid, workflows.AttachActivity, in)
	require.Empty(t, h.attachments())
}

// A target that does not exist, or is no longer what the records say, is
// refused with a message that names what there is.
func TestUnknownTargetsAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	in := attach(uuid.New(), handle)
	in.Target.Deployable = "fake_fpga_9"
	err := h.refused(cyborg.ErrNotFound, workflows.AttachActivity, in)
	require.Contains(t, err.Message, region, "the message names what there is")

	in = attach(uuid.New(), "00fa:09:00.0")
	err = h.refused(cyborg.ErrNotFound, workflows.AttachActivity, in)
	require.Contains(t, err.Message, handle+", "+second)

	in = attach(uuid.New(), handle)
	in.Target.Backend = "nothing"
	err = h.refused(cyborg.ErrNotFound, workflows.AttachActivity, in)
	require.Contains(t, err.Message, "it has: fake, off")

	in.Target.Backend = "off"
	h.refused(cyborg.ErrChanged, workflows.AttachActivity, in)

	in = attach(uuid.New(), handle)
	in.Target.Device = "00fa:02:00.0"
	err = h.refused(cyborg.ErrChanged, workflows.AttachActivity, in)
	require.Contains(t, err.Message, "is now on device "+card)

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDiscover] = fake.Failure{Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.Before, Message: "the bus is stuck"}
	})
	h.start()
	err = h.refused(cyborg.ErrUnavailable, workflows.AttachActivity, attach(uuid.New(), handle))
	require.Contains(t, err.Message, "the bus is stuck")
	require.True(t, err.Kind.Retryable())
	require.Empty(t, h.attachments())
}

// The agent returns an error kind that asks for no undo only where nothing has
// changed. A driver that refuses after it has attached leaves the handle in
// doubt, and the kind is a different one.
func TestRefusedAttach(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepAttach] = fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: fake.Before}
	})

	op := uuid.New()
	h.refused(cyborg.ErrUnsupported, workflows.AttachActivity, attach(op, handle))
	require.Empty(t, h.attachments())
	require.False(t, h.attachedNow(handle))

	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepAttach] = fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: fake.After}
	})
	h.refused(cyborg.ErrHardware, workflows.AttachActivity, attach(op, handle))
	require.True(t, h.attachedNow(handle), "the fake driver has attached before it refuses")
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())

	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
}

// What a driver may have changed before it refused is undone at once, even if
// the handle does not look attached.
func TestRefusedAttachIsUndone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.fate.refuse = cyborg.ErrNotFound
	h.refused(cyborg.ErrNotFound, workflows.AttachActivity, attach(uuid.New(), handle))
	require.Equal(t, []string{"", `{"touched":true}`}, h.fate.priors, "the undo gets the note")
	require.Empty(t, h.attachments())

	op := uuid.New()
	h.fate.meanwhile = func() {
		require.Equal(t, op, h.inventory.Content().Attachments[0].Working)
		h.use(handle, "somebody") // the undo cannot detach what is in use
	}
	h.refused(cyborg.ErrHardware, workflows.AttachActivity, attach(op, handle))
	require.Zero(t, h.inventory.Content().Attachments[0].Working)
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments(), "what could not be undone stays in doubt")
}

// An undo may overtake the try that it undoes. It changes nothing then, and the
// late try is refused.
func TestUndoBeforeTheAttachBegan(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.Zero(t, h.fate.count("detach"), "nothing was done, so there is nothing to undo")

	h.start()
	err := h.refused(cyborg.ErrCancelled, workflows.AttachActivity, attach(op, handle))
	require.Contains(t, err.Message, "comes too late")
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())

	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.True(t, h.attachedNow(handle), "an undo leaves alone what another operation has attached")
}

// A detach of several handles detaches none of them while one is in use.
func TestDetachOfSeveralWhileOneIsInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu (pid 42)"))

	op := uuid.New()
	err := h.refused(cyborg.ErrInUse, workflows.DetachActivity, detach(op, handle, second))
	require.Contains(t, err.Message, "handle "+second+" is in use by qemu (pid 42)")
	require.True(t, h.attachedNow(handle))
	require.Zero(t, h.fate.count("detach"))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone, second: cyborg.AttachmentDone}, h.attachments())

	require.NoError(t, h.bench.Use(t.Context(), card, second, ""))
	h.must(workflows.DetachActivity, detach(op, handle, second), nil)
	require.Empty(t, h.attachments())
}

// For an instance's handle, a detach checks only that nobody on the host uses
// it.
func TestDetachOfAnInstance(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	in := detach(uuid.New(), handle)
	in.Handles[0].Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	h.must(workflows.DetachActivity, in, nil)

	in.Operation = uuid.New()
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, in)
	require.Zero(t, h.fate.count("detach"))
}

// A detach that fails half way is undone by attaching its handles again, as the
// detach workflow does.
func TestStuckDetachIsAttachedAgain(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]fake.When{"before": fake.Before, "after": fake.After} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			first, op := uuid.New(), uuid.New()
			h.must(workflows.AttachActivity, attach(first, handle), nil)
			h.must(workflows.AttachActivity, attach(first, second), nil)

			h.edit(func(c *fake.Card) {
				c.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: when}
			})
			h.refused(cyborg.ErrHardware, workflows.DetachActivity, detach(op, handle, second))
			require.Equal(t, cyborg.AttachmentInDoubt, h.attachments()[handle])

			h.start()
			require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"), "attaching again does not disturb its user")
			h.must(workflows.AttachActivity, again(op, handle), nil)
			h.must(workflows.AttachActivity, again(op, second), nil)
			require.True(t, h.attachedNow(handle))
			require.True(t, h.attachedNow(second))
			for _, a := range h.inventory.Content().Attachments {
				require.Equal(t, cyborg.AttachmentDone, a.State)
				require.Equal(t, first, a.Operation, "it is still the attachment of the operation that made it")
			}

			h.refused(cyborg.ErrCancelled, workflows.DetachActivity, detach(op, handle, second))
			require.NoError(t, h.bench.Use(t.Context(), card, second, ""))
			h.must(workflows.DetachActivity, detach(uuid.New(), handle, second), nil)
			require.Empty(t, h.attachments())
		})
	}
}

// A retry of a detach that finds the handle in use undoes what the first try
// had begun.
func TestDetachRetryFindsTheDeviceInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)

	op := uuid.New()
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDetach] = fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}
	})
	err := h.refused(cyborg.ErrBusy, workflows.DetachActivity, detach(op, handle))
	require.True(t, err.Kind.Retryable())

	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, detach(op, handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
}

// An attach takes over a handle that an earlier operation has attached, with
// that operation's note.
func TestAttachTakesOverAHandle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)

	op := uuid.New() // the records take the handle for free, and gave it to this operation
	h.must(workflows.AttachActivity, attach(op, handle), nil)

	all := h.inventory.Content().Attachments
	require.Len(t, all, 1)
	require.Equal(t, op, all[0].Operation)
	require.Contains(t, h.fate.priors, `{"handle":"`+handle+`"}`, "what the first attach noted is not forgotten")

	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.False(t, h.attachedNow(handle))
}

// A boot of the host loses the attachments of its cards. They are reported as
// lost, and a repeated attach attaches again.
func TestABootUndoesAttachments(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)

	h.boot = "boot-2"
	h.start()
	h.inventory.Scan(t.Context())
	require.False(t, h.attachedNow(handle), "the boot has detached it")
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentLost}, h.attachments())

	h.must(workflows.AttachActivity, attach(op, handle), nil)
	require.True(t, h.attachedNow(handle), "what was done before the boot is done again")
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	require.Equal(t, []string{""}, h.fate.priors, "a note from before the boot is not used")

	h.boot = "boot-3"
	h.start()
	h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
	require.Empty(t, h.attachments())
}

// The handles of a device that has vanished can be detached and retired, so
// that the records do not keep them for ever.
func TestDetachOfAVanishedDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	h.must(workflows.AttachActivity, attach(uuid.New(), second), nil)

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.inventory.Scan(t.Context())
	h.must(workflows.DetachActivity, detach(uuid.New(), second), nil)
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.Empty(t, h.attachments(), "what is gone holds nothing")
	h.must(workflows.UninstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()}, nil)
	h.refused(cyborg.ErrNotFound, workflows.AttachActivity, attach(uuid.New(), handle))

	require.NoError(t, h.bench.Return(t.Context(), card))
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
}

// A driver that cannot attach only hands its handles out, so a boot does not
// undo that.
func TestAttachWithoutAnAttacher(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(workflows.ConfigureActivity, workflows.ConfigureInput{Request: cyborg.ConfigureRequest{
		Host: hostName, Backend: "plain", Action: cyborg.ConfigureInstall, Driver: "plain",
	}}, nil)

	in := workflows.AttachInput{Operation: uuid.New(), Target: plainTarget("plain_0"), Handle: workHandle("/dev/plain")}
	h.must(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: in.Target}, nil)
	h.must(workflows.AttachActivity, in, nil)
	require.Equal(t, map[string]cyborg.AttachmentState{"/dev/plain": cyborg.AttachmentDone}, h.attachments())

	h.boot = "boot-2"
	h.start()
	require.Equal(t, map[string]cyborg.AttachmentState{"/dev/plain": cyborg.AttachmentDone}, h.attachments(), "no boot undoes that")

	out := workflows.DetachInput{Operation: uuid.New(), Target: in.Target, Handles: []cyborg.WorkHandle{in.Handle}}
	h.must(workflows.DetachActivity, out, nil)
	require.Empty(t, h.attachments())
}

// No step may change a device that the host needs for itself.
func TestProtectedDevicesAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.must(workflows.ConfigureActivity, workflows.ConfigureInput{Request: cyborg.ConfigureRequest{
		Backend: "plain", Action: cyborg.ConfigureInstall, Driver: "plain",
	}}, nil)

	protected := plainTarget("plain_1")
	for name, in := range map[string]any{
		workflows.InstallActivity:   workflows.InstallInput{Operation: uuid.New(), Target: protected},
		workflows.UninstallActivity: workflows.InstallInput{Operation: uuid.New(), Target: protected},
		workflows.AttachActivity:    workflows.AttachInput{Operation: uuid.New(), Target: protected, Handle: workHandle("x")},
		workflows.StageActivity:     workflows.StageInput{Operation: uuid.New(), Target: protected},
		workflows.ProgramActivity:   workflows.ProgramInput{Operation: uuid.New(), Target: protected},
	} {
		err := h.refused(cyborg.ErrProtected, name, in)
		require.Contains(t, err.Message, "it has the root file system")
	}
}

// TestUnreadyIsNotGivenAway: neither this host nor an instance gets what is unready
// now, also where the records do not know it yet. Who has it keeps it over a boot and
// a detach that is undone.
func TestUnreadyIsNotGivenAway(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	unready := func(conditions ...cyborg.Condition) {
		t.Helper()
		h.edit(func(card *fake.Card) {
			for _, region := range card.Deployables {
				region.Conditions = conditions
			}
		})
		h.look()
	}
	noLink := cyborg.Condition{Code: "no_link", Level: cyborg.ConditionUnready, Message: "plug the cable in"}

	unready(noLink)
	first := attach(uuid.New(), handle)
	require.Contains(t, h.refused(cyborg.ErrChanged, workflows.AttachActivity, first).Message, "is unready: no_link: plug the cable in")
	h.refused(cyborg.ErrChanged, workflows.CheckUseActivity, checkUse(handle))
	require.Empty(t, h.attachments())

	unready()
	h.must(workflows.AttachActivity, first, nil)
	unready(noLink)
	h.boot = "boot-2"
	h.start()
	h.must(workflows.AttachActivity, first, nil)
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	out := detach(uuid.New(), handle)
	h.must(workflows.DetachActivity, out, nil)
	again := attach(out.Operation, handle)
	again.Undo = true
	h.must(workflows.AttachActivity, again, nil)
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
}
