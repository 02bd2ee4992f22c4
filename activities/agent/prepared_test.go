package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// guest is an instance whose handles the host prepares.
const guest = "5c3cb50b-1c0f-4a5c-8d1c-a0b0b3c1d2e3"

// preparing has the host prepare handles for whoever gets them, with its first region
// in service.
func preparing(h *host) {
	h.options["prepares"] = true
	h.start()
	h.ready()
}

// prepared is a handle that the host prepares for the guest.
func prepared(identity string) cyborg.WorkHandle {
	wanted := workHandle(identity)
	wanted.Holder, wanted.Prepared = cyborg.Holder{Kind: cyborg.HolderInstance, ID: guest}, true
	wanted.Parameters = map[string]string{"mac": "52:54:00:12:34:56", "vlan": "7"}
	return wanted
}

// prepare is the input that prepares a handle for the guest.
func prepare(operation uuid.UUID, identity string) workflows.AttachInput {
	return workflows.AttachInput{Operation: operation, Target: target(), Handle: prepared(identity)}
}

// prepareAgain is the undo of what takes a handle back from the guest.
func prepareAgain(operation uuid.UUID, identity string) workflows.AttachInput {
	in := prepare(operation, identity)
	in.Undo = true
	return in
}

// takeBack is the input that takes a handle back from the guest.
func takeBack(operation uuid.UUID, identity string) workflows.DetachInput {
	return workflows.DetachInput{Operation: operation, Target: target(), Handles: []cyborg.WorkHandle{prepared(identity)}}
}

// parametersOf are those that the card has for a handle.
func (h *host) parametersOf(identity string) map[string]string {
	h.t.Helper()
	return h.card().Deployables["r0"].Handles[identity].Parameters
}

// TestPrepareForAnInstance: where a deployable is prepared for everybody, its driver
// attaches for an instance, with what was chosen, and the journal has it. The detach
// leaves nothing of that.
func TestPrepareForAnInstance(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)

	op := uuid.New()
	h.must(workflows.CheckUseActivity, workflows.CheckUseInput{
		Operation: op, Given: []cyborg.GivenHandles{{Target: target(), Handles: []cyborg.WorkHandle{prepared(handle)}}},
	}, nil)
	var first, again workflows.ChangeResult
	h.must(workflows.AttachActivity, prepare(op, handle), &first)
	require.True(t, h.attachedNow(handle))
	require.Equal(t, prepared(handle).Parameters, h.parametersOf(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	h.start()
	h.must(workflows.AttachActivity, prepare(op, handle), &again)
	require.Equal(t, first, again)
	require.Zero(t, h.fate.count("attach"))

	err := h.refused(cyborg.ErrInUse, workflows.CheckUseActivity, checkUse(handle))
	require.Contains(t, err.Message, "still attached to instance "+guest+" by operation "+op.String())

	// The guest uses it, and keeps it.
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, takeBack(uuid.New(), handle))
	require.Equal(t, prepared(handle).Parameters, h.parametersOf(handle))
	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))

	h.must(workflows.DetachActivity, takeBack(uuid.New(), handle), nil)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.parametersOf(handle))
	require.Empty(t, h.attachments())
}

// TestPrepareWithWrongParameters: the driver refuses what it does not know, and nothing
// has changed.
func TestPrepareWithWrongParameters(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	in := prepare(uuid.New(), handle)
	in.Handle.Parameters = map[string]string{"colour": "red"}
	err := h.refused(cyborg.ErrInvalid, workflows.AttachActivity, in)
	require.Contains(t, err.Message, "colour")
	require.Empty(t, h.attachments())
	require.False(t, h.attachedNow(handle))
}

// TestPrepareWhatNeedsNothing: where the deployable is prepared for nobody any more, the
// handle changes hands in the journal alone, unless something was chosen for it. Once the
// deployable is prepared again, so is the handle.
func TestPrepareWhatNeedsNothing(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op := uuid.New()
	h.refused(cyborg.ErrInvalid, workflows.AttachActivity, prepare(op, handle))
	require.Empty(t, h.attachments())

	in := prepare(op, handle)
	in.Handle.Parameters = nil
	h.must(workflows.AttachActivity, in, nil)
	require.False(t, h.attachedNow(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	h.options["prepares"] = true
	h.start()
	wanted := entry(op, handle, workflows.GoalAttached)
	wanted.Handle = prepared(handle)
	require.Equal(t, map[string]bool{handle: true}, h.settle(wanted).Changed)
	require.Equal(t, wanted.Handle.Parameters, h.parametersOf(handle))
	h.options["prepares"] = false
	h.start()

	h.must(workflows.DetachActivity, takeBack(uuid.New(), handle), nil)
	require.Empty(t, h.attachments())
}

// TestPreparedOnlyInTheRecords: what the host must prepare is not given out as it is, for
// want of an up to date server.
func TestPreparedOnlyInTheRecords(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	h.refused(cyborg.ErrChanged, workflows.CheckUseActivity, checkUse(handle))
	require.Empty(t, h.attachments())

	h.edit(func(c *fake.Card) { // by hand
		c.Deployables["r0"].Handles[handle].Attached, c.Deployables["r0"].Handles[handle].Holder = true, cyborg.HolderInstance
	})
	h.must(workflows.CheckUseActivity, checkUse(handle), nil)
}

// TestGuestThatStartsBeforeItsHostIsReady: the driver decides whether a handle can be
// prepared for its guest while the guest runs. What a stranger uses stays as it is.
func TestGuestThatStartsBeforeItsHostIsReady(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	op := uuid.New()
	h.must(workflows.AttachActivity, prepare(op, handle), nil)
	h.boot = "boot-2"
	h.start()
	h.inventory.Scan(t.Context()) // the card notices the boot, which ends all uses
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))

	wanted := entry(op, handle, workflows.GoalAttached)
	wanted.Handle = prepared(handle)
	wanted.Handle.Holder.ID = uuid.NewString()
	require.Contains(t, h.settle(wanted).Errors[handle], "in use by qemu")
	wanted.Handle = prepared(handle)
	require.Empty(t, h.settle(wanted).Errors)
	require.Equal(t, wanted.Handle.Parameters, h.parametersOf(handle))
}

// TestTakeBackForAnOldServer: one of release 0.1 does not say that a handle was
// prepared. The journal does.
func TestTakeBackForAnOldServer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)

	in := takeBack(uuid.New(), handle)
	in.Handles[0].Prepared = false
	h.must(workflows.DetachActivity, in, nil)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
}

// TestTakeBackWithoutAJournal: the hardware is asked, and brought back.
func TestTakeBackWithoutAJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)
	h.lose()

	h.must(workflows.DetachActivity, takeBack(uuid.New(), handle), nil)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.parametersOf(handle))
}

// TestSettleWhatIsPrepared: after a boot the handle is prepared again as the records
// say, and what they call free is taken back. Nobody takes from the guest what the
// journal itself calls the guest's.
func TestSettleWhatIsPrepared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	op := uuid.New()
	h.must(workflows.AttachActivity, prepare(op, handle), nil)

	h.boot = "boot-2"
	h.start()
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentLost}, h.attachments())

	wanted := entry(op, handle, workflows.GoalAttached)
	wanted.Handle = prepared(handle)
	require.Equal(t, map[string]bool{handle: true}, h.settle(wanted).Changed)
	require.True(t, h.attachedNow(handle))
	require.Equal(t, wanted.Handle.Parameters, h.parametersOf(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	require.Equal(t, map[string]bool{handle: false}, h.settle(wanted).Changed)

	given := entry(op, handle, workflows.GoalGivenUp)
	require.Contains(t, h.settle(given).Errors[handle], "has prepared it for instance "+guest)
	require.True(t, h.attachedNow(handle))

	wanted.Want = workflows.GoalDetached
	require.Equal(t, map[string]bool{handle: true}, h.settle(wanted).Changed)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.parametersOf(handle))
	require.Empty(t, h.attachments())
}

// TestSettleWhatIsPreparedWithoutAJournal: what the records call free is taken back also
// where only the hardware knows of it, unless somebody uses it.
func TestSettleWhatIsPreparedWithoutAJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	op := uuid.New()
	h.must(workflows.AttachActivity, prepare(op, handle), nil)
	h.lose()

	wanted := entry(op, handle, workflows.GoalDetached)
	wanted.Handle = prepared(handle)
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	require.Contains(t, h.settle(wanted).Errors[handle], "in use by qemu")
	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	h.settle(wanted)
	require.False(t, h.attachedNow(handle))
}

// TestPreparedHandlesAfterAVerification: what somebody on the host undoes is noticed.
func TestPreparedHandlesAfterAVerification(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	preparing(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[handle].Attached = false })
	h.inventory.Scan(t.Context())
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())
}
