package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// The journal of a host is put back from a copy in which a handle is attached.
// It was detached since, and an instance has it. The agent takes no step by
// that copy. Once the conductor has told it what counts, it goes by the hardware,
// and a late attach is still refused.
func TestStepsWithAnOldJournal(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	held, given := attach(uuid.New(), handle), detach(uuid.New(), handle)
	held.Addressee, given.Addressee = numbered(10), numbered(12)
	h.must(workflows.AttachActivity, held, nil)
	copied, err := os.ReadFile(filepath.Join(h.dir, "journal"))
	require.NoError(t, err)

	h.must(workflows.DetachActivity, given, nil)
	known := h.journal.Position()

	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "journal"), copied, 0o600))
	h.start()
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentDone}, h.attachments())

	again := attach(uuid.New(), second)
	again.Addressee = workflows.Addressee{Assignment: 13, Journal: cyborg.JournalPosition{Opening: known.Opening, Writes: known.Writes}}
	h.reporter.failure = cyborg.Errorf(cyborg.ErrUnavailable, "nobody answers")
	failure := h.refused(cyborg.ErrNotGranted, workflows.AttachActivity, again)
	require.Contains(t, failure.Message, "is an old copy")
	require.Contains(t, failure.Message, "nobody answers")
	require.False(t, h.attachedNow(second))

	// The conductor answers to the report that the step has asked for.
	h.reporter.failure = nil
	h.reporter.answered = func() {
		require.NoError(t, h.journal.Restart(known))
		require.NoError(t, h.journal.SetFloor(journal.Floor{Number: 13, Open: []int64{13}}))
	}
	h.must(workflows.AttachActivity, again, nil)
	require.True(t, h.attachedNow(second))
	require.Equal(t, map[string]cyborg.AttachmentState{second: cyborg.AttachmentDone}, h.attachments())

	require.Contains(t, h.settleLate(11, entry(held.Operation, handle, workflows.GoalAttached)).Errors[handle], "number 11 comes too late")
	require.False(t, h.attachedNow(handle))
	reports := len(h.reporter.reports)
	h.must(workflows.AttachActivity, again, nil)
	require.Len(t, h.reporter.reports, reports, "nobody is asked again")
}
