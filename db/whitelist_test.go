package db_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// addPCIHost is addHost with handles that are PCI functions, because only these
// can be in Nova's whitelist.
func (r *records) addPCIHost(t testing.TB, name string, devices int) *host {
	t.Helper()
	h := &host{records: r, name: name, boot: "boot-1", content: content(devices)}

	for i, device := range h.content.Backends[0].Devices {
		for f := range device.Deployables[0].Handles {
			address := cyborg.PCIAddress{Bus: uint8(i + 1), Function: uint8(f)}
			handle := &device.Deployables[0].Handles[f]
			handle.Kind, handle.Info, handle.Identity = cyborg.HandlePCI, address.HandleInfo(), address.String()
		}
	}

	h.report(t)
	return h
}

// toWhitelist is the admission of a whitelist that lists these accelerators and
// no others.
func toWhitelist(host string, accelerators ...*cyborg.Accelerator) db.Admission {
	a := admission()
	request := cyborg.WhitelistRequest{Host: host, Devices: []cyborg.WhitelistDevice{}}
	for _, accelerator := range accelerators {
		request.Devices = append(request.Devices, cyborg.WhitelistDevice{Accelerator: accelerator.UUID})
	}
	a.Request = request
	return a
}

// novas returns the names of the accelerators in the whitelist of a host's
// Nova.
func (r *records) novas(t testing.TB, host string) []string {
	t.Helper()
	found, err := r.Whitelist(t.Context(), host)
	require.NoError(t, err)

	var out []string
	for _, a := range found {
		out = append(out, a.LocalName)
	}
	return out
}

// TestWhitelist: a whitelist names all devices of a host that Nova gives out. A
// new device is Nova's from the beginning of the operation, and a removed one
// until the operation has succeeded.
func TestWhitelist(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 3)
	first, second, third := h.accelerator(t, "card0"), h.accelerator(t, "card1"), h.accelerator(t, "card2")

	plan, err := r.PlanWhitelist(t.Context(), toWhitelist("h1", first).Request.(cyborg.WhitelistRequest))
	require.NoError(t, err)
	require.Len(t, plan.Entries, 1)
	require.Empty(t, r.novas(t, "h1"), "a plan changes nothing")

	request := toWhitelist("h1", first, second)
	spec := cyborg.NovaSpec{ResourceClass: "FPGA", Traits: []string{"CUSTOM_A"}}
	edit(&request, func(r *cyborg.WhitelistRequest) { r.Devices[1].Spec, r.Force = spec, true })
	work := r.begin(t, request)
	require.Equal(t, []string{"card0", "card1"}, r.novas(t, "h1"), "from its beginning on")
	require.Equal(t, cyborg.StatusConfiguring, r.accelerator(t, first.UUID).Status())
	require.Equal(t, &cyborg.WhitelistWork{
		Entries: []cyborg.WhitelistEntry{{Target: work.Targets[0]}, {Target: work.Targets[1], Spec: spec}},
		Before:  []cyborg.WhitelistEntry{}, Force: true,
	}, work.Whitelist)

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work.Whitelist, again.Whitelist)

	_, err = r.Admit(t.Context(), toWhitelist("h1", third))
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())
	require.Equal(t, work.Operation, cyborg.AsError(err).Operation)

	r.end(t, work, cyborg.OperationSucceeded)
	require.Equal(t, spec, *r.accelerator(t, second.UUID).Nova)

	// The next whitelist replaces the whole one. What it removes is Nova's until it
	// has succeeded.
	for state, after := range map[cyborg.OperationState][]string{
		cyborg.OperationFailed: {"card0", "card1"}, cyborg.OperationCancelled: {"card0", "card1"},
	} {
		work = r.begin(t, toWhitelist("h1", first, third))
		require.Equal(t, []string{"card0", "card1", "card2"}, r.novas(t, "h1"))
		require.Len(t, work.Whitelist.Before, 2)
		require.Equal(t, "card1", work.Whitelist.Removed()[0].Deployable)
		require.True(t, work.Whitelist.Had(work.Whitelist.Entries[0].Target))
		require.False(t, work.Whitelist.Had(work.Whitelist.Entries[1].Target))

		r.end(t, work, state)
		require.Equal(t, after, r.novas(t, "h1"))
		require.Equal(t, spec, *r.accelerator(t, second.UUID).Nova)
	}

	r.do(t, toWhitelist("h1", first, third), cyborg.OperationNeedsOperator)
	require.Equal(t, []string{"card0", "card1", "card2"}, r.novas(t, "h1"), "nobody knows which of them Nova has")
	require.Equal(t, cyborg.LifecycleInactive, r.accelerator(t, third.UUID).Lifecycle)

	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)
	require.Empty(t, r.novas(t, "h1"))
	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)

	op := r.admit(t, toWhitelist("h1", first))
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationCancelled, Error: cyborg.Errorf(cyborg.ErrCancelled, "no")}))
	require.Empty(t, r.novas(t, "h1"), "one that never began")
}

// fileSays makes a host report the file of its Nova's whitelist: its checksum,
// and what somebody else changed in it.
func (h *host) fileSays(t testing.TB, sha256, foreign string) {
	t.Helper()
	h.content.Whitelist = &cyborg.WhitelistFile{SHA256: sha256, Foreign: foreign}
	h.report(t)
}

// TestWhitelistDrift: a file that differs from the one that was written last is
// drift of its host, from the second look on and until it no longer differs.
func TestWhitelistDrift(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, other := r.addPCIHost(t, "h1", 1), r.addPCIHost(t, "h2", 1)

	open := func() []cyborg.Drift {
		t.Helper()
		require.NoError(t, r.CompareWhitelists(t.Context()))

		yes := true
		found, err := r.Drift(t.Context(), db.DriftFilter{Open: &yes, Classes: []cyborg.DriftClass{cyborg.DriftNovaWhitelist}}, db.Page{})
		require.NoError(t, err)

		counted, err := r.CountWhitelistDrift(t.Context())
		require.NoError(t, err)
		require.Equal(t, len(found), counted)
		return found
	}

	requireOpen := func(host, detail string) cyborg.Drift {
		t.Helper()
		require.Empty(t, open(), "it may not have been reported yet")

		found := open()
		require.Len(t, found, 1)
		require.Equal(t, host, found[0].Host)
		require.Contains(t, found[0].Detail, detail)
		require.Contains(t, found[0].Detail, "cyborg host whitelist", "what to do")
		require.Zero(t, found[0].Provider)
		require.Equal(t, "h1/nova_whitelist/"+uuid.Nil.String(), found[0].Key())
		return found[0]
	}

	write := func(sha256 string, accelerators ...*cyborg.Accelerator) {
		t.Helper()
		work := r.begin(t, toWhitelist("h1", accelerators...))
		require.Empty(t, open(), "it is being written")
		require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
			Operation: work.Operation, State: cyborg.OperationSucceeded, Result: map[string]any{"sha256": sha256, "changed": true},
		}))
	}

	require.Empty(t, open(), "an agent that does not tell")
	other.fileSays(t, "", "")
	h.fileSays(t, "", "")

	card := h.accelerator(t, "card0")
	write("one", card)
	require.Empty(t, open(), "its agent has not reported it yet")

	h.fileSays(t, "one", "")
	require.Empty(t, open())
	require.Empty(t, open())

	history := func() []string {
		return scalar[[]string](t, r, `
			SELECT array_agg(from_value || '>' || to_value ORDER BY transaction, id) FROM events
			WHERE subject_kind = 'host' AND subject_id = 'h1' AND axis = 'drift_nova_whitelist'`)
	}
	require.Empty(t, history())

	h.fileSays(t, "two", "somebody has changed it")
	requireOpen("h1", "somebody has changed it")
	h.fileSays(t, "", "")
	require.Contains(t, open()[0].Detail, "is gone")

	h.fileSays(t, "one", "")
	require.Empty(t, open())
	require.Empty(t, open())

	events := history()
	require.Len(t, events, 3)
	require.Regexp(t, "^>.*somebody has changed it", events[0])
	require.Regexp(t, "somebody has changed it.*>.*is gone", events[1])
	require.Regexp(t, "is gone.*>$", events[2])

	found, err := r.Drift(t.Context(), db.DriftFilter{Hosts: []string{"h1"}}, db.Page{})
	require.NoError(t, err)
	require.NotZero(t, found[0].RepairedAt, "it was once")

	// Once another whitelist is written, the old drift is over, and what is found
	// later is new drift.
	h.fileSays(t, "old", "")
	requireOpen("h1", "an older one")
	require.Len(t, open(), 1)

	work := r.begin(t, toWhitelist("h1"))
	require.Len(t, open(), 1, "while it is written, nothing is known")
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded, Result: map[string]any{"sha256": ""}}))
	h.fileSays(t, "", "")
	require.Empty(t, open())

	h.fileSays(t, "one", "")
	requireOpen("h1", "an older one")

	h.content.Whitelist = nil
	h.report(t)
	require.Empty(t, open(), "its agent writes none any more")
	h.fileSays(t, "one", "")
	requireOpen("h1", "an older one")

	r.exec(t, "UPDATE hosts SET last_seen = now() - interval '1 day' WHERE name = 'h1'")
	require.NoError(t, r.ForgetHost(t.Context(), "h1", cyborg.Actor{Name: "alice"}))
	require.Empty(t, open(), "the host is forgotten")

	r.exec(t, "UPDATE whitelist_drift SET repaired_at = now() - interval '2 hours'")
	pruned, err := r.Prune(t.Context(), db.Retention{Events: time.Hour})
	require.NoError(t, err)
	require.Equal(t, 1, pruned.Drift)
}

// TestWhitelistBeforeItWasRecorded: where the records do not say which
// whitelist was written, the first reported file counts as written, unless
// somebody else has changed it.
func TestWhitelistBeforeItWasRecorded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	hosts := map[string]*host{}
	for _, name := range []string{"h1", "h2"} {
		hosts[name] = r.addPCIHost(t, name, 1)
	}

	open := func() []string {
		t.Helper()
		for range 2 {
			require.NoError(t, r.CompareWhitelists(t.Context()))
		}
		return scalar[[]string](t, r, "SELECT array_agg(host ORDER BY host) FROM whitelist_drift WHERE repaired_at IS NULL AND counts")
	}

	require.Empty(t, open(), "their agents do not tell")
	hosts["h1"].fileSays(t, "long ago", "")
	hosts["h2"].fileSays(t, "theirs", "somebody has changed it")
	require.Equal(t, []string{"h2"}, open())

	hosts["h2"].fileSays(t, "long ago", "")
	require.Empty(t, open())
	hosts["h1"].fileSays(t, "another", "")
	require.Equal(t, []string{"h1"}, open(), "only the first report tells")
}

// TestConcurrentWhitelists: of several operations that set the whitelist of one
// host at once, one is admitted, even though they have no accelerator in
// common.
func TestConcurrentWhitelists(t *testing.T) {
	t.Parallel()
	const askers = 6
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", askers)

	var asking sync.WaitGroup
	errs := make([]error, askers)
	for i := range askers {
		request := toWhitelist("h1", h.accelerator(t, fmt.Sprintf("card%d", i)))
		asking.Go(func() { _, errs[i] = r.Admit(context.WithoutCancel(t.Context()), request) })
	}
	asking.Wait()

	admitted := 0
	for _, err := range errs {
		if err == nil {
			admitted++
			continue
		}
		requireKind(t, cyborg.ErrClaimed, err, "the whitelist of host h1")
		require.NotZero(t, cyborg.AsError(err).Operation)
	}
	require.Equal(t, 1, admitted)
}

// TestWhitelistedDeviceIsRefused: a device is given out either by Nova or by
// Cyborg, so that Cyborg refuses to use what Nova has.
func TestWhitelistedDeviceIsRefused(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 2)
	a := h.accelerator(t, "card0")
	beside := h.ready(t, "card1")
	r.do(t, toWhitelist("h1", a), cyborg.OperationSucceeded)

	refused := func(kind cyborg.ErrorKind, request db.Admission) {
		t.Helper()
		_, err := r.Admit(t.Context(), request)
		requireKind(t, kind, err, "")
	}

	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
	requireKind(t, cyborg.ErrInUse, err, "card0", "in the whitelist of Nova on host h1")
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg host whitelist")
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "any"}))
	requireKind(t, cyborg.ErrNoFit, err, "in the whitelist of Nova")

	refused(cyborg.ErrChanged, toAttach(a.UUID, instance("vm")))
	refused(cyborg.ErrChanged, toProgram(a.UUID))
	refused(cyborg.ErrChanged, toRetire(a))
	refused(cyborg.ErrInUse, toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUninstall}))

	found, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found)

	_, err = r.sql.Exec(t.Context(), "UPDATE deployables SET lifecycle = 'ready' WHERE uuid = $1", a.UUID)
	require.ErrorContains(t, err, "deployables_given_out_once", "whatever else goes wrong")

	// An image for a whole device would take away the part that a guest of Nova
	// uses.
	h.content.Backends[0].Devices[1].Deployables = append(h.content.Backends[0].Devices[1].Deployables, deployable("part", 1))
	part := &h.content.Backends[0].Devices[1].Deployables[1].Handles[0]
	part.Info = cyborg.PCIAddress{Bus: 9}.HandleInfo()
	h.report(t)

	r.do(t, toWhitelist("h1", a, h.accelerator(t, "part")), cyborg.OperationSucceeded)
	whole := toProgram(beside.UUID)
	edit(&whole, func(r *cyborg.ProgramRequest) { r.Image.WholeDevice = true })
	_, err = r.Admit(t.Context(), whole)
	requireKind(t, cyborg.ErrInUse, err, "part")

	// A vanished device is not forgotten, because it is still Nova's if it comes
	// back.
	h.content.Backends[0].Devices = h.content.Backends[0].Devices[1:]
	h.report(t)
	forgotten, err := r.Forget(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, forgotten)
	require.NotNil(t, r.accelerator(t, a.UUID).Nova)

	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)
	forgotten, err = r.Forget(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 4, forgotten)
}

// TestWhitelistRefusals: a device that Nova could not give out is refused, by
// the plan and by the operation alike.
func TestWhitelistRefusals(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 6)
	r.addPCIHost(t, "h2", 1)
	foreign := (&host{records: r, name: "h2"}).accelerator(t, "card0")
	inactive, ready, missing, protected := h.accelerator(t, "card0"), h.ready(t, "card1"), h.accelerator(t, "card2"), h.accelerator(t, "card3")
	odd, gpu := h.accelerator(t, "card4"), h.accelerator(t, "card5")

	devices := h.content.Backends[0].Devices
	devices[3].Deployables[0].Protected = "it has the root file system"
	devices[4].Deployables[0].Handles[0].Kind = cyborg.HandleMDEV
	h.content.Backends[0].Devices = slices.Delete(devices, 2, 3)
	h.report(t)

	refused := func(kind cyborg.ErrorKind, request db.Admission, text ...string) {
		t.Helper()
		_, err := r.Admit(t.Context(), request)
		requireKind(t, kind, err, text...)
		_, err = r.PlanWhitelist(t.Context(), request.Request.(cyborg.WhitelistRequest))
		requireKind(t, kind, err, text...)
		require.Empty(t, r.novas(t, "h1"))
	}

	refused(cyborg.ErrNotFound, toWhitelist("h9"), "h9")
	refused(cyborg.ErrNotFound, toWhitelist("h1", &cyborg.Accelerator{UUID: uuid.Max}), uuid.Max.String())
	refused(cyborg.ErrNotFound, toWhitelist("h1", foreign), foreign.UUID.String())
	refused(cyborg.ErrInvalid, toWhitelist("h1", inactive, inactive), "twice")
	refused(cyborg.ErrChanged, toWhitelist("h1", ready), "ready, not inactive")
	refused(cyborg.ErrChanged, toWhitelist("h1", missing), "missing")
	refused(cyborg.ErrProtected, toWhitelist("h1", protected), "root file system")
	refused(cyborg.ErrUnsupported, toWhitelist("h1", odd), "MDEV")
	refused(cyborg.ErrChanged, toWhitelist("h1", inactive, ready, protected), "2 of 3 devices", ready.Name, protected.Name)

	network := toWhitelist("h1", gpu)
	edit(&network, func(r *cyborg.WhitelistRequest) { r.Devices[0].Spec.PhysicalNetwork = "physnet1" })
	refused(cyborg.ErrInvalid, network, "for NICs")
	class := toWhitelist("h1", gpu)
	edit(&class, func(r *cyborg.WhitelistRequest) { r.Devices[0].Spec.ResourceClass = "gpu" })
	refused(cyborg.ErrInvalid, class, "gpu")

	// Maintenance does not matter, but a fence does, because somebody may still use
	// the device, whatever its lifecycle says.
	_, err := r.Maintain(t.Context(), inactive.UUID, cyborg.Maintenance{Reason: "fan", By: "alice"}, alice())
	require.NoError(t, err)

	r.do(t, toAttach(ready.UUID, instance("vm")), cyborg.OperationSucceeded)
	h.fall(t)
	r.do(t, toForce(ready.UUID, nil), cyborg.OperationSucceeded)
	r.exec(t, "UPDATE deployables SET lifecycle = 'inactive' WHERE uuid = $1", ready.UUID)
	refused(cyborg.ErrChanged, toWhitelist("h1", ready), "fenced")

	r.do(t, toWhitelist("h1", inactive), cyborg.OperationSucceeded)
	require.Equal(t, []string{"card0"}, r.novas(t, "h1"))
}

// TestPlacementOmitsWhitelistedDevices: Placement loses Cyborg's provider of a
// device in the whitelist, because Nova's own has the same name.
func TestPlacementOmitsWhitelistedDevices(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	h := r.addPCIHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toRetire(a), cyborg.OperationSucceeded)

	providers := func() (wanted int, recorded []uuid.UUID) {
		t.Helper()
		placement, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		recorded, err = r.RecordedProviders(t.Context(), []uuid.UUID{a.ProviderUUID})
		require.NoError(t, err)
		return len(placement.Deployables), recorded
	}

	wanted, recorded := providers()
	require.Equal(t, 1, wanted)
	require.Len(t, recorded, 1)
	r.inStep(t, "h1")
	require.Empty(t, r.due(t))

	r.do(t, toWhitelist("h1", a), cyborg.OperationSucceeded)
	require.Equal(t, []string{"h1"}, r.due(t))
	wanted, recorded = providers()
	require.Zero(t, wanted)
	require.Empty(t, recorded)
	r.inStep(t, "h1")

	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)
	require.Equal(t, []string{"h1"}, r.due(t))
}

// TestHistoryOfTheWhitelist: the history of an accelerator shows when it was in
// the whitelist.
func TestHistoryOfTheWhitelist(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 1)
	a := h.accelerator(t, "card0")

	first := r.do(t, toWhitelist("h1", a), cyborg.OperationSucceeded)
	tagged := toWhitelist("h1", a)
	edit(&tagged, func(r *cyborg.WhitelistRequest) { r.Devices[0].Spec.ResourceClass = "PGPU" })
	r.do(t, tagged, cyborg.OperationSucceeded)
	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)

	rows, err := r.sql.Query(t.Context(), `
		SELECT from_value || '>' || to_value || ' ' || data::text FROM events
		WHERE axis = 'nova_whitelist' AND subject_id = $1 ORDER BY transaction, id`, a.UUID.String())
	require.NoError(t, err)
	history, err := pgx.CollectRows(rows, pgx.RowTo[*string])
	require.NoError(t, err)

	require.Len(t, history, 3)
	require.Equal(t, []string{">in {}", `in>in {"resource_class": "PGPU"}`}, []string{*history[0], *history[1]})
	require.Nil(t, history[2], "it left, without more to say")
	require.Equal(t, first.Operation, scalar[uuid.UUID](t, r, "SELECT operation_id FROM events WHERE axis = 'nova_whitelist' ORDER BY transaction, id LIMIT 1"))
}
