package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// entry is one attachment that the records doubt, with what they want it to be.
func entry(op uuid.UUID, identity string, want workflows.AttachmentGoal) workflows.SettleEntry {
	return workflows.SettleEntry{Backend: backend, Deployable: region, Handle: workHandle(identity), Operation: op, Want: want}
}

// settle settles attachments and returns what became of them.
func (h *host) settle(entries ...workflows.SettleEntry) workflows.SettleResult {
	h.t.Helper()
	var result workflows.SettleResult
	h.must(workflows.SettleActivity, workflows.SettleInput{Host: hostName, Entries: entries}, &result)
	return result
}

// Settling brings each attachment into the state that the records want, and can
// be repeated.
func TestSettle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	one, two := uuid.New(), uuid.New()
	h.must(workflows.AttachActivity, attach(one, handle), nil)
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepAttach] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	})
	h.refused(cyborg.ErrHardware, workflows.AttachActivity, attach(two, second))

	// The records have given the first handle back, and keep the second one, which
	// is in doubt.
	entries := []workflows.SettleEntry{entry(one, handle, workflows.GoalDetached), entry(two, second, workflows.GoalAttached)}
	result := h.settle(entries...)
	require.Equal(t, entries, result.Settled)
	require.Empty(t, result.Errors)
	require.Equal(t, map[string]bool{handle: true, second: true}, result.Changed)
	require.Len(t, result.Observations, 2)
	require.Equal(t, card, result.Observations[1].Device.Identity)
	require.Less(t, result.Observations[0].Sequence, result.Observations[1].Sequence)
	require.False(t, h.attachedNow(handle))
	require.True(t, h.attachedNow(second))
	require.Equal(t, map[string]cyborg.AttachmentState{second: cyborg.AttachmentDone}, h.attachments())

	calls := len(h.fate.calls)
	again := h.settle(entries...)
	require.Equal(t, entries, again.Settled, "it may be repeated")
	require.Equal(t, map[string]bool{handle: false, second: false}, again.Changed)
	require.Empty(t, again.Observations, "what the host reports is as new as that")
	require.Len(t, h.fate.calls, calls, "and there is nothing left to do")
}

// After a boot nothing is attached. Settling attaches what the records want
// attached, and forgets the rest.
func TestSettleAfterABoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	one, two := uuid.New(), uuid.New()
	h.must(workflows.AttachActivity, attach(one, handle), nil)
	h.must(workflows.AttachActivity, attach(two, second), nil)

	h.boot = "boot-2"
	h.start()

	result := h.settle(entry(one, handle, workflows.GoalDetached), entry(two, second, workflows.GoalAttached))
	require.Len(t, result.Settled, 2)
	require.True(t, h.attachedNow(second))
	require.Equal(t, map[string]cyborg.AttachmentState{second: cyborg.AttachmentDone}, h.attachments())
}

// Settling detaches neither what a newer operation has attached nor what
// somebody uses.
func TestSettleRefusesNewerOrUsedAttachments(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op, newer := uuid.New(), uuid.New()
	h.must(workflows.AttachActivity, attach(newer, handle), nil)
	result := h.settle(entry(op, handle, workflows.GoalDetached))
	require.Contains(t, result.Errors[handle], "operation "+newer.String()+" has attached it since")
	require.True(t, h.attachedNow(handle))

	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	result = h.settle(entry(newer, handle, workflows.GoalDetached))
	require.Contains(t, result.Errors[handle], "in use by qemu")
	require.True(t, h.attachedNow(handle))
}

// The records doubt an attachment of an agent that has lost its state
// directory. It is settled by what the hardware shows.
func TestSettleWithoutAJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()

	op := uuid.New()
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[second].Attached = true })
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	require.Contains(t, h.settle(entry(op, second, workflows.GoalDetached)).Errors[second], "in use by qemu")
	require.True(t, h.attachedNow(second))

	require.NoError(t, h.bench.Use(t.Context(), card, second, ""))
	require.Equal(t, map[string]bool{second: true}, h.settle(entry(op, second, workflows.GoalDetached)).Changed)
	require.False(t, h.attachedNow(second))
	require.Empty(t, h.attachments())

	require.Empty(t, h.settle(entry(op, second, workflows.GoalAttached)).Errors)
	require.True(t, h.attachedNow(second))
}

// Records and hardware agree that a handle is attached, and only the journal
// does not know it. The journal learns of it, and the driver is not called.
func TestSettleWithoutAJournalEntry(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()

	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.lose()

	require.Equal(t, map[string]bool{handle: true}, h.settle(entry(op, handle, workflows.GoalAttached)).Changed)
	require.Empty(t, h.fate.calls, "nobody touches what is in use")
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
	require.Equal(t, op, h.inventory.Content().Attachments[0].Operation)

	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
	require.False(t, h.attachedNow(handle))
}

// On a device that has vanished, a handle counts as detached and cannot be
// attached. A handle of an instance was only handed out, so it is settled all
// the same.
func TestSettleOfVanishedDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()

	op := uuid.New()
	h.must(workflows.AttachActivity, attach(op, handle), nil)
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.start()

	wantBack := entry(op, handle, workflows.GoalAttached)
	instance := entry(op, second, workflows.GoalAttached)
	instance.Handle.Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	result := h.settle(wantBack, instance)
	require.Contains(t, result.Errors[handle], "has no deployable")
	require.Equal(t, []workflows.SettleEntry{instance}, result.Settled, "a handle of an instance was only handed out")

	require.Equal(t, map[string]bool{second: false}, result.Changed)

	result = h.settle(entry(op, handle, workflows.GoalDetached))
	require.Empty(t, result.Errors)
	require.Equal(t, map[string]bool{handle: true}, result.Changed)
	require.Empty(t, result.Observations, "there is nothing to be seen")
	require.Empty(t, h.attachments())
	require.Equal(t, map[string]bool{handle: false}, h.settle(entry(op, handle, workflows.GoalDetached)).Changed)
}

func TestSettleAssignsTheRecordedOperation(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	first := uuid.New()
	h.must(workflows.AttachActivity, attach(first, handle), nil)

	recorded := uuid.New()
	result := h.settle(entry(recorded, handle, workflows.GoalAttached))
	require.Empty(t, result.Errors)
	require.Equal(t, recorded, h.inventory.Content().Attachments[0].Operation, "the attachment belongs to the recorded operation")
	require.True(t, h.attachedNow(handle))
}

// A handle of an instance was never attached by the agent, so settling does not
// detach it. It only requires that nobody uses the handle any more.
func TestSettleOfAnInstancesHandle(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.edit(func(c *fake.Card) { c.Deployables["r0"].Handles[second].Attached = true }) // by its hypervisor

	had := entry(uuid.New(), second, workflows.GoalDetached)
	had.Handle.Holder = cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	require.NoError(t, h.bench.Use(t.Context(), card, second, "qemu"))
	require.Contains(t, h.settle(had).Errors[second], "in use by qemu")

	require.NoError(t, h.bench.Use(t.Context(), card, second, ""))
	require.Equal(t, map[string]bool{second: false}, h.settle(had).Changed)
	require.True(t, h.attachedNow(second))
}

// A backend that was renamed has nothing attached under its old name for ever: the
// one that has the device now takes it back.
func TestSettleOfARenamedBackend(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	op := uuid.New()
	h.ready()
	h.must(workflows.AttachActivity, attach(op, handle), nil)

	h.renamed = "renamed"
	h.start()
	h.must(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName}, nil) // as at each start of an agent
	require.True(t, h.attachedNow(handle))
	result := h.settle(entry(op, handle, workflows.GoalDetached))
	require.Empty(t, result.Errors)
	require.True(t, result.Changed[handle])
	require.Equal(t, "renamed", result.Observations[0].Backend)
	require.False(t, h.attachedNow(handle))
	require.Empty(t, h.attachments())
}
