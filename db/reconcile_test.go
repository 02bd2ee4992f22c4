package db_test

import (
	"fmt"
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

// journal adds an entry to the agent's journal.
func (h *host) journal(local string, state cyborg.AttachmentState) {
	h.content.Attachments = append(h.content.Attachments, agentapi.Attachment{
		Backend: "fake", Deployable: local, Handle: local + ".0", Operation: uuid.New(), State: state,
	})
}

// disagreements lists those of all hosts by the accelerators' local names.
func (r *records) disagreements(t *testing.T) map[string]db.Disagreement {
	t.Helper()
	found, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "", 0)
	require.NoError(t, err)

	out := map[string]db.Disagreement{}
	for _, d := range found {
		out[d.Deployable] = d
	}
	require.Len(t, out, len(found))
	return out
}

// TestDisagreementsOfJournalAndRecords: where the agent's journal and the
// records contradict each other, the accelerator is listed, and no other is.
// There is one accelerator for each combination of them.
func TestDisagreementsOfJournalAndRecords(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 0)
	add := func(name string) { h.content.Backends[0].Devices = append(h.content.Backends[0].Devices, device(name)) }

	attached := []string{"agreed", "forgotten", "lost", "doubted", "broken", "instance", "gone"}
	free := []string{"unrecorded", "unrecorded-doubt", "unrecorded-lost", "detached", "free", "claimed", "doubt", "doubt-journal"}
	for _, name := range append(attached, free...) {
		add(name)
	}
	h.report(t)
	for _, name := range append(attached, free...) {
		h.ready(t, name)
	}

	for _, name := range attached {
		holder := onHost("h1")
		if name == "instance" {
			holder = instance("vm")
		}
		r.do(t, toAttach(h.accelerator(t, name).UUID, holder), cyborg.OperationSucceeded)
	}

	claimed := r.begin(t, toAttach(h.accelerator(t, "claimed").UUID, onHost("h1")))
	for _, name := range []string{"doubt", "doubt-journal"} {
		r.do(t, toAttach(h.accelerator(t, name).UUID, onHost("h1")), cyborg.OperationNeedsOperator)
	}
	r.do(t, toDetach(h.accelerator(t, "broken").UUID, nil), cyborg.OperationNeedsOperator)

	for _, name := range []string{"agreed", "broken", "unrecorded", "instance", "doubt-journal", "claimed"} {
		h.journal(name, cyborg.AttachmentDone)
	}

	h.journal("doubted", cyborg.AttachmentInDoubt)
	h.journal("unrecorded-doubt", cyborg.AttachmentInDoubt)
	h.journal("lost", cyborg.AttachmentLost)
	h.journal("unrecorded-lost", cyborg.AttachmentLost)
	h.journal("never-heard-of", cyborg.AttachmentDone)

	// The records have the operation of this one, so they know of its end, too.
	past := r.do(t, toAttach(h.accelerator(t, "detached").UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(h.accelerator(t, "detached").UUID, nil), cyborg.OperationSucceeded)
	h.journal("detached", cyborg.AttachmentDone)
	h.content.Attachments[len(h.content.Attachments)-1].Operation = past.Operation

	devices := h.content.Backends[0].Devices
	for i, d := range devices {
		if d.Identity == "gone" {
			h.content.Backends[0].Devices = slices.Concat(devices[:i], devices[i+1:])
		}
	}
	h.report(t)

	type said struct {
		journal  cyborg.AttachmentState
		recorded string
		attach   bool
	}
	want := map[string]said{
		"forgotten":        {"", "attached", true},
		"lost":             {cyborg.AttachmentLost, "attached", true},
		"doubted":          {cyborg.AttachmentInDoubt, "attached", true},
		"broken":           {cyborg.AttachmentDone, "attached", true},
		"unrecorded":       {cyborg.AttachmentDone, "left", false},
		"unrecorded-doubt": {cyborg.AttachmentInDoubt, "left", false},
		"unrecorded-lost":  {cyborg.AttachmentLost, "left", false},
		"detached":         {cyborg.AttachmentDone, "", false},
		"never-heard-of":   {cyborg.AttachmentDone, "", false},
		"doubt":            {"", "in_doubt", false},
		"doubt-journal":    {cyborg.AttachmentDone, "in_doubt", false},
		"instance":         {cyborg.AttachmentDone, "given", false},
	}

	found := r.disagreements(t)
	got := map[string]said{}
	for name, d := range found {
		got[name] = said{d.Journal, d.Recorded, d.Attach}
		require.Equal(t, "h1", d.Host)
		require.Equal(t, "fake", d.Backend)
		require.Equal(t, name+".0", d.Handle.Identity)
		require.Equal(t, onHost("h1"), d.Handle.Holder)
		require.NotZero(t, d.Operation)

		if name != "never-heard-of" {
			require.Equal(t, h.accelerator(t, name).UUID, d.Accelerator)
			require.Equal(t, h.accelerator(t, name).Handles[0].UUID, d.Handle.UUID)
		}
		if d.Recorded != "" && d.Recorded != "given" && d.Recorded != "left" { // the journal says which operation had attached what was given
			require.Equal(t, h.accelerator(t, name).Handles[0].Operation, d.Operation)
		}
	}
	require.Equal(t, want, got)

	none, err := r.Disagreements(t.Context(), db.AttachmentPlace{Host: "h1"}, "h2", 0)
	require.NoError(t, err)
	require.Empty(t, none)
	one, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "h1", 1)
	require.NoError(t, err)
	require.Len(t, one, 1)

	// The host has settled all of them, and says so.
	var settled []db.Disagreement
	for _, d := range found {
		settled = append(settled, d)
	}
	require.NoError(t, r.RecordSettled(t.Context(), settled))
	require.NoError(t, r.RecordSettled(t.Context(), settled))

	for _, name := range []string{"doubt", "doubt-journal"} {
		a := h.accelerator(t, name)
		require.Equal(t, cyborg.StatusReady, a.Status())
		require.Empty(t, a.Holders())
	}

	for _, name := range []string{"broken", "forgotten", "lost", "doubted"} {
		a := h.accelerator(t, name)
		require.Equal(t, cyborg.StatusReady, a.Status(), name)
		require.Equal(t, []cyborg.Holder{onHost("h1")}, a.Holders(), name)
	}

	h.content.Attachments = nil
	for _, name := range []string{"agreed", "forgotten", "lost", "doubted", "broken", "claimed"} {
		h.journal(name, cyborg.AttachmentDone)
	}
	h.report(t)
	require.Empty(t, r.disagreements(t))

	r.end(t, claimed, cyborg.OperationSucceeded)
	require.Empty(t, r.disagreements(t))

	h.content.Attachments = nil
	h.report(t)
	require.Len(t, r.disagreements(t), 6)
	h.fall(t)
	require.Empty(t, r.disagreements(t), "a silent host cannot be asked")
}

// TestJournalOlderThanTheRecords: a report from before the result of an
// operation contradicts nothing.
func TestJournalOlderThanTheRecords(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")

	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	h.sequence++
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: device("card0")}},
	}))
	require.Empty(t, r.disagreements(t))

	h.content.Backends[0].Options = map[string]any{"something": "else"}
	h.report(t) // the journal still lacks it, which is a contradiction now
	require.Len(t, r.disagreements(t), 1)
}

// TestDoubtNeedsNoLaterReport: an attachment that is in doubt is listed also where
// the last report is older than what an operation has observed. Its host need not
// report anything more: if it took no step, it has nothing new to tell.
func TestDoubtNeedsNoLaterReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	free, held := h.accelerator(t, "card0").UUID, h.ready(t, "card1").UUID
	r.do(t, toAttach(held, onHost("h1")), cyborg.OperationSucceeded)
	h.journal("card1", cyborg.AttachmentDone)
	h.report(t)

	observe := func(a db.Admission, local string, state cyborg.OperationState) {
		h.sequence++
		outcome := cyborg.Outcome{Operation: r.begin(t, a).Operation, State: state, Observations: []cyborg.Observation{
			{Sequence: h.sequence, Backend: "fake", Device: device(local)},
		}}
		if state != cyborg.OperationSucceeded {
			outcome.Error = cyborg.Errorf(cyborg.ErrHostSilent, "the host is silent")
		}
		require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome))
	}
	observe(toProvision(cyborg.ProvisionRequest{Accelerator: free}), "card0", cyborg.OperationSucceeded)
	r.do(t, toAttach(free, onHost("h1")), cyborg.OperationNeedsOperator)
	observe(toDetach(held, nil), "card1", cyborg.OperationNeedsOperator)

	found := r.disagreements(t)
	require.Equal(t, "in_doubt", found["card0"].Recorded)
	require.False(t, found["card0"].Attach)
	require.Equal(t, "attached", found["card1"].Recorded)
	require.True(t, found["card1"].Attach)

	for local, id := range map[string]uuid.UUID{"card0": free, "card1": held} {
		decided, err := r.Decide(t.Context(), found[local])
		require.NoError(t, err)
		require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
		require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status())
	}
	require.Empty(t, r.disagreements(t))
	require.Empty(t, r.accelerator(t, free).Holders())
	require.Equal(t, []cyborg.Holder{onHost("h1")}, r.accelerator(t, held).Holders())
}

// TestDisagreementsWaitForAReport: an operation has observed a device since the last
// report, whose journal may be of before. Where it disagrees with the records, the
// host is asked for another one, although it need not have anything new to tell.
func TestDisagreementsWaitForAReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 0)
	parts := []string{"agreed", "free", "given", "lost", "forgotten"}
	for _, name := range parts {
		d := device(name)
		d.Deployables = append(d.Deployables, deployable(name+"-other", 2))
		h.content.Backends[0].Devices = append(h.devices(), d)
	}
	h.report(t)
	for _, name := range parts {
		h.ready(t, name)
	}

	// Nothing of this asks for a report: each is as the journal will say, or says.
	agreed := h.observed(t, toAttach(h.accelerator(t, "agreed").UUID, onHost("h1")), "agreed")
	for _, name := range []string{"lost", "forgotten"} {
		h.observed(t, toAttach(h.accelerator(t, name).UUID, onHost("h1")), name)
	}
	h.observed(t, toAttach(h.accelerator(t, "given").UUID, instance("vm")), "given")
	past := r.do(t, toAttach(h.accelerator(t, "free").UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.observed(t, toDetach(h.accelerator(t, "free").UUID, nil), "free")
	require.False(t, h.asked(t))
	h.attached("agreed", agreed)
	h.journal("given", cyborg.AttachmentDone)
	h.journal("lost", cyborg.AttachmentLost)
	h.attached("free", past.Operation)
	h.report(t)
	want := h.disagreeing(t)
	require.Equal(t, []string{"forgotten", "free", "given", "lost"}, want)

	for n, name := range parts {
		h.observed(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, name+"-other").UUID}), name)
		require.Equal(t, n > 0, h.asked(t), name)
		if n > 0 {
			require.NotContains(t, h.disagreeing(t), name)
			h.report(t)
		}
		require.Equal(t, want, h.disagreeing(t), name)
		require.False(t, h.asked(t))
	}

	// The same for what an operation does with the part itself.
	h.observed(t, toDetach(h.accelerator(t, "agreed").UUID, nil), "agreed")
	require.False(t, h.asked(t), "the host tells what it has done")
}

// TestDisagreementBesideWhatIsDetached: an accelerator has a handle of an instance,
// which is detached, and one of its host, which a boot has undone.
func TestDisagreementBesideWhatIsDetached(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 0)
	h.content.Backends[0].Devices = append(h.devices(), device("card0"))
	h.report(t)
	id := h.ready(t, "card0").UUID
	own := h.observed(t, toAttach(id, onHost("h1")), "card0")
	vm := instance("vm")
	h.observed(t, toAttach(id, vm), "card0")
	h.content.Attachments = []agentapi.Attachment{{
		Backend: "fake", Deployable: "card0", Handle: "card0.0", Operation: own, State: cyborg.AttachmentLost,
	}}
	h.report(t)
	require.Equal(t, []string{"card0"}, h.disagreeing(t))

	h.observed(t, toDetach(id, &vm), "card0")
	require.True(t, h.asked(t))
	h.report(t)
	require.Equal(t, []string{"card0"}, h.disagreeing(t))
}

// disagreeing are the local names of the accelerators with a disagreement.
func (h *host) disagreeing(t *testing.T) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(h.records.disagreements(t)))
}

// TestSettleIgnoresOutdatedFindings: a settlement changes nothing that has
// changed since Disagreements listed it.
func TestSettleIgnoresOutdatedFindings(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationNeedsOperator)

	found, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "h1", 0)
	require.NoError(t, err)
	require.Len(t, found, 1)

	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	require.NoError(t, r.RecordSettled(t.Context(), found))
	require.Len(t, r.accelerator(t, a.UUID).Holders(), 1)

	r.end(t, work, cyborg.OperationNeedsOperator)
	require.NoError(t, r.RecordSettled(t.Context(), found))
	require.Len(t, r.accelerator(t, a.UUID).Holders(), 1, "this doubt is another operation's")
	require.Equal(t, cyborg.StatusError, r.accelerator(t, a.UUID).Status())
}

// TestSettlementBeforeALaterOperation: an operation was admitted after the decision
// and has ended before its settlement is recorded. What it has left is not settled.
func TestSettlementBeforeALaterOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	doubt, attached := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID
	r.do(t, toAttach(doubt, onHost("h1")), cyborg.OperationNeedsOperator)
	r.do(t, toAttach(attached, onHost("h1")), cyborg.OperationSucceeded)

	var decided []db.Disagreement
	for _, found := range r.disagreements(t) {
		d, err := r.Decide(t.Context(), found)
		require.NoError(t, err)
		require.Equal(t, d.Deployable == "card1", d.Attach)
		d.Changed = new(true)
		decided = append(decided, d)
	}
	require.Len(t, decided, 2)

	for _, id := range []uuid.UUID{doubt, attached} {
		r.do(t, toDetach(id, nil), cyborg.OperationNeedsOperator)
	}
	require.NoError(t, r.RecordSettled(t.Context(), decided))
	for _, id := range []uuid.UUID{doubt, attached} {
		require.Equal(t, cyborg.StatusError, r.accelerator(t, id).Status())
		require.Equal(t, []cyborg.Holder{onHost("h1")}, r.accelerator(t, id).Holders())
	}
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM events WHERE axis = 'settled'"), "the hosts have done it")

	for local, id := range map[string]uuid.UUID{"card0": doubt, "card1": attached} {
		d, err := r.Decide(t.Context(), r.disagreements(t)[local])
		require.NoError(t, err)
		require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{d}))
		require.Equal(t, cyborg.StatusReady, r.accelerator(t, id).Status())
	}
}

// TestSettledDoubtKeepsOtherErrors: an accelerator that a provision has left in
// error stays in error when a later doubt about a detach is settled.
func TestSettledDoubtKeepsOtherErrors(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationNeedsOperator)
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}), cyborg.OperationNeedsOperator)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationNeedsOperator)

	require.Empty(t, r.disagreements(t))
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusError, r.accelerator(t, a.UUID).Status())
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
}

// TestOrphans: open operations of a state are listed once they are old enough,
// the oldest first and in pages.
func TestOrphans(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	running := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card1").UUID}))
	admitted := r.admit(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card0").UUID}))
	h.ready(t, "card2")

	orphans := func(state cyborg.OperationState, olderThan time.Duration, after db.OperationPlace, limit int) []db.Orphan {
		found, err := r.Orphans(t.Context(), state, olderThan, after, limit)
		require.NoError(t, err)
		return found
	}

	none := db.OperationPlace{}
	require.Empty(t, orphans(cyborg.OperationAdmitted, time.Hour, none, 10))
	found := orphans(cyborg.OperationAdmitted, 0, none, 10)
	require.Len(t, found, 1)
	require.Equal(t, admitted.ID, found[0].Operation)
	require.Equal(t, cyborg.OperationAdmitted, found[0].State)
	require.Equal(t, cyborg.OperationProvision, found[0].Kind)

	found = orphans(cyborg.OperationRunning, 0, none, 10)
	require.Len(t, found, 1)
	require.Equal(t, running.Operation, found[0].Operation)
	require.Empty(t, orphans(cyborg.OperationRunning, 0, found[0].Place, 10))

	second := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card3").UUID}))
	found = orphans(cyborg.OperationRunning, 0, none, 1)
	require.Equal(t, running.Operation, found[0].Operation)
	found = orphans(cyborg.OperationRunning, 0, found[0].Place, 1)
	require.Equal(t, second.Operation, found[0].Operation)
}

// TestOrphansOfAnotherTime: the database's clock was set back since an operation
// was admitted. Nobody waits until it has caught up.
func TestOrphansOfAnotherTime(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	admitted := r.admit(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card0").UUID}))
	r.exec(t, "UPDATE operations SET admitted_at = admitted_at + interval '1 day'")

	found, err := r.Orphans(t.Context(), cyborg.OperationAdmitted, time.Hour, db.OperationPlace{}, 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, admitted.ID, found[0].Operation)
}

// TestSilentSinceAnotherTime: the database's clock was set back since a host was
// heard. The host is silent until it is heard by the new time.
func TestSilentSinceAnotherTime(t *testing.T) {
	t.Parallel()
	r := newRecordsWith(t, db.Options{SilentAfter: time.Hour})
	h := r.addHost(t, "h1", 1)
	silent := func() bool {
		host, err := r.Host(t.Context(), "h1")
		require.NoError(t, err)
		return host.Silent
	}
	require.False(t, silent())

	r.exec(t, "UPDATE hosts SET last_seen = last_seen + interval '1 day'")
	require.True(t, silent())
	hosts, err := r.SilentHosts(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, hosts, 1)

	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.False(t, silent())
}

// TestDisagreementsByHost: hosts can be compared a few at a time.
func TestDisagreementsByHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for i := range 5 {
		h := r.addHost(t, fmt.Sprintf("h%d", i), 1)
		h.journal("card0", cyborg.AttachmentInDoubt)
		h.report(t)
	}

	var seen []string
	after := ""
	for {
		upTo, err := r.NthHostAfter(t.Context(), after, 2)
		require.NoError(t, err)

		found, err := r.Disagreements(t.Context(), db.AttachmentPlace{Host: after}, upTo, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, len(found), 2)
		for _, d := range found {
			seen = append(seen, d.Host)
		}

		if after = upTo; after == "" {
			break
		}
	}

	require.Equal(t, []string{"h0", "h1", "h2", "h3", "h4"}, seen)
}

// TestDisagreementsOfOneHost: a host with more disagreements than the limit is
// listed part by part.
func TestDisagreementsOfOneHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for _, name := range []string{"h1", "h2", "h3"} {
		h := r.addHost(t, name, 3)
		for card := range 3 {
			for handle := range 2 {
				h.content.Attachments = append(h.content.Attachments, agentapi.Attachment{
					Backend: "fake", Deployable: fmt.Sprintf("card%d", card), Handle: fmt.Sprintf("card%d.%d", card, handle),
					Operation: uuid.New(), State: cyborg.AttachmentInDoubt,
				})
			}
		}
		h.report(t)
	}

	all, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "", 0)
	require.NoError(t, err)
	require.Len(t, all, 18)

	var seen []db.Disagreement
	var after db.AttachmentPlace
	for {
		found, err := r.Disagreements(t.Context(), after, "h3", 4)
		require.NoError(t, err)
		seen = append(seen, found...)
		if len(found) < 4 {
			break
		}

		last := &found[len(found)-1]
		after = db.AttachmentPlace{Host: last.Host, Deployable: last.Deployable, Handle: last.Handle.Identity}
	}
	require.Equal(t, all, seen)
}

// TestForgetVanishedHardware: hardware that has been missing for long is
// forgotten, but not while it is held or claimed. Its history stays.
func TestForgetVanishedHardware(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	held, claimed := h.ready(t, "card0"), h.ready(t, "card1")
	r.do(t, toAttach(held.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.admit(t, toAttach(claimed.UUID, onHost("h1")))

	h.content.Backends[0].Devices = h.content.Backends[0].Devices[3:]
	h.content.Backends[0].Devices[0].Deployables[0].Handles = nil
	h.report(t)

	forget := func(missingFor time.Duration) int {
		n, err := r.Forget(t.Context(), missingFor)
		require.NoError(t, err)
		return n
	}

	require.Zero(t, forget(time.Hour))
	// Forgotten are card2 with its device and handles, a free handle of card0, and
	// card3's handles. What is held or claimed stays.
	require.Equal(t, 4+1+2, forget(0))
	require.Zero(t, forget(0))

	found := h.accelerators(t)
	require.Len(t, found, 3)
	require.Len(t, found["card0"].Handles, 1)
	require.Len(t, found["card1"].Handles, 2)

	r.do(t, toDetach(held.UUID, nil), cyborg.OperationSucceeded)
	require.Equal(t, 3, forget(0))
	r.endOfFeed(t)
	events, err := r.Events(t.Context(), db.EventFilter{Subjects: []cyborg.Subject{{Kind: cyborg.SubjectAccelerator, ID: held.UUID.String()}}}, cyborg.Cursor{}, 0)
	require.NoError(t, err)
	require.NotEmpty(t, events, "its history stays")

	// The hardware comes back as something new.
	h.content = content(1)
	h.report(t)
	back := h.accelerator(t, "card0")
	require.NotEqual(t, held.UUID, back.UUID)
	require.Equal(t, held.ProviderUUID, back.ProviderUUID, "Placement knows it by its name")
	require.Equal(t, cyborg.StatusInactive, back.Status())
}

// TestPrune: what is older than its retention is deleted. A retention of zero
// keeps everything.
func TestPrune(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	request := toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card0").UUID})
	request.IdempotencyKey, request.Fingerprint = "k", "f"
	old := r.do(t, request, cyborg.OperationSucceeded)

	retry := toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card1").UUID})
	retry.RetryOf = old.Operation
	open := r.begin(t, retry)
	require.NoError(t, r.RecordService(t.Context(), cyborg.Service{Role: "api", Host: "c", Instance: "1", StartedAt: time.Now()}))

	r.exec(t, "UPDATE events SET at = at - interval '1 day'")
	r.exec(t, "UPDATE operations SET admitted_at = admitted_at - interval '1 day', ended_at = ended_at - interval '1 day'")
	r.exec(t, "UPDATE services SET last_seen = last_seen - interval '1 day'")
	events := scalar[int](t, r, "SELECT count(*) FROM events")

	pruned, err := r.Prune(t.Context(), db.Retention{})
	require.NoError(t, err)
	require.Zero(t, pruned, "nothing is deleted without a retention")

	week := 7 * 24 * time.Hour
	pruned, err = r.Prune(t.Context(), db.Retention{Events: week, Operations: week, Services: week, Idempotency: week})
	require.NoError(t, err)
	require.Zero(t, pruned)

	pruned, err = r.Prune(t.Context(), db.Retention{Events: time.Hour, Services: time.Hour, Idempotency: time.Hour})
	require.NoError(t, err)
	require.Equal(t, db.Pruned{Events: events - 1, Services: 1, Keys: 1}, pruned, "the newest event is kept")

	request.ID = uuid.New()
	_, err = r.Admit(t.Context(), request)
	requireKind(t, cyborg.ErrChanged, err, "ready already")

	pruned, err = r.Prune(t.Context(), db.Retention{Operations: time.Hour})
	require.NoError(t, err)
	require.Equal(t, db.Pruned{Operations: 1}, pruned)
	_, err = r.Operation(t.Context(), old.Operation)
	requireKind(t, cyborg.ErrNotFound, err)

	left, err := r.Operation(t.Context(), open.Operation)
	require.NoError(t, err)
	require.Zero(t, left.RetryOf)
}
