package db_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestPlans: what is done often costs what it is about, however much is recorded, because indexes lead to it.
func TestPlans(t *testing.T) {
	t.Parallel()
	r := cloud(t, 16_000)
	store, plans := explaining(t, r.url)
	past := &records{Store: store, url: r.url, sql: r.sql}
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
	h := &host{records: past, name: "h00500", boot: "b", sequence: 1, content: content(8)}
	scan := regexp.MustCompile(`Seq Scan on (deployables|devices|attach_handles|events)\b`)
	for _, test := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"first page", filtered(db.AcceleratorFilter{}, page)},
		{"page amid", filtered(db.AcceleratorFilter{}, db.Page{Limit: 100, Marker: id.String()})},
		{"host", filtered(db.AcceleratorFilter{Hosts: []string{"h00500"}}, page)},
		{"holder", filtered(db.AcceleratorFilter{Holder: &cyborg.Holder{Kind: "instance", ID: "vm"}}, page)},
		{"error", filtered(status(cyborg.StatusError), page)},
		{"missing", filtered(status(cyborg.StatusMissing), page)},
		{"attaching", filtered(status(cyborg.StatusAttaching), page)},
		{"attached", filtered(status(cyborg.StatusAttached), page)},
		{"maintaining", filtered(status(cyborg.StatusMaintaining), page)},
		{"one", func(t *testing.T) { t.Helper(); past.accelerator(t, id) }},
		{"history", func(t *testing.T) {
			t.Helper()
			subject := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id.String()}
			_, err := store.Events(t.Context(), db.EventFilter{Subjects: []cyborg.Subject{subject}}, cyborg.Cursor{Transaction: 1}, 100)
			require.NoError(t, err)
		}},
		{"feed", func(t *testing.T) {
			t.Helper()
			_, err := store.Events(t.Context(), db.EventFilter{}, cyborg.Cursor{Transaction: 1}, 100)
			require.NoError(t, err)
		}},
		{"end of the feed", func(t *testing.T) { t.Helper(); _, err := store.LastCursor(t.Context()); require.NoError(t, err) }},
		{"provision", func(t *testing.T) {
			t.Helper()
			past.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: fresh, Name: "new"}), cyborg.Succeeded)
		}},
		{"attach", func(t *testing.T) { t.Helper(); past.do(t, toAttach(id, instance("vm")), cyborg.Succeeded) }},
		{"detach", func(t *testing.T) { t.Helper(); past.do(t, toDetach(id, nil), cyborg.Succeeded) }},
		{"program", func(t *testing.T) { t.Helper(); past.do(t, toProgram(id), cyborg.Succeeded) }},
		{"undone", func(t *testing.T) { t.Helper(); past.do(t, toProgram(id), cyborg.Failed) }},
		{"report", func(t *testing.T) {
			t.Helper()
			h.content.Backends[0].Devices = h.devices()[1:]
			h.report(t)
		}},
		{"heartbeat", func(t *testing.T) {
			t.Helper()
			_, err := store.Beat(t.Context(), []cyborg.Heartbeat{h.beat()})
			require.NoError(t, err)
		}},
		{"maintain", func(t *testing.T) {
			t.Helper()
			_, err := store.Maintain(t.Context(), id, cyborg.Maintenance{Reason: "x"}, alice())
			require.NoError(t, err)
		}},
		{"tidy", func(t *testing.T) {
			t.Helper()
			_, err := store.EnableExpired(t.Context())
			require.NoError(t, err)
			_, err = store.Unprovisioned(t.Context(), 100)
			require.NoError(t, err)
			_, err = store.Orphans(t.Context(), time.Minute, 100)
			require.NoError(t, err)
			_, err = store.Prune(t.Context(), db.Retention{Events: time.Hour, Operations: time.Hour, Idempotency: time.Hour})
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
		}
	}
}
