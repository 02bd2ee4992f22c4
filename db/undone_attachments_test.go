package db_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// These tests are about attachments of the records that a host no longer has.

// The reasons that the records give.
const (
	undoneByBoot  = "a boot of its host has undone an attachment"
	undoneOnHost  = "it is no longer attached on its host, and no operation has detached it"
	undoneUnknown = "its host does not know of an attachment"
)

// requireUndone requires that the accelerator's one held handle is undone for this
// reason and that the accelerator shows that, or that nothing is wrong where the
// reason is empty.
func (r *records) requireUndone(t testing.TB, id uuid.UUID, reason string) cyborg.Undone {
	t.Helper()
	a := r.accelerator(t, id)
	at := slices.IndexFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Holder != nil })
	require.GreaterOrEqual(t, at, 0)

	if reason == "" {
		require.Nil(t, a.Handles[at].Undone)
		require.Nil(t, a.Fence)
		return cyborg.Undone{}
	}

	require.NotNil(t, a.Handles[at].Undone)
	require.Equal(t, reason, a.Handles[at].Undone.Reason)
	require.False(t, a.Handles[at].Undone.Since.IsZero())
	require.Equal(t, &cyborg.Fence{Reason: reason}, a.Fence)
	require.Equal(t, cyborg.StatusFenced, a.Status())
	return *a.Handles[at].Undone
}

// attach attaches the accelerator to its host, whose journal says so.
func (h *host) attach(t testing.TB, local string) *cyborg.Accelerator {
	t.Helper()
	a := h.ready(t, local)
	h.attached(local, h.records.do(t, toAttach(a.UUID, onHost(h.name)), cyborg.OperationSucceeded).Operation)
	h.report(t)
	h.records.requireUndone(t, a.UUID, "")
	return a
}

// TestUndoneAttachmentShows: the first report that shows that an attachment was undone
// makes that visible, and the first that has it again ends that.
func TestUndoneAttachmentShows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state  cyborg.AttachmentState // empty for no entry
		reason string
	}{
		"by a boot":     {cyborg.AttachmentLost, undoneByBoot},
		"on the host":   {cyborg.AttachmentInDoubt, undoneOnHost},
		"journal empty": {"", undoneUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 2)
			id, other := h.attach(t, "card0").UUID, h.attach(t, "card1").UUID
			entry := h.content.Attachments[0]

			if c.state == cyborg.AttachmentLost {
				h.boot = "boot-2"
			}
			h.content.Attachments = h.content.Attachments[1:]
			if c.state != "" {
				undone := entry
				undone.State = c.state
				h.content.Attachments = append(h.content.Attachments, undone)
			}
			h.report(t)
			since := r.requireUndone(t, id, c.reason).Since
			r.requireUndone(t, other, "")
			require.Equal(t, []string{" → " + c.reason}, r.changes(t, cyborg.SubjectHandle, cyborg.AxisUndone))
			require.Equal(t, []string{" → " + c.reason}, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisFence))

			// The host is about to attach it: it stays undone for the reason that was first.
			entry.State = cyborg.AttachmentInDoubt
			h.content.Attachments = append(h.content.Attachments[:1], entry)
			h.report(t)
			require.Equal(t, since, r.requireUndone(t, id, c.reason).Since)

			entry.State = cyborg.AttachmentDone
			h.content.Attachments = append(h.content.Attachments[:1], entry)
			h.report(t)
			r.requireUndone(t, id, "")
			require.Equal(t, []string{" → " + c.reason, c.reason + " → "}, r.changes(t, cyborg.SubjectHandle, cyborg.AxisUndone))
			require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status(), "its other handle is free")
		})
	}
}

// TestBindWaitsForWhatABootHasUndone: a host that has booted attaches again within
// seconds what the boot has undone, and a bind of another handle waits for that. It does
// not where the host is silent, or has not done so for long.
func TestBindWaitsForWhatABootHasUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make func(r *records, h *host)
		kind cyborg.ErrorKind
	}{
		"just now": {func(*records, *host) {}, cyborg.ErrClaimed},
		"long ago": {func(r *records, _ *host) {
			r.exec(t, "UPDATE attach_handles SET undone_at = now() - interval '2 minutes' WHERE undone_at IS NOT NULL")
		}, cyborg.ErrChanged},
		"a silent host":  {func(_ *records, h *host) { h.fall(t) }, cyborg.ErrChanged},
		"another reason": {func(r *records, _ *host) { r.exec(t, "UPDATE deployables SET fence_reason = 'it burns'") }, cyborg.ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			a := h.attach(t, "card0")
			h.boot = "boot-2"
			entry := h.content.Attachments[0]
			h.content.Attachments[0].State = cyborg.AttachmentLost
			h.report(t)
			r.requireUndone(t, a.UUID, undoneByBoot)

			r.profile(t, "one", one())
			bind := toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")...)
			c.make(r, h)
			_, err := r.Admit(t.Context(), bind)
			requireKind(t, c.kind, err, a.Name)
			if c.kind != cyborg.ErrClaimed {
				return
			}

			h.content.Attachments[0] = entry
			h.report(t)
			r.do(t, bind, cyborg.OperationSucceeded)
		})
	}
}

// changes lists how the events of this axis have changed their subjects.
func (r *records) changes(t testing.TB, kind cyborg.SubjectKind, axis cyborg.EventAxis) []string {
	t.Helper()
	return scalar[[]string](t, r, `
		SELECT coalesce(array_agg(from_value || ' → ' || to_value ORDER BY id), '{}') FROM events WHERE subject_kind = $1 AND axis = $2`, kind, axis)
}

// TestUndoneAttachmentIsDetached: a detach ends what was undone, by force or not.
func TestUndoneAttachmentIsDetached(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	detached, forced := h.attach(t, "card0").UUID, h.attach(t, "card1").UUID
	h.boot = "boot-2"
	for i := range h.content.Attachments {
		h.content.Attachments[i].State = cyborg.AttachmentLost
	}
	h.report(t)

	r.do(t, toDetach(detached, nil), cyborg.OperationSucceeded)
	require.Nil(t, r.accelerator(t, detached).Fence)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, detached).Status())

	h.fall(t)
	r.do(t, toForce(forced, nil), cyborg.OperationSucceeded)
	require.Equal(t, unsettled, r.accelerator(t, forced).Fence.Reason)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE undone_at IS NOT NULL"))
}

// TestAttachmentIsNotUndoneByAnOldJournal: a journal of before an operation, or of
// while one works, does not tell what the host has.
func TestAttachmentIsNotUndoneByAnOldJournal(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.ready(t, "card0").UUID
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	late := h.next() // without it in its journal
	h.attached("card0", h.observed(t, toAttach(id, onHost("h1")), "card0"))
	h.tell(t, late)
	r.requireUndone(t, id, "")
	h.report(t)

	work := r.begin(t, toDetach(id, nil))
	h.content.Attachments[0].State = cyborg.AttachmentInDoubt
	h.report(t)
	r.requireUndone(t, id, "")

	// The detach fails, and leaves the host as it is. The next round sees that.
	r.end(t, work, cyborg.OperationFailed)
	_, err := r.Decide(t.Context(), r.disagreements(t)["card0"])
	require.NoError(t, err)
	r.requireUndone(t, id, undoneOnHost)
}

// TestRefusedStepLeavesNoDoubt: while a step is at work, its host reports what it is
// about to change as in doubt. Where the driver refuses, nothing has changed, and such
// a report, which comes after the end, says nothing. That of an operation which is not
// known, or has not ended, does.
func TestRefusedStepLeavesNoDoubt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		working func(ended uuid.UUID) uuid.UUID
		doubt   bool
	}{
		"of the ended operation": {func(ended uuid.UUID) uuid.UUID { return ended }, false},
		"of an unknown one":      {func(uuid.UUID) uuid.UUID { return uuid.New() }, true},
		"of none":                {func(uuid.UUID) uuid.UUID { return uuid.Nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 2)
			attached, free := h.attach(t, "card0").UUID, h.ready(t, "card1").UUID

			// A detach, and an attach, which are both refused.
			detach, attach := r.begin(t, toDetach(attached, nil)), r.begin(t, toAttach(free, onHost("h1")))
			h.content.Attachments[0].State, h.content.Attachments[0].Working = cyborg.AttachmentInDoubt, c.working(detach.Operation)
			h.attached("card1", attach.Operation)
			h.content.Attachments[1].State, h.content.Attachments[1].Working = cyborg.AttachmentInDoubt, c.working(attach.Operation)
			late := h.next()
			r.end(t, detach, cyborg.OperationFailed)
			r.end(t, attach, cyborg.OperationFailed)
			h.tell(t, late)

			if c.doubt {
				r.requireUndone(t, attached, undoneOnHost)
				require.Len(t, r.disagreements(t), 2)
				return
			}
			r.requireUndone(t, attached, "")
			require.Nil(t, r.accelerator(t, free).Fence)
			require.Empty(t, r.disagreements(t))

			// The next report, without a step at work, counts again.
			h.content.Attachments[0].Working, h.content.Attachments[1].Working = uuid.Nil, uuid.Nil
			h.report(t)
			r.requireUndone(t, attached, undoneOnHost)
			require.Len(t, r.disagreements(t), 2)
		})
	}
}

// TestUndoneMarkIsTakenByARound: a server of an earlier release has recorded the report
// that has the attachment again.
func TestUndoneMarkIsTakenByARound(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.attach(t, "card0").UUID
	h.content.Attachments[0].State = cyborg.AttachmentLost
	h.report(t)
	r.exec(t, `UPDATE hosts SET attachments = jsonb_set(attachments, '{0,state}', '"attached"')`)
	r.requireUndone(t, id, undoneByBoot)

	require.NoError(t, r.CompareUndone(t.Context()))
	r.requireUndone(t, id, "")
}

// TestUndoneFenceIsTakenByARound: a server of an earlier release has recorded the
// detach, and the report after it. It knows nothing of the fence.
func TestUndoneFenceIsTakenByARound(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.attach(t, "card0").UUID
	h.content.Attachments[0].State = cyborg.AttachmentLost
	h.report(t)
	r.requireUndone(t, id, undoneByBoot)
	r.exec(t, `UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL`)
	r.exec(t, `UPDATE hosts SET attachments = '[]'`)
	require.NotNil(t, r.accelerator(t, id).Fence)

	require.NoError(t, r.CompareUndone(t.Context()))
	require.Nil(t, r.accelerator(t, id).Fence)
}

// TestDisagreeingHost: a host disagrees where Reconcile would have it settle something.
func TestDisagreeingHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	first, h, last := r.addHost(t, "h0", 1), r.addHost(t, "h1", 2), r.addHost(t, "h2", 1)
	h.attach(t, "card0")
	for _, other := range []*host{first, last} {
		other.attach(t, "card0")
		other.content.Attachments[0].State = cyborg.AttachmentLost
		other.report(t)
	}
	of := func() []string {
		found, err := r.DisagreementsOf(t.Context(), "h1", 10)
		require.NoError(t, err)
		var out []string
		for _, d := range found {
			require.Equal(t, "h1", d.Host)
			out = append(out, d.Deployable)
		}
		return out
	}
	require.Empty(t, of())

	h.journal("card1", cyborg.AttachmentDone) // the records have none
	h.report(t)
	require.Equal(t, []string{"card1"}, of())
	h.content.Attachments[0].State = cyborg.AttachmentInDoubt
	h.report(t)
	require.Equal(t, []string{"card0", "card1"}, of())
}

// TestIngesterTellsOfChangedJournals: it tells which hosts have reported other
// attachments than before, and not of other reports.
func TestIngesterTellsOfChangedJournals(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var (
		mu   sync.Mutex
		told []string
	)
	ingester := db.NewIngester(r.Store, db.IngesterOptions{JournalsChanged: func(hosts []string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, hosts...)
	}}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- ingester.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, errors.Join(<-ended))
	}()

	h := r.addHost(t, "h1", 1)
	report := func(want ...string) {
		t.Helper()
		_, err := ingester.Report(t.Context(), h.next())
		require.NoError(t, err)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, want, told)
		told = nil
	}
	h.journal("card0", cyborg.AttachmentDone)
	report("h1")
	report()
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	report()
	h.content.Attachments[0].State = cyborg.AttachmentLost
	report("h1")
}

// TestSettledAttachmentIsNotUndone: the answer of the host ends what was undone. A report
// from before it, which comes late, does not begin it again.
func TestSettledAttachmentIsNotUndone(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	id := h.attach(t, "card0").UUID
	h.content.Attachments[0].State = cyborg.AttachmentLost
	h.report(t)
	decided, err := r.Decide(t.Context(), r.disagreements(t)["card0"])
	require.NoError(t, err)
	r.requireUndone(t, id, undoneByBoot)

	h.content.Attachments[0].State = cyborg.AttachmentInDoubt
	late := h.next()
	h.sequence++
	decided.Changed, decided.Observations = new(true), []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: device("card0")}}
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
	r.requireUndone(t, id, "")
	h.tell(t, late)
	r.requireUndone(t, id, "")
	require.Equal(t, []string{"accelerator card0.0 attached not lost attached"}, r.told(t))
}
