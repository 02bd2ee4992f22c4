package agent_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestAHandleInUseDoesNotChangeHands: the records may give a handle to another
// host while the journal still has it for this one. It changes hands once nobody
// uses it any more, and not before.
func TestAHandleInUseDoesNotChangeHands(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	before := h.inventory.Content().Attachments
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu (pid 42)"))

	theirs := attach(uuid.New(), handle)
	theirs.Handle.Holder.ID = "node-2"
	calls := h.fate.count("attach")
	err := h.refused(cyborg.ErrInUse, workflows.AttachActivity, theirs)
	require.Contains(t, err.Message, "qemu (pid 42)")
	require.Equal(t, before, h.inventory.Content().Attachments)
	require.Equal(t, calls, h.fate.count("attach"), "the hardware is not touched")

	require.NoError(t, h.bench.Use(t.Context(), card, handle, ""))
	h.must(workflows.AttachActivity, theirs, nil)
	require.Equal(t, theirs.Operation, h.inventory.Content().Attachments[0].Operation)
}

// TestARepeatedDetachRemembersWhatTheFirstFound: a detach that is refused at
// last leaves the attachment as it was before the first try, and not as the
// tries have left it, in doubt.
func TestARepeatedDetachRemembersWhatTheFirstFound(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
	h.edit(func(c *fake.Card) {
		c.Fail[fake.StepDetach] = fake.Failure{Times: 2, Kind: cyborg.ErrBusy, When: fake.Before}
	})

	op := uuid.New()
	h.refused(cyborg.ErrBusy, workflows.DetachActivity, detach(op, handle))
	h.refused(cyborg.ErrBusy, workflows.DetachActivity, detach(op, handle))
	require.NoError(t, h.bench.Use(t.Context(), card, handle, "qemu"))
	h.refused(cyborg.ErrInUse, workflows.DetachActivity, detach(op, handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())
}
