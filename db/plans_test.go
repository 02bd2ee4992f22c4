package db_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestPlans: what is done often uses indexes, so that its cost does not grow
// with the number of records.
func TestPlans(t *testing.T) {
	t.Parallel()
	r := cloud(t, 16_000)

	store, plans := explaining(t, r.url)
	past := &records{Store: store, url: r.url, sql: r.sql}
	past.profile(t, "asked", one())
	r.exec(t, `INSERT INTO arqs (project, profile_uuid, profile_name, group_index, profile_group)
		SELECT 'p', uuid, name, 0, groups -> 0 FROM device_profiles, generate_series(1, 20000)`)
	r.exec(t, "ANALYZE arqs")
	r.exec(t, `
		UPDATE hosts h SET attachments = (
			SELECT jsonb_agg(jsonb_build_object('backend', 'fake', 'deployable', d.local_name, 'handle', a.identity, 'operation_id', gen_random_uuid(), 'state', 'attached'))
			FROM deployables d JOIN attach_handles a ON a.deployable_uuid = d.uuid WHERE d.host = h.name AND a.holder_kind IS NOT NULL)
		WHERE EXISTS (SELECT FROM attach_handles WHERE host = h.name AND holder_kind IS NOT NULL)`)
	r.exec(t, "ANALYZE hosts")

	id := scalar[uuid.UUID](t, r, "SELECT uuid FROM deployables WHERE lifecycle = 'ready' ORDER BY id OFFSET 4000 LIMIT 1")
	fresh := scalar[uuid.UUID](t, r, "SELECT uuid FROM deployables WHERE lifecycle = 'inactive' ORDER BY id OFFSET 4000 LIMIT 1")

	filtered := func(filter db.AcceleratorFilter, page db.Page) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			_, err := store.Accelerators(t.Context(), filter, page)
			require.NoError(t, err)
		}
	}
	status := func(status cyborg.Status) db.AcceleratorFilter {
		return db.AcceleratorFilter{Statuses: []cyborg.Status{status}}
	}

	page := db.Page{Limit: 100}
	r.endOfFeed(t)
	events, err := r.Events(t.Context(), db.EventFilter{}, cyborg.Cursor{}, 1)
	require.NoError(t, err)
	oldest := events[0].Cursor
	h := &host{records: past, name: "h00500", boot: "b", sequence: 1, content: content(8)}
	scan := regexp.MustCompile(`Seq Scan on (deployables|devices|attach_handles|events|arqs|placement_sync|placement_drift)\b`)
	// This index is as long as there are held handles, and so needs a condition.
	whole := regexp.MustCompile(`Scan using attach_handles_by_holder on [^\n]*\n\s+Filter`)
	ofEach := regexp.MustCompile(`Filter: .*\b(read_before|unreadable_from)\(`)

	r.follow(t)

	for _, test := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"first page", filtered(db.AcceleratorFilter{}, page)},
		{"page amid", filtered(db.AcceleratorFilter{}, db.Page{Limit: 100, Marker: id.String()})},
		{"host", filtered(db.AcceleratorFilter{Hosts: []string{"h00500"}}, page)},
		{"names", func(t *testing.T) {
			t.Helper()
			_, err := store.AcceleratorNames(t.Context(), []string{"h00500"})
			require.NoError(t, err)
		}},
		{"begins so", filtered(db.AcceleratorFilter{UUIDRange: &db.UUIDRange{First: id, Last: id}}, db.Page{Limit: 2})},
		{"holder", filtered(db.AcceleratorFilter{Holder: &cyborg.Holder{Kind: "instance", ID: "vm"}}, page)},
		{"error", filtered(status(cyborg.StatusError), page)},
		{"missing", filtered(status(cyborg.StatusMissing), page)},
		{"attaching", filtered(status(cyborg.StatusAttaching), page)},
		{"attached", filtered(status(cyborg.StatusAttached), page)},
		{"fenced", filtered(status(cyborg.StatusFenced), page)},
		{"unready", filtered(status(cyborg.StatusUnready), page)},
		{"maintaining", filtered(status(cyborg.StatusMaintaining), page)},
		{"one", func(t *testing.T) { t.Helper(); past.accelerator(t, id) }},
		{"history", func(t *testing.T) {
			t.Helper()
			subject := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id.String()}
			_, err := store.Events(t.Context(), db.EventFilter{Subjects: []cyborg.Subject{subject}}, oldest, 100)
			require.NoError(t, err)
		}},
		{"feed", func(t *testing.T) {
			t.Helper()
			_, err := store.Events(t.Context(), db.EventFilter{}, oldest, 100)
			require.NoError(t, err)
		}},
		{"end of the feed", func(t *testing.T) { t.Helper(); _, err := store.LastCursor(t.Context()); require.NoError(t, err) }},
		{"provision", func(t *testing.T) {
			t.Helper()
			past.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: fresh, Name: "new"}), cyborg.OperationSucceeded)
		}},
		{"attach", func(t *testing.T) { t.Helper(); past.do(t, toAttach(id, instance("vm")), cyborg.OperationSucceeded) }},
		{"detach", func(t *testing.T) { t.Helper(); past.do(t, toDetach(id, nil), cyborg.OperationSucceeded) }},
		{"program", func(t *testing.T) { t.Helper(); past.do(t, toProgram(id), cyborg.OperationSucceeded) }},
		{"undone", func(t *testing.T) { t.Helper(); past.do(t, toProgram(id), cyborg.OperationFailed) }},
		{"bind", func(t *testing.T) {
			t.Helper()
			host := past.accelerator(t, id)
			made, err := store.CreateARQs(t.Context(), "asked", alice())
			require.NoError(t, err)

			who := uuid.New()
			past.do(t, toBind(host.Host, instance(who.String()), host.ProviderUUID, made[0]), cyborg.OperationSucceeded)
			_, err = store.ARQs(t.Context(), db.ARQFilter{Instances: []uuid.UUID{who}}, db.Listing{})
			require.NoError(t, err)
			_, err = store.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
			require.NoError(t, err)
		}},
		{"report", func(t *testing.T) {
			t.Helper()
			h.content.Backends[0].Devices = h.devices()[1:]
			for n := range 8 {
				h.journal(fmt.Sprintf("card%d", n), cyborg.AttachmentDone)
			}
			h.report(t)
		}},
		{"heartbeat", func(t *testing.T) {
			t.Helper()
			_, err := store.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
			require.NoError(t, err)
		}},
		{"maintain", func(t *testing.T) {
			t.Helper()
			_, err := store.Maintain(t.Context(), id, cyborg.Maintenance{Reason: "x"}, alice())
			require.NoError(t, err)
		}},
		{"tidy", func(t *testing.T) {
			t.Helper()
			_, err := store.EndExpiredMaintenance(t.Context())
			require.NoError(t, err)
			_, err = store.Unprovisioned(t.Context(), 100)
			require.NoError(t, err)
			_, err = store.Orphans(t.Context(), cyborg.OperationRunning, time.Minute, db.OperationPlace{}, 100)
			require.NoError(t, err)
			_, err = store.Prune(t.Context(), db.Retention{Events: time.Hour, Operations: time.Hour, Idempotency: time.Hour})
			require.NoError(t, err)
		}},
		{"placement, what is due", func(t *testing.T) {
			t.Helper()
			due, err := store.TakeDuePlacement(t.Context(), 100, time.Minute)
			require.NoError(t, err)
			require.NotEmpty(t, due)
			require.NoError(t, store.ReturnPlacement(t.Context(), due))

			_, err = store.RecordSilentHosts(t.Context(), time.Hour)
			require.NoError(t, err)
			_, err = store.PlacementState(t.Context())
			require.NoError(t, err)
		}},
		{"placement, a comparison", func(t *testing.T) {
			t.Helper()
			host, err := store.TakePlacementComparison(t.Context(), time.Minute, []string{"h00001"})
			require.NoError(t, err)
			require.NotEmpty(t, host)

			found, err := store.Placement(t.Context(), host)
			require.NoError(t, err)
			require.Len(t, found.Deployables, 8)
			_, err = store.RecordedProviders(t.Context(), []uuid.UUID{found.Deployables[0].ProviderUUID})
			require.NoError(t, err)
			ok, err := store.SavePlacementMarks(t.Context(), host, found.Version, []byte("{}"))
			require.NoError(t, err)
			require.True(t, ok)

			require.NoError(t, store.RecordPlacement(t.Context(), db.PlacementOutcome{
				Host: host, Version: found.Version, Compared: true, Marks: []byte("{}"), Drift: []cyborg.Drift{
					{Class: cyborg.DriftReserved, Provider: found.Deployables[0].ProviderUUID, Name: "p", Detail: "0 are", RepairedAt: time.Now()},
				},
			}))
		}},
		{"placement, what differs", func(t *testing.T) {
			t.Helper()
			yes := true
			_, err := store.Drift(t.Context(), db.DriftFilter{Hosts: []string{"h00500"}, Open: &yes}, page)
			require.NoError(t, err)
			_, err = store.Drift(t.Context(), db.DriftFilter{Open: &yes}, page)
			require.NoError(t, err)
		}},
		{"forget", func(t *testing.T) {
			t.Helper()
			_, err := store.Forget(t.Context(), 0)
			require.NoError(t, err)
		}},
	} {
		test.do(t)
		for _, plan := range plans() {
			require.False(t, scan.MatchString(plan), "%s:\n%s", test.name, plan)
			if test.name == "attach" {
				require.False(t, whole.MatchString(plan), "%s reads all held handles:\n%s", test.name, plan)
			}
			require.False(t, ofEach.MatchString(plan), "%s calls a function for each event:\n%s", test.name, plan)
		}
	}
}

// TestOperationPlans: running operations and those that need an operator are
// found by an index, however many operations there have been.
func TestOperationPlans(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 0)
	r.exec(t, `
		WITH made AS (
			INSERT INTO operations (id, kind, state, host, input, error, actor, admitted_at, started_at, ended_at)
			SELECT gen_random_uuid(), 'attach', CASE WHEN n > 8000 THEN 'running' WHEN n % 2000 = 0 THEN 'needs_operator' ELSE 'succeeded' END, 'h1', '{}',
			       CASE WHEN n <= 8000 AND n % 2000 = 0 THEN '{"kind": "hardware", "message": "x"}'::jsonb END, 'alice',
			       now() - n * interval '1 s', now() - n * interval '1 s', CASE WHEN n <= 8000 THEN now() END
			FROM generate_series(1, 8010) AS n RETURNING id)
		INSERT INTO operation_subjects (operation_id, position, kind, subject_id) SELECT id, 0, 'host', 'h1' FROM made`)
	r.exec(t, "ANALYZE operations")

	store, plans := explaining(t, r.url)
	plans() // drops those of opening the store

	for _, test := range []struct {
		states []cyborg.OperationState
		index  string
		count  int
	}{
		{[]cyborg.OperationState{cyborg.OperationNeedsOperator}, "operations_in_need", 4},
		{[]cyborg.OperationState{cyborg.OperationRunning}, "operations_open", 10},
		{[]cyborg.OperationState{cyborg.OperationAdmitted, cyborg.OperationRunning}, "operations_open", 10},
	} {
		found, err := store.Operations(t.Context(), db.OperationFilter{States: test.states}, db.Page{Limit: 100})
		require.NoError(t, err)
		require.Len(t, found, test.count)

		for _, plan := range plans() {
			require.Contains(t, plan, test.index, "%v", test.states)
		}
	}

	found, err := store.Operations(t.Context(), db.OperationFilter{States: []cyborg.OperationState{cyborg.OperationRunning, cyborg.OperationNeedsOperator}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 14)
}

// follow prepares what Placement would have left: nearly all hosts are in step
// and have marks, each accelerator has drift that was repaired, and each was
// requested once.
func (r *records) follow(t *testing.T) {
	t.Helper()
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))

	r.exec(t, `
		UPDATE placement_sync p SET done = wanted, asked = wanted, since = NULL, marks = (
			SELECT jsonb_object_agg(d.provider_uuid, '{"classes": ["FPGA"], "traits": ["OWNER_CYBORG"]}'::jsonb)
			FROM deployables d WHERE d.host = p.host)
		WHERE host > 'h00005'`)

	r.exec(t, `
		INSERT INTO placement_drift (host, class, provider_uuid, detail, repaired_at)
		SELECT host, 'reserved', provider_uuid, '0 are', now() FROM deployables`)

	r.exec(t, "INSERT INTO device_profiles (name, groups) VALUES ('one', '[{}]')")
	r.exec(t, `
		INSERT INTO arqs (profile_uuid, profile_name, group_index, profile_group, state, reason, host, provider_uuid, instance_uuid)
		SELECT p.uuid, p.name, 0, '{}', 'BindFailed', 'x', d.host, d.provider_uuid, gen_random_uuid() FROM deployables d, device_profiles p WHERE p.name = 'one'`)

	r.exec(t, "VACUUM ANALYZE")
}
