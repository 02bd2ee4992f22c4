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

// These tests are about handles that their host prepares while something else happens: the
// end of another operation, a report, a boot.

// TestObservationsOfPreparedBinds: two binds on parts of one device that end at the same
// time do not overwrite what the other one has seen of it, so a report that is older than
// both undoes nothing.
func TestObservationsOfPreparedBinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	dev := &h.content.Backends[0].Devices[0]
	dev.Deployables = append(dev.Deployables, deployable("part1", 2))
	for i := range dev.Deployables {
		dev.Deployables[i].Preparation = &cyborg.Preparation{}
	}
	h.report(t)
	a, b := h.ready(t, "card0"), h.ready(t, "part1")
	r.profile(t, "p", one())
	first := r.begin(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "p")[0])).Operation
	second := r.begin(t, toBind("h1", vm(), b.ProviderUUID, r.request(t, "p")[0])).Operation

	// The host attaches for the first, is looked at for a report, and attaches for the second.
	h.sequence++
	seenFirst := h.sequence
	h.attached("card0", first)
	late := h.next()
	late.Content.Attachments = slices.Clone(late.Content.Attachments)
	h.sequence++
	seenSecond := h.sequence

	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM devices FOR UPDATE")
	require.NoError(t, err)
	ended := make(chan error, 2)
	end := func(outcome cyborg.Outcome) { ended <- r.End(t.Context(), runOf(outcome.Operation), outcome) }
	waiting := func(n int) {
		require.Eventually(t, func() bool {
			return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == n
		}, time.Minute, 10*time.Millisecond)
	}
	seen := func(sequence int64) []cyborg.Observation {
		return []cyborg.Observation{{Sequence: sequence, Backend: "fake", Device: h.devices()[0]}}
	}
	go end(cyborg.Outcome{Operation: second, State: cyborg.OperationSucceeded, Observations: seen(seenSecond)})
	waiting(1)
	go end(cyborg.Outcome{Operation: first, State: cyborg.OperationSucceeded, Observations: seen(seenFirst)})
	waiting(2)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)

	require.Equal(t, seenSecond, scalar[int64](t, r, "SELECT observed_seq FROM devices"))
	_, err = r.MergeReports(t.Context(), []agentapi.Report{late})
	require.NoError(t, err)
	for _, handle := range h.accelerator(t, "part1").Handles {
		require.Nil(t, handle.Undone)
	}
	require.Nil(t, h.accelerator(t, "part1").Fence)
}

// TestBootBeforeTheEndOfABind: a report that shows a boot before a bind ends which has had a
// handle prepared says nothing of the handle yet. The end compares it again, and has the
// host attach the handle at once.
func TestBootBeforeTheEndOfABind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var told []string
	store := openStore(t, r.url, db.Options{SilentAfter: defaults().SilentAfter, ToSettle: func(hosts []string) { told = append(told, hosts...) }})
	h, a := r.prepared(t, 1)
	r.profile(t, "p", one())
	work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "p")[0]))
	h.sequence++
	seen := h.sequence
	h.attached("card0", work.Operation)
	h.fellDown(t)
	require.Nil(t, h.accelerator(t, "card0").Fence)

	require.NoError(t, store.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Observations: []cyborg.Observation{{Sequence: seen, Backend: "fake", Device: h.devices()[0]}},
	}))
	require.NotNil(t, h.accelerator(t, "card0").Handles[0].Undone)
	require.NotNil(t, h.accelerator(t, "card0").Fence)
	require.Equal(t, []string{"h1"}, told)
}

// TestEndWithoutANewReport: the end of an operation marks nothing because of a report from
// before its step, which lacks what the host has attached since.
func TestEndWithoutANewReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	r.profile(t, "p", one())
	r.do(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "p")[0]), cyborg.OperationSucceeded)
	r.do(t, toAttach(a.UUID, instance("vm9")), cyborg.OperationSucceeded)
	for _, handle := range h.accelerator(t, "card0").Handles {
		require.Nil(t, handle.Undone)
	}
	require.Nil(t, h.accelerator(t, "card0").Fence)
}

// TestBootWhileAnotherWorksOnIt: while an operation works on an accelerator, nothing of it
// is marked as undone. An instance that has a prepared handle of it is not rebooted
// meanwhile, and the end of the operation marks the handle.
func TestBootWhileAnotherWorksOnIt(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	who := vm()
	h.bound(t, a, who, one())
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	h.fellDown(t)
	waits := func(cause string) {
		t.Helper()
		why, unclear, err := r.LackedCard(t.Context(), uuid.MustParse(who.ID))
		require.NoError(t, err)
		require.Contains(t, why, cause)
		require.True(t, unclear)
		found, err := r.UnrescuedHosts(t.Context(), 10)
		require.NoError(t, err)
		require.Empty(t, found)
	}
	waits("has not attached its accelerator")

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrHardware, "it burns"),
	}))
	waits("a boot of its host")
	require.NotNil(t, h.accelerator(t, "card0").Handles[0].Undone)

	h.settle(t)
	h.content.Attachments[0].State = cyborg.AttachmentDone
	h.report(t)
	found, err := r.UnrescuedHosts(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, found)
}

// TestRescueWaitsWhileAnOperationWorks: what an operation does to the accelerator of a
// prepared handle says nothing of the handle before its end.
func TestRescueWaitsWhileAnOperationWorks(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	who := vm()
	h.bound(t, a, who, one())
	r.begin(t, toAttach(a.UUID, onHost("h1")))
	why, unclear, err := r.LackedCard(t.Context(), uuid.MustParse(who.ID))
	require.NoError(t, err)
	require.Contains(t, why, "an operation works on its accelerator")
	require.True(t, unclear)
}

// fellDown boots the host, which undoes what it had attached, and reports that.
func (h *host) fellDown(t testing.TB) {
	t.Helper()
	h.boot = "boot-2"
	for i := range h.content.Attachments {
		h.content.Attachments[i].State = cyborg.AttachmentLost
	}
	h.report(t)
}

// TestSettlementBesideOthers: somebody gets another handle of the accelerator while the host
// takes one back. Its answer counts all the same.
func TestSettlementBesideOthers(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	r.deleted(t, h.bound(t, a, vm(), one()).UUID)
	found, err := r.DisagreementsOf(t.Context(), "h1", 1)
	require.NoError(t, err)
	decided, err := r.Decide(t.Context(), found[0])
	require.NoError(t, err)
	r.do(t, toAttach(a.UUID, instance("vm9")), cyborg.OperationSucceeded)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
	require.Equal(t, map[string]int{"free": 1, "held": 1}, r.handles(t))
}
