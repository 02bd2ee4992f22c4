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

// mediated makes the handles mediated devices, which the host makes for whoever gets them,
// with the first region in service.
func mediated(h *host) {
	h.options["mediated"] = true
	preparing(h)
}

// device returns the UUID of the mediated device that a handle of the first region has.
func (h *host) device(identity string) uuid.UUID {
	h.t.Helper()
	return h.card().Deployables["r0"].Handles[identity].UUID
}

// known returns what the journal has of a handle.
func (h *host) known(identity string) journal.Attachment {
	h.t.Helper()
	entry, known := h.journal.Attachment(journal.AttachmentKey{Backend: backend, Handle: identity})
	require.True(h.t, known)
	return entry
}

// TestMediatedDeviceHasTheUUIDOfItsHandle: the driver makes the device under the UUID that the
// records have for the handle, and the journal keeps it. What is detached is what was attached,
// also where the records know the handle under another UUID by then.
func TestMediatedDeviceHasTheUUIDOfItsHandle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)
	require.Equal(t, prepared(handle).UUID, h.device(handle))
	require.Equal(t, prepared(handle).UUID, h.known(handle).HandleUUID)

	h.start()
	h.inventory.Scan(t.Context())
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	in := takeBack(uuid.New(), handle)
	in.Handles[0].UUID = uuid.New()
	h.must(workflows.DetachActivity, in, nil)
	require.Equal(t, uuid.Nil, h.device(handle))
	require.False(t, h.attachedNow(handle))
}

// TestDeviceOfAnotherUUIDIsNotAttached: a scan doubts an attachment whose device was made anew
// by somebody, and settling makes it right.
func TestDeviceOfAnotherUUIDIsNotAttached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	op := uuid.New()
	h.must(workflows.AttachActivity, prepare(op, handle), nil)
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[handle].UUID = uuid.New() })
	h.inventory.Scan(t.Context())
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())

	want := entry(op, handle, workflows.GoalAttached)
	want.Handle = prepared(handle)
	require.Empty(t, h.settle(want).Errors)
	require.Equal(t, want.Handle.UUID, h.device(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
}

// TestMediatedDeviceAfterABoot: a boot removes the device, and settling makes it again, under
// the same UUID.
func TestMediatedDeviceAfterABoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	op := uuid.New()
	h.must(workflows.AttachActivity, prepare(op, handle), nil)
	h.powerCycle()
	h.inventory.Scan(t.Context())
	require.Equal(t, uuid.Nil, h.device(handle))

	want := entry(op, handle, workflows.GoalAttached)
	want.Handle = prepared(handle)
	require.Empty(t, h.settle(want).Errors)
	require.Equal(t, want.Handle.UUID, h.device(handle))
}

// TestAttachmentOfAnEarlierAgent: an entry of the journal without a UUID is about whatever
// device is there.
func TestAttachmentOfAnEarlierAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)
	old := h.known(handle)
	old.HandleUUID = uuid.Nil
	require.NoError(t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{old}}))

	h.start()
	require.Equal(t, uuid.Nil, h.known(handle).HandleUUID)
	h.inventory.Scan(t.Context())
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	h.must(workflows.DetachActivity, takeBack(uuid.New(), handle), nil)
	require.Equal(t, uuid.Nil, h.device(handle))
}

// TestDeviceOfAStrangerIsLeftAlone: where the journal knows nothing, a handle that the records
// have given back, or of which an attach is undone, is taken back under its own UUID only.
func TestDeviceOfAStrangerIsLeftAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	stranger := uuid.New()
	put := func(device uuid.UUID) {
		h.edit(func(c *fake.Card) {
			one := c.Deployables["r0"].Handles[handle]
			one.Attached, one.Holder, one.UUID = true, cyborg.HolderInstance, device
		})
	}
	back := entry(uuid.New(), handle, workflows.GoalDetached)
	back.Handle = prepared(handle)
	undoing := undo(takeBack(uuid.New(), handle))

	put(stranger)
	require.Empty(t, h.settle(back).Errors)
	h.must(workflows.DetachActivity, undoing, nil)
	require.Equal(t, stranger, h.device(handle))

	put(back.Handle.UUID)
	require.Empty(t, h.settle(back).Errors)
	require.Equal(t, uuid.Nil, h.device(handle))
	put(back.Handle.UUID)
	undoing.Operation = uuid.New()
	h.must(workflows.DetachActivity, undoing, nil)
	require.Equal(t, uuid.Nil, h.device(handle))
}

// TestDetachLeavesAnotherDevice: where somebody has put a device of another UUID in the place
// of the one that was attached, there is nothing left to detach.
func TestDetachLeavesAnotherDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	h.must(workflows.AttachActivity, prepare(uuid.New(), handle), nil)
	stranger := uuid.New()
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[handle].UUID = stranger })

	h.must(workflows.DetachActivity, takeBack(uuid.New(), handle), nil)
	require.Equal(t, stranger, h.device(handle))
	require.Empty(t, h.attachments())
}

// TestHandleUnderAnotherUUIDIsNotPrepared: the records do not know yet that the host prepares a
// handle. It is given out where the device is there all the same, under its own UUID.
func TestHandleUnderAnotherUUIDIsNotPrepared(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	mediated(h)
	wanted := prepared(handle)
	wanted.Prepared = false
	look := workflows.CheckUseInput{Operation: uuid.New(), Given: []cyborg.GivenHandles{{Target: target(), Handles: []cyborg.WorkHandle{wanted}}}}

	for _, device := range []uuid.UUID{uuid.New(), wanted.UUID} {
		h.edit(func(c *fake.Card) {
			one := c.Deployables["r0"].Handles[handle]
			one.Attached, one.Holder, one.UUID = true, cyborg.HolderInstance, device
		})
		if device == wanted.UUID {
			h.must(workflows.CheckUseActivity, look, nil)
			continue
		}
		h.refused(cyborg.ErrChanged, workflows.CheckUseActivity, look)
	}
}
