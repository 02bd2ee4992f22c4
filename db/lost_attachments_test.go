package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// These tests are about attachments in the journal of a host that the records have
// lost: the database was restored, or its failover has lost the last commits.

// TestLostAttachmentInADifference: a failover may lose the operation and keep the
// report before it, so that the report after it is a difference.
func TestLostAttachmentInADifference(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	base := h.next()
	h.tell(t, base)

	h.journal("card0", cyborg.AttachmentDone)
	require.True(t, h.tell(t, since(base, h.next())).Accepted)
	r.requireUnsettled(t, id, uuid.Nil)
}

// TestLostAttachmentOfAHandleThatIsFreedLater: when the report comes, the records
// give the handle to somebody, as they did before the operation that they have lost.
func TestLostAttachmentOfAHandleThatIsFreedLater(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	detached, deleted := h.ready(t, "card0"), h.ready(t, "card1")

	vm := instance(uuid.NewString())
	r.do(t, toAttach(detached.UUID, vm), cyborg.OperationSucceeded)
	r.profile(t, "one", one())
	arqs := r.request(t, "one")
	r.do(t, toBind("h1", vm, deleted.ProviderUUID, arqs...), cyborg.OperationSucceeded)

	h.journal("card0", cyborg.AttachmentDone)
	h.journal("card1", cyborg.AttachmentDone)
	h.report(t)
	require.Nil(t, r.accelerator(t, detached.UUID).Fence)

	r.do(t, toDetach(detached.UUID, nil), cyborg.OperationSucceeded)
	r.requireUnsettled(t, detached.UUID, uuid.Nil)

	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: uuid.MustParse(vm.ID), AllowBound: true}, alice())
	require.NoError(t, err)
	r.requireUnsettled(t, deleted.UUID, uuid.Nil)
}

// TestLostAttachmentInAnOldReport: the handle is freed by an operation whose
// observation is newer than the journal. Nobody gets it before the host has said
// whether it still has it.
func TestLostAttachmentInAnOldReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	r.do(t, toAttach(id, instance("vm1")), cyborg.OperationSucceeded)
	h.journal("card0", cyborg.AttachmentDone)
	h.report(t)
	require.False(t, h.asked(t))

	h.observed(t, toDetach(id, nil), "card0")
	r.requireUnsettled(t, id, uuid.Nil)
	require.True(t, h.asked(t))
	h.report(t)
	r.requireUnsettled(t, id, uuid.Nil)
	require.False(t, h.asked(t))
}

// TestLostAttachmentInALateReport: a report that was made before an operation saw the
// device comes after that. What it has may have gone meanwhile, so the host is asked
// for one that is newer, although it may have nothing new to tell.
func TestLostAttachmentInALateReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	card := h.ready(t, "card0")
	h.report(t)
	h.journal("card0", cyborg.AttachmentDone)
	late := h.next()
	h.observed(t, toProgram(card.UUID), "card0")

	replies, err := r.MergeReports(t.Context(), []agentapi.Report{late})
	require.NoError(t, err)
	h.reply = replies[0]
	require.Nil(t, r.accelerator(t, card.UUID).Fence)
	require.True(t, h.asked(t))
	h.report(t)
	r.requireUnsettled(t, card.UUID, uuid.Nil)
	require.False(t, h.asked(t))
}

// TestLostAttachmentAfterARestoredDetach: the host has done the detach of the
// backup, and then another attach. The result of the detach is known after its
// takeover, and is not newer than the report.
func TestLostAttachmentAfterARestoredDetach(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded)
	work := r.begin(t, toDetach(id, nil))

	h.sequence++
	seen := h.sequence
	h.journal("card0", cyborg.AttachmentDone)
	h.report(t)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Observations: []cyborg.Observation{{Sequence: seen, Backend: "fake", Device: device("card0")}},
	}))
	r.requireUnsettled(t, id, uuid.Nil)
}

// TestLostBeginningOfAnAttachment: the records have the operation as admitted, and
// its host has done it.
func TestLostBeginningOfAnAttachment(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	op := r.admit(t, toAttach(id, onHost("h1")))
	h.attached("card0", op.ID)
	h.report(t)

	_, err := r.RequestCancel(t.Context(), op.ID, alice())
	require.NoError(t, err)
	_, err = r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrCancelled, err)
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{
		Operation: op.ID, State: cyborg.OperationCancelled, Error: cyborg.AsError(err),
	}))
	r.requireUnsettled(t, id, uuid.Nil)
}

// TestDetachOfAForgottenOperation: the operation that had attached a handle may be
// older than the retention. Its end, and a report from before it, fence nothing.
func TestDetachOfAForgottenOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	seen, gone := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID

	for local, id := range map[string]uuid.UUID{"card0": seen, "card1": gone} {
		h.attached(local, r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded).Operation)
	}
	h.report(t)
	r.exec(t, "UPDATE operations SET ended_at = ended_at - interval '1 day'")
	_, err := r.Prune(t.Context(), db.Retention{Operations: time.Hour})
	require.NoError(t, err)

	h.content.Backends[0].Options = map[string]any{"something": "else"}
	late := h.next() // with both in its journal
	h.observed(t, toDetach(seen, nil), "card0")
	h.tell(t, late)
	require.Nil(t, r.accelerator(t, seen).Fence)

	r.do(t, toDetach(gone, nil), cyborg.OperationSucceeded) // without an observation, as of a device that is gone
	require.Nil(t, r.accelerator(t, gone).Fence)

	// A report from after the detach is right.
	h.content.Backends[0].Options = nil
	h.report(t)
	r.requireUnsettled(t, seen, uuid.Nil)
}

// TestNobodyGetsWhatIsToBeDetached: the journal has a handle of an operation whose
// end the records know. From the decision that its host detaches it until that is
// done, nobody gets it.
func TestNobodyGetsWhatIsToBeDetached(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	past := r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	h.attached("card0", past.Operation)
	h.journal("never-heard-of", cyborg.AttachmentDone)
	h.report(t)
	r.profile(t, "one", one())
	arqs := r.request(t, "one")

	found := r.disagreements(t)
	require.Empty(t, found["card0"].Recorded)
	decided, err := r.Decide(t.Context(), found["card0"])
	require.NoError(t, err)
	require.Equal(t, "left", decided.Recorded)
	require.Equal(t, past.Operation, decided.Operation)
	require.Equal(t, cyborg.AttachmentDone, decided.Journal)
	r.requireUnsettled(t, a.UUID, uuid.Nil)
	_, err = r.Admit(t.Context(), toBind("h1", instance(uuid.NewString()), a.ProviderUUID, arqs...))
	requireKind(t, cyborg.ErrChanged, err, unsettled)

	// Nor where the host did not answer, until the next round has asked it.
	decided, err = r.Decide(t.Context(), r.disagreements(t)["card0"])
	require.NoError(t, err)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
	require.Nil(t, r.accelerator(t, a.UUID).Fence)
	r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)

	unknown, err := r.Decide(t.Context(), found["never-heard-of"])
	require.NoError(t, err)
	require.Empty(t, unknown.Recorded, "there is no handle that anybody could get")
}

// TestLostAttachmentOfAnotherBackend: the backend has another name than it had when
// its handle was attached. The host is asked by the name that its journal has.
func TestLostAttachmentOfAnotherBackend(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	h.journal("card0", cyborg.AttachmentDone)
	h.content.Attachments[0].Backend = "before"
	h.report(t)
	r.requireUnsettled(t, id, uuid.Nil)

	found := r.disagreements(t)
	require.Len(t, found, 1)
	require.Equal(t, "left", found["card0"].Recorded)
	require.Equal(t, "before", found["card0"].Backend)
	require.Equal(t, cyborg.AttachmentDone, found["card0"].Journal)
}

// asked says whether the reply to the host's heartbeat asks for a report.
func (h *host) asked(t *testing.T) bool {
	t.Helper()
	replies, err := h.records.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	return replies[0].Report
}

// observed does an operation that succeeds, and sees the device as the host shows it.
func (h *host) observed(t *testing.T, a db.Admission, identity string) uuid.UUID {
	t.Helper()
	at := slices.IndexFunc(h.devices(), func(d cyborg.DeviceReport) bool { return d.Identity == identity })
	work := h.records.begin(t, a)
	h.sequence++
	require.NoError(t, h.records.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.devices()[at]}},
	}))
	return work.Operation
}

// attached adds the entry of an operation to the agent's journal.
func (h *host) attached(local string, operation uuid.UUID) {
	h.content.Attachments = append(h.content.Attachments, agentapi.Attachment{
		Backend: "fake", Deployable: local, Handle: local + ".0", Operation: operation, State: cyborg.AttachmentDone,
	})
}
