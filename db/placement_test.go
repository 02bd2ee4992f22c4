package db_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

const aWhile = time.Hour

// due takes the hosts that are due, as a process that brings them into step
// does.
func (r *records) due(t testing.TB) []string {
	t.Helper()
	hosts, err := r.TakeDuePlacement(t.Context(), 100, aWhile)
	require.NoError(t, err)
	return hosts
}

// inStep records that a host and Placement agree.
func (r *records) inStep(t testing.TB, host string) {
	t.Helper()
	h, err := r.Placement(t.Context(), host)
	require.NoError(t, err)
	require.NoError(t, r.RecordPlacement(t.Context(), db.PlacementOutcome{Host: host, Version: h.Version, Marks: []byte("{}")}))
}

// TestPlacementTakeAndReturnDuringChanges: returning or starting hosts writes
// many rows at once, while other changes write the same rows in another order.
// Where PostgreSQL ends such a deadlock, the call succeeds all the same.
func TestPlacementTakeAndReturnDuringChanges(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	r.addHost(t, "h1", 1)
	r.addHost(t, "h2", 1)

	const change = "UPDATE placement_sync SET wanted = wanted + 1 WHERE host = $1"
	for name, write := range map[string]func() error{
		"return": func() error { return r.ReturnPlacement(t.Context(), []string{"h1", "h2"}) },
		"start": func() error {
			return r.MarkPlacementStarted(t.Context(), []string{"h1", "h2"}, time.Microsecond, time.Minute)
		},
	} {
		for collided := false; !collided; {
			r.exec(t, "UPDATE placement_sync SET asked = done, try_at = NULL")
			_, err := r.TakeDuePlacement(t.Context(), 10, time.Microsecond)
			require.NoError(t, err)

			tx, err := r.sql.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(t.Context()) }()
			_, err = tx.Exec(t.Context(), change, "h2")
			require.NoError(t, err)

			var work errgroup.Group
			work.Go(write)
			require.Eventually(t, func() bool {
				return scalar[int](t, r, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 1
			}, 5*time.Minute, time.Millisecond)

			_, err = tx.Exec(t.Context(), change, "h1") // each waits for the other now, so that PostgreSQL ends one of them
			collided = err == nil
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, work.Wait(), name)
		}
	}
}

// TestPlacementTakenHostsReturnAfterTheLease: hosts whose process died before
// it started them are soon given to another one. Started hosts are left alone
// for a longer time. A host that could not be brought into step is tried again
// when its outcome asked for that, even where its start is recorded later.
func TestPlacementTakenHostsReturnAfterTheLease(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))

	take := func(lease time.Duration) []string {
		hosts, err := r.TakeDuePlacement(t.Context(), 100, lease)
		require.NoError(t, err)
		return hosts
	}

	require.Equal(t, []string{"h1"}, take(time.Microsecond))
	require.Equal(t, []string{"h1"}, take(time.Microsecond), "the process that had taken it died")
	require.NoError(t, r.MarkPlacementStarted(t.Context(), []string{"h1"}, time.Microsecond, aWhile))
	require.Empty(t, take(time.Microsecond), "it is being done")
	r.exec(t, "UPDATE placement_sync SET asked_at = asked_at - interval '1 hour', try_at = try_at - interval '1 hour'")
	require.Equal(t, []string{"h1"}, take(aWhile), "that took too long")

	refused := db.PlacementOutcome{Host: "h1", Error: "refused", TryIn: time.Microsecond}
	require.NoError(t, r.RecordPlacement(t.Context(), refused))
	r.exec(t, "UPDATE placement_sync SET try_at = now()")
	require.NoError(t, r.MarkPlacementStarted(t.Context(), []string{"h1"}, aWhile, aWhile))
	require.Equal(t, []string{"h1"}, take(aWhile), "it was tried before that was noted")
}

// TestPlacementIsFollowedAfterARestore: a host whose run had begun when a backup
// was taken is due in the restored records, because nobody knows what became of
// that run: it ends, and tells the records of before.
func TestPlacementIsFollowedAfterARestore(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	old.addHost(t, "h1", 1)
	require.NoError(t, old.SetPlacementFollowing(t.Context(), true, aWhile))
	require.Equal(t, []string{"h1"}, old.due(t))
	require.NoError(t, old.MarkPlacementStarted(t.Context(), []string{"h1"}, aWhile, aWhile))
	require.Empty(t, old.due(t))

	r := old.remake(t, old.dump(t))
	scalar[int64](t, r, "SELECT next_assignment()") // as any change, it begins the epoch
	require.Equal(t, []string{"h1"}, r.due(t))
	require.Empty(t, r.due(t), "it is being done")
}

// TestPlacementInterruptedComparisonIsRepeated: a host whose comparison was
// interrupted is given to another process within about a minute, and is still
// to be compared.
func TestPlacementInterruptedComparisonIsRepeated(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, 0))
	for _, host := range r.due(t) {
		r.inStep(t, host)
	}

	host, err := r.TakePlacementComparison(t.Context(), time.Microsecond, nil)
	require.NoError(t, err)
	require.Equal(t, "h1", host)
	require.Empty(t, r.due(t), "it is being compared")

	r.exec(t, "UPDATE placement_sync SET asked_at = asked_at - interval '1 minute', try_at = try_at - interval '1 minute'")
	require.Equal(t, []string{"h1"}, r.due(t))
	got, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	require.True(t, got.Compare)
}

// TestPlacementSeesHostRecordedDuringEnable: a host whose first report is
// recorded while Placement is switched on becomes due.
func TestPlacementSeesHostRecordedDuringEnable(t *testing.T) {
	t.Parallel()
	r := newRecords(t)

	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), "INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest) VALUES ('h1', 'b', '1', 1, 'd')")
	require.NoError(t, err)

	switched := make(chan error, 1)
	go func() { switched <- r.SetPlacementFollowing(context.WithoutCancel(t.Context()), true, aWhile) }()
	require.Eventually(t, func() bool {
		return scalar[bool](t, r, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'hosts'::regclass AND NOT granted)") || len(switched) > 0
	}, 5*time.Minute, 5*time.Millisecond)

	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-switched)
	require.Equal(t, []string{"h1"}, r.due(t))
}

// TestPlacementSeesChangeDuringEnable: switching Placement on waits for open
// changes, so that no host becomes due without them.
func TestPlacementSeesChangeDuringEnable(t *testing.T) {
	t.Parallel()
	for table, sql := range map[string]string{
		"deployables":    "UPDATE deployables SET presence = 'missing', missing_since = now()",
		"attach_handles": "UPDATE attach_handles SET presence = 'missing', missing_since = now()",
		"claims":         "DELETE FROM claims",
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			r.addHost(t, "h1", 1)

			tx, err := r.sql.Begin(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			_, err = tx.Exec(t.Context(), sql)
			require.NoError(t, err)

			switched := make(chan error, 1)
			go func() { switched <- r.SetPlacementFollowing(context.WithoutCancel(t.Context()), true, aWhile) }()
			var early []string // due before the change is committed
			require.Eventually(t, func() bool {
				early = append(early, r.due(t)...)
				return len(early) > 0 || scalar[bool](t, r, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = $1::regclass AND NOT granted)", table)
			}, 5*time.Minute, 5*time.Millisecond)

			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, <-switched)
			require.Empty(t, early)
			require.Equal(t, []string{"h1"}, r.due(t))
		})
	}
}

// TestPlacementIsDueAfterRelevantChanges: each change that Placement should
// know makes its host due, in its own transaction, and no other change does.
func TestPlacementIsDueAfterRelevantChanges(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.addHost(t, "h2", 1)

	require.Empty(t, r.due(t), "nothing is kept where there is no Placement")
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	require.ElementsMatch(t, []string{"h1", "h2"}, r.due(t))
	require.Empty(t, r.due(t), "somebody has them")
	require.NoError(t, r.ReturnPlacement(t.Context(), []string{"h2"}))
	require.Equal(t, []string{"h2"}, r.due(t))

	r.inStep(t, "h1")
	r.inStep(t, "h2")
	a := h.accelerator(t, "card0")
	var work cyborg.Work
	vm := instance(uuid.NewString())

	for _, step := range []struct {
		name    string
		matters bool
		do      func()
	}{
		{"heartbeat", false, func() {
			_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
			require.NoError(t, err)
		}},
		{"same report", false, func() { h.report(t) }},
		{"provision", true, func() {
			r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID, Name: "mine"}), cyborg.OperationSucceeded)
		}},
		{"attach", true, func() { r.do(t, toAttach(a.UUID, vm), cyborg.OperationSucceeded) }},
		{"detach", true, func() { r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded) }},
		{"maintain", true, func() {
			_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
			require.NoError(t, err)
		}},
		{"another reason", false, func() {
			_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "y"}, alice())
			require.NoError(t, err)
		}},
		{"enable", true, func() { _, err := r.Enable(t.Context(), a.UUID, alice()); require.NoError(t, err) }},
		{"program begins", true, func() { work = r.begin(t, toProgram(a.UUID)) }},
		{"program ends", true, func() { r.end(t, work, cyborg.OperationFailed) }},
		{"vanishes", true, func() { h.content.Backends[0].Devices = nil; h.report(t) }},
		{"comes back with another trait", true, func() {
			h.content = content(1)
			h.content.Backends[0].Devices[0].Deployables[0].Attributes = []cyborg.Attribute{{Key: "trait0", Value: "CUSTOM_X"}}
			h.report(t)
		}},
	} {
		step.do()
		if step.matters {
			require.Equal(t, []string{"h1"}, r.due(t), step.name)
			r.inStep(t, "h1")
		} else {
			require.Empty(t, r.due(t), step.name)
		}
	}

	r.addHost(t, "h3", 1)
	require.Equal(t, []string{"h3"}, r.due(t), "from its first report on")
	require.True(t, scalar[bool](t, r, "SELECT compared_at BETWEEN now() - interval '1 hour' AND now() FROM placement_sync WHERE host = 'h3'"))

	require.NoError(t, r.SetPlacementFollowing(t.Context(), false, 0))
	r.addHost(t, "h4", 1)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM placement_sync"))
}

// TestPlacementCountsHandlesTakenOutsideNova: handles that somebody got without
// Nova are counted, because Placement has no allocation for them. Those of
// Nova's requests are not.
func TestPlacementCountsHandlesTakenOutsideNova(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	vm := instance(uuid.NewString())
	r.do(t, toAttach(a.UUID, vm), cyborg.OperationSucceeded)

	got, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	require.Len(t, got.Deployables, 1)
	require.Equal(t, 1, got.Deployables[0].HeldOutsideNova)
	require.False(t, got.Deployables[0].Untouched)
	require.Equal(t, map[string]int{vm.ID: 0}, got.Deployables[0].Instances)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)

	r.profile(t, "one", one())

	// Placement knows what Nova gives to an instance. It does not know what a
	// service gets in the same way.
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	r.due(t)
	r.inStep(t, "h1")

	for _, test := range []struct {
		holder  cyborg.Holder
		outside int
	}{{instance(uuid.NewString()), 0}, {cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}, 1}} {
		arqs := r.request(t, "one")
		r.do(t, toBind("h1", test.holder, a.ProviderUUID, arqs...), cyborg.OperationSucceeded)
		got, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		require.Equal(t, test.outside, got.Deployables[0].HeldOutsideNova)
		require.Len(t, r.due(t), test.outside)
		r.inStep(t, "h1")

		r.do(t, toUnbind(arqs...), cyborg.OperationSucceeded)
		require.Len(t, r.due(t), test.outside)
		r.inStep(t, "h1")
	}
}

// TestPlacementIgnoresOutdatedPlans: marks of a plan from old records are not
// saved, and an outcome of an old version leaves its host due.
func TestPlacementIgnoresOutdatedPlans(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	r.due(t)

	before, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	ok, err := r.SavePlacementMarks(t.Context(), "h1", before.Version, []byte(`{"x": {}}`))
	require.NoError(t, err)
	require.True(t, ok)

	_, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)
	ok, err = r.SavePlacementMarks(t.Context(), "h1", before.Version, []byte(`{}`))
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, r.RecordPlacement(t.Context(), db.PlacementOutcome{Host: "h1", Version: before.Version, Marks: []byte(`{"x": {}}`)}))
	require.Equal(t, []string{"h1"}, r.due(t))

	after, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	require.JSONEq(t, `{"x": {}}`, string(after.Marks))
}

// TestPlacementRetries: what could not be done is tried again after its time,
// or at once when the records change.
func TestPlacementRetries(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	require.Equal(t, []string{"h1"}, r.due(t))

	got, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	waits := db.PlacementOutcome{
		Host: "h1", Version: got.Version, Error: "no compute node", TryIn: aWhile,
		Drift: []cyborg.Drift{{Class: cyborg.DriftNoComputeNode, Detail: "it is not there"}},
	}
	require.NoError(t, r.RecordPlacement(t.Context(), waits))
	require.Empty(t, r.due(t))

	open, err := r.Drift(t.Context(), db.DriftFilter{}, db.Page{})
	require.NoError(t, err)
	require.Len(t, open, 1)
	require.Zero(t, open[0].RepairedAt)

	_, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, r.due(t))

	waits.TryIn = 0
	require.NoError(t, r.RecordPlacement(t.Context(), waits))
	require.Equal(t, []string{"h1"}, r.due(t))
	r.inStep(t, "h1")
	open, err = r.Drift(t.Context(), db.DriftFilter{}, db.Page{})
	require.NoError(t, err)
	require.NotZero(t, open[0].RepairedAt)
}

// TestPlacementSilentHosts: a host that falls silent becomes due, and each
// change between silent and alive is recorded once.
func TestPlacementSilentHosts(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	h := r.addHost(t, "h2", 1)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	r.due(t)

	r.exec(t, "UPDATE hosts SET last_seen = now() - interval '5 minutes' WHERE name = 'h2'")
	changed, err := r.RecordSilentHosts(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, changed)
	require.Equal(t, []string{"h2"}, r.due(t))

	got, err := r.Placement(t.Context(), "h2")
	require.NoError(t, err)
	require.True(t, got.Silent)

	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)

	changed, err = r.RecordSilentHosts(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Equal(t, 1, changed)
	changed, err = r.RecordSilentHosts(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Zero(t, changed)
}

// TestPlacementComparesHostsInTurn: the host whose comparison is oldest is
// compared first, and drift stays listed until a comparison no longer finds it.
func TestPlacementComparesHostsInTurn(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for _, name := range []string{"h1", "h2", "h3"} {
		r.addHost(t, name, 1)
	}
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, 0))
	for _, host := range r.due(t) {
		r.inStep(t, host)
	}

	r.exec(t, "UPDATE placement_sync SET compared_at = now() - interval '1 minute' WHERE host = 'h2'")
	take := func(before ...string) string {
		host, err := r.TakePlacementComparison(t.Context(), time.Microsecond, before)
		require.NoError(t, err)
		return host
	}

	require.Equal(t, "h2", take())
	require.NoError(t, r.ReturnPlacementComparison(t.Context(), "h2"))
	require.Empty(t, r.due(t), "it is as much in step as it was")
	require.Empty(t, take("h1", "h2", "h3"))
	require.Equal(t, "h2", take("h1"))

	got, err := r.Placement(t.Context(), "h2")
	require.NoError(t, err)
	require.True(t, got.Compare)

	provider := uuid.New()
	found := db.PlacementOutcome{Host: "h2", Version: got.Version, Compared: true, Marks: []byte("{}"), Drift: []cyborg.Drift{
		{Class: cyborg.DriftOrphanProvider, Provider: provider, Name: "x", Detail: "in use"},
		{Class: cyborg.DriftTraits, Provider: provider, Name: "x", Detail: "lacks", RepairedAt: time.Now()},
		{Class: cyborg.DriftUnknownAllocation, Provider: provider, Name: "x", Detail: "vm"},
	}}
	require.NoError(t, r.RecordPlacement(t.Context(), found))

	list := func(open *bool, page db.Page) []cyborg.DriftClass {
		listed, err := r.Drift(t.Context(), db.DriftFilter{Open: open}, page)
		require.NoError(t, err)

		classes := []cyborg.DriftClass{}
		for _, d := range listed {
			classes = append(classes, d.Class)
		}
		return classes
	}

	yes := true
	require.Equal(t, []cyborg.DriftClass{cyborg.DriftOrphanProvider, cyborg.DriftTraits}, list(nil, db.Page{}))
	require.Equal(t, []cyborg.DriftClass{cyborg.DriftOrphanProvider}, list(&yes, db.Page{}))
	require.NoError(t, r.RecordPlacement(t.Context(), found))
	require.Len(t, list(nil, db.Page{}), 3, "an allocation that stays unknown is told")
	require.Len(t, list(nil, db.Page{Marker: cyborg.Drift{Host: "h2", Class: cyborg.DriftOrphanProvider, Provider: provider}.Key()}), 2)

	state, err := r.PlacementState(t.Context())
	require.NoError(t, err)
	require.Equal(t, db.PlacementState{Open: map[cyborg.DriftClass]int{
		cyborg.DriftOrphanProvider: 1, cyborg.DriftUnknownAllocation: 1,
	}}, state)

	found.Drift = nil
	require.NoError(t, r.RecordPlacement(t.Context(), found))
	require.Empty(t, list(&yes, db.Page{}))

	pruned, err := r.Prune(t.Context(), db.Retention{Events: time.Nanosecond})
	require.NoError(t, err)
	require.Equal(t, 3, pruned.Drift)
}

// TestPlacementDriftEvents: drift that appears, ends or is repaired is an event
// of its subject, once each. A difference between allocations and requests may
// exist for a moment, so that it becomes an event only when it is found again.
func TestPlacementDriftEvents(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	r.due(t)

	nobodys, at := uuid.New(), r.endOfFeed(t)
	driftEvents := func(drift ...cyborg.Drift) []string {
		t.Helper()
		got, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		require.NoError(t, r.RecordPlacement(t.Context(), db.PlacementOutcome{
			Host: "h1", Version: got.Version, Compared: true, Marks: []byte("{}"), Drift: drift,
		}))

		r.endOfFeed(t)
		events, err := r.Events(t.Context(), db.EventFilter{}, at, 0)
		require.NoError(t, err)

		out := []string{}
		for _, e := range events {
			at = e.Cursor
			require.Equal(t, "h1", e.Host)
			require.Equal(t, "cyborg", e.Actor)
			name := map[string]string{a.UUID.String(): "card0", nobodys.String(): "nobody's"}[e.Subject.ID]
			out = append(out, fmt.Sprintf("%s %s %s %q %q %v", e.Subject.Kind, cmp.Or(name, e.Subject.ID), e.Axis, e.From, e.To, e.Data["repaired"]))
		}
		return out
	}

	reserved := cyborg.Drift{Class: cyborg.DriftReserved, Provider: a.ProviderUUID, Name: "p", Detail: "0 are", RepairedAt: time.Now()}
	repaired := []string{
		`accelerator card0 drift_reserved "" "0 are" <nil>`, `accelerator card0 drift_reserved "0 are" "" true`,
	}
	require.Equal(t, repaired, driftEvents(reserved))
	require.Empty(t, driftEvents())
	require.Equal(t, repaired, driftEvents(reserved))
	require.Equal(t, repaired, driftEvents(reserved), "it is another one")

	orphan := cyborg.Drift{Class: cyborg.DriftOrphanProvider, Provider: nobodys, Name: "p", Detail: "vm has it"}
	root := cyborg.Drift{Class: cyborg.DriftNoComputeNode, Detail: "none"}
	require.Equal(t, []string{
		`resource_provider nobody's drift_orphan_provider "" "vm has it" <nil>`, `host h1 drift_no_compute_node "" "none" <nil>`,
	}, driftEvents(orphan, root))

	orphan.Detail = "vm2 has it"
	require.Equal(t, []string{`resource_provider nobody's drift_orphan_provider "vm has it" "vm2 has it" <nil>`}, driftEvents(orphan, root))

	orphan.RepairedAt = time.Now()
	require.ElementsMatch(t, []string{
		`resource_provider nobody's drift_orphan_provider "vm2 has it" "" true`, `host h1 drift_no_compute_node "none" "" false`,
	}, driftEvents(orphan))

	lacks := cyborg.Drift{Class: cyborg.DriftMissingAllocation, Provider: a.ProviderUUID, Name: "p", Detail: "vm"}
	require.Empty(t, driftEvents(lacks))
	require.Empty(t, driftEvents())
	require.Empty(t, driftEvents(lacks))
	require.Equal(t, []string{`accelerator card0 drift_missing_allocation "" "vm" <nil>`}, driftEvents(lacks))
	require.Empty(t, driftEvents(lacks))
	require.Equal(t, []string{`accelerator card0 drift_missing_allocation "vm" "" false`}, driftEvents())
}

// TestPlacementForgetsHosts: the row of a forgotten host in placement_sync is
// deleted when nothing of the host is left in Placement.
func TestPlacementForgetsHosts(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.ready(t, "card0")
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	r.due(t)
	r.inStep(t, "h1")

	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	require.Equal(t, []string{"h1"}, r.due(t))
	got, err := r.Placement(t.Context(), "h1")
	require.NoError(t, err)
	require.Empty(t, got.Deployables)

	still := db.PlacementOutcome{Host: "h1", Version: got.Version, Marks: []byte(`{"x": {}}`)}
	require.NoError(t, r.RecordPlacement(t.Context(), still))
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM placement_sync"))
	still.Marks = []byte("{}")
	require.NoError(t, r.RecordPlacement(t.Context(), still))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM placement_sync"))
}
