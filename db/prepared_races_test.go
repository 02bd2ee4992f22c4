package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
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
