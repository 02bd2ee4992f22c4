package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// pages reads a list page by page.
func pages[T any](t *testing.T, limit int, read func(db.Page) ([]T, error), marker func(T) string) []T {
	t.Helper()
	var all []T
	page := db.Page{Limit: limit}

	for {
		items, err := read(page)
		require.NoError(t, err)
		require.LessOrEqual(t, len(items), limit)
		all = append(all, items...)

		if len(items) < limit {
			return all
		}
		page.Marker = marker(items[len(items)-1])
	}
}

// TestPages: pages of any size together give each item of a list once and in
// order, and an unknown marker is refused.
func TestPages(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for i := range 7 {
		h := r.addHost(t, fmt.Sprintf("h%d", i), 3)
		for c := range 3 {
			h.ready(t, fmt.Sprintf("card%d", c))
		}
	}

	for _, service := range []cyborg.Service{
		{Role: "api", Host: "m", Instance: "1"}, {Role: "api", Host: "m", Instance: "2"}, {Role: "conductor", Host: "m", Instance: "1"},
	} {
		service.StartedAt = time.Now()
		require.NoError(t, r.RecordService(t.Context(), service))
	}

	for _, limit := range []int{1, 4, 7, 21, 1000} {
		accelerators := pages(t, limit, func(p db.Page) ([]cyborg.Accelerator, error) {
			return r.Accelerators(t.Context(), db.AcceleratorFilter{}, p)
		}, func(a cyborg.Accelerator) string { return a.UUID.String() })
		require.Len(t, accelerators, 21)
		require.True(t, slices.IsSortedFunc(accelerators, func(a, b cyborg.Accelerator) int { return int(a.ID - b.ID) }))

		devices := pages(t, limit, func(p db.Page) ([]cyborg.Device, error) {
			return r.Devices(t.Context(), db.DeviceFilter{}, p)
		}, func(d cyborg.Device) string { return d.UUID.String() })
		require.Len(t, devices, 21)

		hosts := pages(t, limit, func(p db.Page) ([]cyborg.Host, error) { return r.Hosts(t.Context(), p) },
			func(h cyborg.Host) string { return h.Name })
		require.Len(t, hosts, 7)

		backends := pages(t, limit, func(p db.Page) ([]cyborg.Backend, error) {
			return r.BackendsOf(t.Context(), []string{"h1", "h3", "h5", "h6", "h2"}, p)
		}, cyborg.Backend.Key)
		require.Len(t, backends, 5)

		services := pages(t, limit, func(p db.Page) ([]cyborg.Service, error) { return r.Services(t.Context(), p) }, cyborg.Service.Key)
		require.Len(t, services, 7+3)
		require.True(t, slices.IsSortedFunc(services, func(a, b cyborg.Service) int { return strings.Compare(a.Key(), b.Key()) }))

		operations := pages(t, limit, func(p db.Page) ([]cyborg.Operation, error) {
			return r.Operations(t.Context(), db.OperationFilter{}, p)
		}, func(o cyborg.Operation) string { return o.ID.String() })
		require.Len(t, operations, 21)
		require.True(t, slices.IsSortedFunc(operations, func(a, b cyborg.Operation) int { return b.CreatedAt.Compare(a.CreatedAt) }))
	}

	for _, marker := range []string{"nonsense", uuid.NewString()} {
		page := db.Page{Marker: marker}
		_, err := r.BackendsOf(t.Context(), nil, page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
		_, err = r.Services(t.Context(), page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
		_, err = r.Accelerators(t.Context(), db.AcceleratorFilter{}, page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
		_, err = r.Devices(t.Context(), db.DeviceFilter{}, page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
		_, err = r.Hosts(t.Context(), page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
		_, err = r.Operations(t.Context(), db.OperationFilter{}, page)
		requireKind(t, cyborg.ErrInvalid, err, marker)
	}
}

// TestFilters: each filter of a list finds what it describes and nothing else,
// and what does not exist is an error.
func TestFilters(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h1, h2 := r.addHost(t, "h1", 2), r.addHost(t, "h2", 1)

	gpu := device("gpu0")
	gpu.Type, gpu.VendorID = cyborg.DeviceTypeGPU, "10de"
	h2.content.Backends = append(h2.content.Backends, agentapi.BackendReport{
		Name: "gpus", Driver: "generic", State: cyborg.BackendOK, Devices: []cyborg.DeviceReport{gpu},
	})
	h2.report(t)

	a, b := h1.ready(t, "card0"), h2.accelerator(t, "gpu0")
	r.do(t, toAttach(a.UUID, instance("vm")), cyborg.OperationSucceeded)
	vm, nobody := instance("vm"), instance("nobody")

	for name, test := range map[string]struct {
		filter db.AcceleratorFilter
		want   []string
	}{
		"none":         {db.AcceleratorFilter{}, []string{"h1_card0", "h1_card1", "h2_card0", "h2_gpu0"}},
		"uuid":         {db.AcceleratorFilter{UUIDs: []uuid.UUID{b.UUID, uuid.New()}}, []string{"h2_gpu0"}},
		"name":         {db.AcceleratorFilter{Names: []string{"h1_card1"}}, []string{"h1_card1"}},
		"hosts":        {db.AcceleratorFilter{Hosts: []string{"h2", "h9"}}, []string{"h2_card0", "h2_gpu0"}},
		"driver":       {db.AcceleratorFilter{Drivers: []string{"generic"}}, []string{"h2_gpu0"}},
		"backend":      {db.AcceleratorFilter{Backends: []string{"gpus"}}, []string{"h2_gpu0"}},
		"type":         {db.AcceleratorFilter{DeviceTypes: []cyborg.DeviceType{cyborg.DeviceTypeGPU}}, []string{"h2_gpu0"}},
		"device":       {db.AcceleratorFilter{Devices: []uuid.UUID{a.DeviceUUID}}, []string{"h1_card0"}},
		"holder":       {db.AcceleratorFilter{Holder: &vm}, []string{"h1_card0"}},
		"other holder": {db.AcceleratorFilter{Holder: &nobody}, nil},
		"status":       {db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusInactive}}, []string{"h1_card1", "h2_card0", "h2_gpu0"}},
		"statuses":     {db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusReady, cyborg.StatusError}}, []string{"h1_card0"}},
		"both":         {db.AcceleratorFilter{Hosts: []string{"h1"}, Statuses: []cyborg.Status{cyborg.StatusInactive}}, []string{"h1_card1"}},
		"no status":    {db.AcceleratorFilter{Statuses: []cyborg.Status{"lost"}}, nil},
	} {
		found, err := r.Accelerators(t.Context(), test.filter, db.Page{})
		require.NoError(t, err, name)

		var names []string
		for _, f := range found {
			names = append(names, f.Name)
		}
		require.Equal(t, test.want, names, name)
	}

	devices, err := r.Devices(t.Context(), db.DeviceFilter{Hosts: []string{"h2"}, Types: []cyborg.DeviceType{cyborg.DeviceTypeGPU}, Vendors: []string{"10de"}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, devices, 1)

	_, err = r.Device(t.Context(), uuid.New())
	requireKind(t, cyborg.ErrNotFound, err)
	_, err = r.Accelerator(t.Context(), uuid.New())
	requireKind(t, cyborg.ErrNotFound, err)
	_, err = r.Host(t.Context(), "h9")
	requireKind(t, cyborg.ErrNotFound, err, "h9")
	_, err = r.Backends(t.Context(), "h9")
	requireKind(t, cyborg.ErrNotFound, err, "h9")

	backends, err := r.BackendsOf(t.Context(), nil, db.Page{})
	require.NoError(t, err)
	require.Len(t, backends, 3)

	running := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: b.UUID}))
	count := func(f db.OperationFilter) int {
		found, err := r.Operations(t.Context(), f, db.Page{})
		require.NoError(t, err)
		return len(found)
	}

	open, closed := true, false
	require.Equal(t, 3, count(db.OperationFilter{}))
	require.Equal(t, 1, count(db.OperationFilter{Open: &open}))
	require.Equal(t, 2, count(db.OperationFilter{Open: &closed}))
	require.Equal(t, 2, count(db.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationProvision}}))
	require.Equal(t, 2, count(db.OperationFilter{States: []cyborg.OperationState{cyborg.OperationSucceeded}}))
	require.Equal(t, 1, count(db.OperationFilter{Hosts: []string{"h2"}}))
	require.Equal(t, 2, count(db.OperationFilter{Subject: &cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: a.UUID.String()}}))

	newest, err := r.Operations(t.Context(), db.OperationFilter{}, db.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, running.Operation, newest[0].ID)
}

// TestStatusInSQL: the filter of the store agrees with Accelerator.Status in
// every state that an accelerator may have. The states are random.
func TestStatusInSQL(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 12)
	h.content.Backends[0].Devices[0].Deployables[0].Handles = nil
	h.report(t)
	all := h.accelerators(t)

	rapid.Check(t, func(rt *rapid.T) {
		pick := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(rt, label) }
		tx, err := r.sql.Begin(t.Context())
		require.NoError(rt, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // fails only after the commit

		exec := func(sql string, args ...any) {
			_, err := tx.Exec(t.Context(), sql, args...)
			require.NoError(rt, err)
		}

		exec("DELETE FROM claims")
		exec("DELETE FROM operations")

		for local, a := range all {
			lifecycle := pick(local+" lifecycle", "inactive", "installing", "ready", "ready", "error")
			admin := pick(local+" administration", "enabled", "enabled", "maintaining")
			until := pick(local+" until", "2999-01-01", "2000-01-01")
			fence := pick(local+" fence", "", "", "dust")
			conditions := pick(local+" conditions", "[]", `[{"code": "a", "level": "degraded"}]`, `[{"code": "a", "level": "unready"}]`)
			presence := pick(local+" presence", "present", "present", "present", "missing")

			exec(`UPDATE deployables SET untouched = false, lifecycle = $2, reason = CASE WHEN $2 = 'error' THEN 'x' ELSE '' END,
			    administration = $3, maintain_reason = CASE WHEN $3 = 'maintaining' THEN 'x' ELSE '' END,
			    maintain_until = CASE WHEN $3 = 'maintaining' THEN $5::timestamptz END, fence_reason = nullif($6, ''), conditions = $7,
			    presence = $4, missing_since = CASE WHEN $4 = 'missing' THEN now() END WHERE uuid = $1`,
				a.UUID, lifecycle, admin, presence, until, fence, conditions)

			for _, handle := range a.Handles {
				holder, left := pick(local+" holder", "", "vm"), pick(local+" left", "", "vm")
				if holder != "" {
					left = ""
				}
				there := pick(local+" handle", "present", "present", "missing")
				exec(`UPDATE attach_handles SET presence = $2, missing_since = CASE WHEN $2 = 'missing' THEN now() END,
				    holder_kind = CASE WHEN $3 <> '' THEN 'instance' END, holder_id = nullif($3, ''),
				    unconfirmed_kind = CASE WHEN $4 <> '' THEN 'instance' END, unconfirmed_id = nullif($4, ''),
				    unconfirmed_operation = CASE WHEN $4 <> '' THEN $1::uuid END,
				    operation_id = CASE WHEN $3 <> '' THEN $1::uuid END, attached_at = NULL WHERE uuid = $1`, handle.UUID, there, holder, left)
			}

			if kind := pick(local+" claim", "", "", "provision", "program", "attach", "detach", "configure"); kind != "" {
				id := uuid.New()
				exec("INSERT INTO operations (id, kind, host, input, actor) VALUES ($1, $2, 'h1', '{}', 'x')", id, kind)
				exec("INSERT INTO operation_subjects VALUES ($1, 0, 'accelerator', $2)", id, a.UUID.String())
				exec("INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, $2)", a.UUID, id)
			}
		}

		require.NoError(rt, tx.Commit(t.Context()))

		byStatus := map[cyborg.Status][]uuid.UUID{}
		found, err := r.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
		require.NoError(rt, err)
		require.Len(rt, found, len(all))
		for _, a := range found {
			byStatus[a.Status()] = append(byStatus[a.Status()], a.UUID)
		}

		ask := func(statuses ...cyborg.Status) {
			var want, got []uuid.UUID
			for _, status := range statuses {
				want = append(want, byStatus[status]...)
			}

			found, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Statuses: statuses}, db.Page{})
			require.NoError(rt, err)
			for _, a := range found {
				got = append(got, a.UUID)
			}

			require.ElementsMatch(rt, want, got, "%v", statuses)
		}

		for _, status := range cyborg.Statuses() {
			ask(status)
		}
		ask(rapid.SliceOfNDistinct(rapid.SampledFrom(cyborg.Statuses()), 2, 5, rapid.ID).Draw(rt, "statuses")...)
	})
}

// TestUpdateSpecs: an operator's specs are added to those set before, unless
// they were read from an outdated version, and they hide what the hardware
// reports.
func TestUpdateSpecs(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.accelerator(t, "card0")

	crypto, yes := "crypto", true
	changed, err := r.UpdateSpecs(t.Context(), a.UUID, cyborg.SpecsPatch{Type: &crypto, Num: &a.Specs.Num}, a.SpecVersion, alice())
	require.NoError(t, err)
	require.Equal(t, "crypto", changed.Specs.Type)
	require.Equal(t, a.SpecVersion+1, changed.SpecVersion)

	_, err = r.UpdateSpecs(t.Context(), a.UUID, cyborg.SpecsPatch{Remotable: &yes}, a.SpecVersion, alice())
	requireKind(t, cyborg.ErrChanged, err)
	changed, err = r.UpdateSpecs(t.Context(), a.UUID, cyborg.SpecsPatch{Remotable: &yes, Capability: cyborg.JSONObject{}}, 0, alice())
	require.NoError(t, err)
	require.Equal(t, "crypto", changed.Specs.Type, "what was set before stays")
	require.True(t, changed.Specs.Remotable)
	require.Equal(t, cyborg.JSONObject{}, changed.Specs.Capability)

	_, err = r.UpdateSpecs(t.Context(), a.UUID, cyborg.SpecsPatch{Num: new(9)}, 0, alice())
	requireKind(t, cyborg.ErrInvalid, err, "num")
	_, err = r.UpdateSpecs(t.Context(), uuid.New(), cyborg.SpecsPatch{}, 0, alice())
	requireKind(t, cyborg.ErrNotFound, err)

	// What the hardware reports still counts where the operator set nothing.
	h.content.Backends[0].Devices[0].Deployables[0].Specs = cyborg.Specs{Num: 5, DeviceType: cyborg.DeviceTypeGPU, Type: "other", Remote: true}
	h.report(t)
	found := h.accelerator(t, "card0")
	require.Equal(t, cyborg.Specs{
		Num: 5, DeviceType: cyborg.DeviceTypeGPU, Type: "crypto", Remote: true, Remotable: true, Capability: cyborg.JSONObject{},
	}, found.Specs)
}

// TestMaintenanceOfADevice: maintenance of a device applies to all its
// accelerators, however many they are, even none.
func TestMaintenanceOfADevice(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	devices := h.content.Backends[0].Devices
	devices[0].Deployables = append(devices[0].Deployables, deployable("second", 1))
	devices[1].Deployables = nil
	h.report(t)

	found, err := r.Devices(t.Context(), db.DeviceFilter{}, db.Page{})
	require.NoError(t, err)
	now, err := r.Now(t.Context())
	require.NoError(t, err)

	over := cyborg.Maintenance{Reason: "dust", Until: now.Add(-time.Minute)}
	for _, d := range found {
		_, err := r.MaintainDevice(t.Context(), d.UUID, over, alice())
		requireKind(t, cyborg.ErrInvalid, err, "would be over already")
	}

	ahead := cyborg.Maintenance{Reason: "dust", Until: now.Add(time.Hour)}
	two, err := r.MaintainDevice(t.Context(), found[0].UUID, ahead, alice())
	require.NoError(t, err)
	require.Len(t, two.Deployables, 2)

	for _, a := range two.Deployables {
		require.Equal(t, cyborg.StatusMaintaining, a.Status())
		require.True(t, ahead.Until.Equal(a.Maintenance.Until))
	}

	two, err = r.EnableDevice(t.Context(), found[0].UUID, alice())
	require.NoError(t, err)
	for _, a := range two.Deployables {
		require.Equal(t, cyborg.AdministrationEnabled, a.Admin)
	}

	_, err = r.Forget(t.Context(), 0)
	require.NoError(t, err)
	none, err := r.MaintainDevice(t.Context(), found[1].UUID, ahead, alice())
	require.NoError(t, err)
	require.Empty(t, none.Deployables)
	_, err = r.MaintainDevice(t.Context(), found[1].UUID, over, alice())
	requireKind(t, cyborg.ErrInvalid, err, "would be over already")
}

// TestMaintenance: maintenance needs a reason, may be changed, and ends by
// command or when its time is over.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	a, b, c := h.ready(t, "card0"), h.accelerator(t, "card1"), h.accelerator(t, "card2")

	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{}, alice())
	requireKind(t, cyborg.ErrInvalid, err, "reason")
	_, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x", Until: time.Now().Add(-time.Hour)}, alice())
	requireKind(t, cyborg.ErrInvalid, err, "over already")
	_, err = r.Maintain(t.Context(), uuid.New(), cyborg.Maintenance{Reason: "x"}, alice())
	requireKind(t, cyborg.ErrNotFound, err)

	until := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	found, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan", Until: until}, alice())
	require.NoError(t, err)
	require.Equal(t, &cyborg.Maintenance{Reason: "fan", By: "alice", Until: until}, found.Maintenance)
	require.Equal(t, cyborg.StatusMaintaining, found.Status())

	earlier, err := r.Now(t.Context())
	require.NoError(t, err)
	found, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan", For: 2 * time.Hour}, alice())
	require.NoError(t, err)
	later, err := r.Now(t.Context())
	require.NoError(t, err)
	require.WithinRange(t, found.Maintenance.Until, earlier.Add(2*time.Hour), later.Add(2*time.Hour), "by the records' clock")

	found, err = r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fans", By: "bob"}, alice())
	require.NoError(t, err)
	require.Equal(t, &cyborg.Maintenance{Reason: "fans", By: "bob"}, found.Maintenance)

	for range 2 {
		found, err = r.Enable(t.Context(), a.UUID, alice())
		require.NoError(t, err)
		require.Equal(t, cyborg.StatusReady, found.Status())
		require.Nil(t, found.Maintenance)
	}

	_, err = r.Enable(t.Context(), uuid.New(), alice())
	requireKind(t, cyborg.ErrNotFound, err)

	for _, id := range []uuid.UUID{b.UUID, c.UUID} {
		_, err = r.Maintain(t.Context(), id, cyborg.Maintenance{Reason: "x", Until: until}, alice())
		require.NoError(t, err)
	}
	enabled, err := r.EndExpiredMaintenance(t.Context())
	require.NoError(t, err)
	require.Zero(t, enabled)

	r.exec(t, "UPDATE deployables SET maintain_until = now() - interval '1 second' WHERE uuid = $1", b.UUID)
	over := r.accelerator(t, b.UUID)
	require.Equal(t, cyborg.StatusInactive, over.Status(), "its time is over, whatever Reconcile does")
	require.Nil(t, over.Maintenance)
	r.do(t, toProvision(cyborg.ProvisionRequest{Specs: cyborg.SpecsPatch{}, Name: "fits"}), cyborg.OperationSucceeded)
	require.Equal(t, "fits", r.accelerator(t, b.UUID).Name)

	enabled, err = r.EndExpiredMaintenance(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, enabled)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, b.UUID).Status())
	require.Equal(t, cyborg.StatusMaintaining, r.accelerator(t, c.UUID).Status())
}

// TestMaintenanceOfManyHostsEnds: where maintenance is over on very many hosts,
// no transaction locks more than 500 of them, because the lock table has
// limited room.
func TestMaintenanceOfManyHostsEnds(t *testing.T) {
	t.Parallel()
	r := cloud(t, 8*510)
	r.exec(t, "UPDATE deployables SET administration = 'maintaining', maintain_reason = 'power', maintain_until = now() - interval '1 s'")
	before := scalar[int64](t, r, "SELECT max(id) FROM events")

	enabled, err := r.EndExpiredMaintenance(t.Context())
	require.NoError(t, err)
	require.Equal(t, 8*510, enabled)
	require.Equal(t, 500, scalar[int](t, r, `
		SELECT max(count) FROM (SELECT count(DISTINCT host) FROM events WHERE id > $1 AND axis = 'administration' GROUP BY transaction) AS changes`, before))

	enabled, err = r.EndExpiredMaintenance(t.Context())
	require.NoError(t, err)
	require.Zero(t, enabled)
}

// TestBackendsOfManyHosts: the backends of many hosts cost the same number of
// statements as those of one.
func TestBackendsOfManyHosts(t *testing.T) {
	t.Parallel()
	count := &counter{}
	r := newRecordsWith(t, db.Options{Tracer: count})

	var hosts []string
	for i := range 30 {
		hosts = append(hosts, r.addHost(t, fmt.Sprintf("h%02d", i), 1).name)
	}

	before := count.statements.Load()
	found, err := r.BackendsOf(t.Context(), hosts, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 30)
	require.Equal(t, int64(2), count.statements.Load()-before)

	_, err = r.BackendsOf(t.Context(), append(hosts, "nowhere", "h00"), db.Page{})
	requireKind(t, cyborg.ErrNotFound, err, `"nowhere"`)
}

// TestServiceKeepsItsStartTime: the start time of a process stays the same with
// each sign of life. Its successor under the same name has a new one.
func TestServiceKeepsItsStartTime(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	process := cyborg.Service{Role: "api", Host: "m", Instance: "1", StartedAt: time.Now().Add(-time.Hour)}

	touched := func() time.Time {
		require.NoError(t, r.RecordService(t.Context(), process))
		all, err := r.Services(t.Context(), db.Page{})
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0].StartedAt
	}

	first := touched()
	require.WithinDuration(t, process.StartedAt, first, time.Minute)
	require.Equal(t, first, touched())

	process.StartedAt = time.Now()
	require.True(t, touched().After(first.Add(time.Minute)))
}
