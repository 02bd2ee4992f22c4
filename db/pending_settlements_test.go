package db_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// These tests are about corrections of attachments whose answer is lost: the host has
// made them, and the conductor does not hear of it.

// decideAll decides about all disagreements, by the accelerators' local names.
func (r *records) decideAll(t *testing.T) map[string]db.Disagreement {
	t.Helper()
	out := r.disagreements(t)
	for local, found := range out {
		decided, err := r.Decide(t.Context(), found)
		require.NoError(t, err)
		out[local] = decided
	}
	return out
}

// answered records that the host had to change something for each, or nothing.
func (r *records) answered(t *testing.T, settled map[string]db.Disagreement, changed bool) {
	t.Helper()
	for _, d := range settled {
		d.Changed = new(changed)
		require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{d}))
	}
}

// reportAfter sends a report with this journal, made after the host has heard of the
// decisions.
func (h *host) reportAfter(t *testing.T, decided map[string]db.Disagreement, journal ...agentapi.Attachment) {
	t.Helper()
	h.content.Attachments = journal
	report := h.next()
	for _, d := range decided {
		report.Assignment = max(report.Assignment, d.Assignment)
	}
	require.True(t, h.tell(t, report).Accepted)
}

// told lists what the histories say was settled.
func (r *records) told(t *testing.T) []string {
	t.Helper()
	return scalar[[]string](t, r, `
		SELECT coalesce(array_agg(line ORDER BY line), '{}') FROM (
			SELECT concat_ws(' ', subject_kind, data->>'identity', data->>'now', 'not', data->>'journal', nullif(data->>'recorded', '')) AS line
			FROM events WHERE axis = 'settled') AS e`)
}

// TestSettledIsToldAfterALostAnswer: the host has corrected what its journal had shown,
// and its next report shows that.
func TestSettledIsToldAfterALostAnswer(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	h.ready(t, "card0")
	known, doubt, attached := h.ready(t, "card1").UUID, h.ready(t, "card2").UUID, h.ready(t, "card3").UUID

	past := r.do(t, toAttach(known, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(known, nil), cyborg.OperationSucceeded)
	r.do(t, toAttach(doubt, onHost("h1")), cyborg.OperationNeedsOperator)
	r.do(t, toAttach(attached, onHost("h1")), cyborg.OperationSucceeded)

	h.journal("card0", cyborg.AttachmentDone)
	h.attached("card1", past.Operation)
	h.journal("card2", cyborg.AttachmentInDoubt)
	h.journal("card3", cyborg.AttachmentLost)
	h.journal("never-heard-of", cyborg.AttachmentDone)
	h.report(t)

	decided := r.decideAll(t)
	require.Len(t, decided, 5)
	require.Empty(t, r.told(t))
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	h.reportAfter(t, decided, h.content.Attachments...)
	require.Empty(t, r.told(t), "it has settled nothing yet")

	now := h.content.Attachments[3]
	now.State = cyborg.AttachmentDone
	h.reportAfter(t, decided, now)

	want := []string{
		"accelerator card0.0 detached not attached left", "accelerator card1.0 detached not attached left",
		"accelerator card2.0 detached not in_doubt in_doubt", "accelerator card3.0 attached not lost attached",
		"host never-heard-of.0 detached not attached",
	}
	require.Equal(t, want, r.told(t))

	// The next round asks about what the records still keep; and the answers come after all.
	next := r.decideAll(t)
	require.Equal(t, []string{"card0", "card1", "card2"}, slices.Sorted(maps.Keys(next)))
	r.answered(t, next, false)
	r.answered(t, decided, true)
	h.report(t)
	require.Equal(t, want, r.told(t))
	require.Empty(t, r.disagreements(t))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM pending_settlements"))
}

// TestSettledIsToldByTheNextDecision: the next round comes before the report, and its
// host has nothing left to change.
func TestSettledIsToldByTheNextDecision(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.ready(t, "card0")
	h.journal("card0", cyborg.AttachmentDone)
	h.report(t)

	r.decideAll(t)
	second := r.decideAll(t)
	r.answered(t, second, false)
	want := []string{"accelerator card0.0 detached not attached left"}
	require.Equal(t, want, r.told(t))

	r.answered(t, second, false) // repeated
	h.reportAfter(t, second)
	require.Equal(t, want, r.told(t))
}

// TestWhatWasNotSettledIsNotTold: a report, or an answer, shows that an attachment is
// as the records say, and Reconcile has not done it.
func TestWhatWasNotSettledIsNotTold(t *testing.T) {
	t.Parallel()

	for name, after := range map[string]func(t *testing.T, r *records, h *host, id uuid.UUID, decided map[string]db.Disagreement){
		"it was so at the first decision": func(t *testing.T, r *records, h *host, _ uuid.UUID, decided map[string]db.Disagreement) {
			t.Helper()
			r.answered(t, decided, false)
			h.reportAfter(t, decided)
		},
		"the host has not heard of the decision": func(t *testing.T, r *records, h *host, _ uuid.UUID, decided map[string]db.Disagreement) {
			t.Helper()
			before := decided["card0"]
			before.Assignment--
			h.reportAfter(t, map[string]db.Disagreement{"card0": before})
			h.content.Backends[0].Options = map[string]any{"something": "else"}
			h.reportAfter(t, decided)
			r.answered(t, r.decideAll(t), false)
		},
		"a later operation": func(t *testing.T, r *records, h *host, id uuid.UUID, decided map[string]db.Disagreement) {
			t.Helper()
			r.do(t, toDetach(id, nil), cyborg.OperationSucceeded)
			h.reportAfter(t, decided)
		},
		"a later operation, before the next decision": func(t *testing.T, r *records, h *host, id uuid.UUID, _ map[string]db.Disagreement) {
			t.Helper()
			r.do(t, toDetach(id, nil), cyborg.OperationNeedsOperator)
			next := r.decideAll(t)
			r.answered(t, next, false)
			h.reportAfter(t, next)
		},
		"a journal that was lost": func(t *testing.T, _ *records, h *host, _ uuid.UUID, decided map[string]db.Disagreement) {
			t.Helper()
			h.content.Attachments = nil
			report := h.next()
			report.Assignment, report.Journal = decided["card0"].Assignment, cyborg.JournalPosition{Opening: uuid.New(), Writes: 1}
			report.Forgot = true
			require.True(t, h.tell(t, report).Accepted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			id := h.ready(t, "card0").UUID
			r.do(t, toAttach(id, onHost("h1")), cyborg.OperationNeedsOperator)
			h.journal("card0", cyborg.AttachmentInDoubt)
			h.report(t)
			decided := r.decideAll(t)
			require.Len(t, decided, 1)

			after(t, r, h, id, decided)
			require.Empty(t, r.told(t))
		})
	}

	t.Run("the journal has shown nothing to correct", func(t *testing.T) {
		t.Parallel()
		r := newRecords(t)
		h := r.addHost(t, "h1", 1)
		r.do(t, toAttach(h.ready(t, "card0").UUID, onHost("h1")), cyborg.OperationNeedsOperator)
		r.decideAll(t)
		decided := r.decideAll(t)
		h.content.Backends[0].Options = map[string]any{"something": "else"}
		h.reportAfter(t, decided)
		r.answered(t, decided, false)
		require.Empty(t, r.told(t))
	})

	t.Run("a host that was forgotten", func(t *testing.T) {
		t.Parallel()
		r := newRecords(t)
		h := r.addHost(t, "h1", 1)
		h.journal("never-heard-of", cyborg.AttachmentDone)
		h.report(t)
		decided := r.decideAll(t)
		h.ago(t, time.Hour)
		require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
		h.reportAfter(t, decided)
		require.Empty(t, r.told(t))
	})
}

// TestUnsettled: why an attachment could not be settled is recorded once, and shown until
// it is settled, or an operation may have changed it.
func TestUnsettled(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	attach := func(local string) uuid.UUID {
		id := h.ready(t, local).UUID
		r.do(t, toAttach(id, onHost("h1")), cyborg.OperationSucceeded)
		return id
	}
	changed := attach("card0")
	attach("card1")
	attach("card2")
	h.report(t) // the journal was lost

	shown := func() map[string]string {
		out := map[string]string{}
		found, err := r.Unsettled(t.Context(), 10)
		require.NoError(t, err)
		for _, u := range found {
			require.Equal(t, "h1", u.Host)
			out[u.Handle] = u.Error
		}
		return out
	}

	decided := r.decideAll(t)
	require.Len(t, decided, 3)
	require.Empty(t, shown(), "nobody has failed yet")
	fails := func(local, why string, want bool) {
		news, err := r.RecordUnsettled(t.Context(), decided[local], why)
		require.NoError(t, err)
		require.Equal(t, want, news)
	}
	for local, d := range decided {
		fails(local, "it is not installed", true)
		fails(local, "it is not installed", false)
		require.Equal(t, "it is not installed", shown()[d.Handle.Identity])
	}
	before := decided
	decided = r.decideAll(t) // in the next round
	news, err := r.RecordUnsettled(t.Context(), before["card1"], "it comes too late")
	require.NoError(t, err)
	require.False(t, news, "the decision since has it")
	fails("card1", "it is not installed", false)
	fails("card1", "it burns", true)
	require.Equal(t, "it burns", shown()[decided["card1"].Handle.Identity])

	r.answered(t, map[string]db.Disagreement{"card1": decided["card1"]}, true)
	require.Len(t, shown(), 2)
	r.do(t, toDetach(changed, nil), cyborg.OperationSucceeded)
	require.Equal(t, map[string]string{decided["card2"].Handle.Identity: "it is not installed"}, shown())

	h.content.Backends[0].Devices = h.devices()[:2]
	h.report(t)
	require.Empty(t, shown())
}
