package db_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// These tests are about cards that are divided into parts.

// divided is a card as it is when it is divided like that: whole, or with a deployable
// card0.vf0, card0.vf1 … of one handle for each part.
func divided(name string, layout cyborg.Layout) cyborg.DeviceReport {
	d := device(name)
	d.Partitioning = &cyborg.Partitioning{
		Parts: []cyborg.PartKind{{Name: "vf", Most: 4, Description: "a virtual function"}, {Name: "half", Most: 2}}, Layout: layout,
	}
	names := []string{name}
	if len(layout.Normal()) > 0 {
		names = nil
	}
	for kind, count := range layout {
		for i := range count {
			names = append(names, fmt.Sprint(name, ".", kind, i))
		}
	}

	d.Deployables = nil
	for i, name := range names {
		part := deployable(name, 1)
		part.Handles[0].Kind, part.Handles[0].Info = cyborg.HandlePCI, cyborg.PCIAddress{Bus: 1, Function: uint8(i)}.HandleInfo()
		d.Deployables = append(d.Deployables, part)
	}
	return d
}

// vfs is a layout of this many virtual functions.
func vfs(count int) cyborg.Layout { return cyborg.Layout{"vf": count} }

// divide has the host show its first card as divided like that.
func (h *host) divide(t testing.TB, layout cyborg.Layout) {
	t.Helper()
	h.devices()[0] = divided("card0", layout)
	h.report(t)
}

// addDivisible adds a host with a card that can be divided, and returns the card.
func (r *records) addDivisible(t testing.TB) (*host, uuid.UUID) {
	t.Helper()
	h := r.addHost(t, "h1", 1)
	h.divide(t, cyborg.Layout{})
	return h, h.accelerator(t, "card0").DeviceUUID
}

// toPartition is the admission of a partition.
func toPartition(device uuid.UUID, layout cyborg.Layout) db.Admission {
	a := admission()
	a.Request = cyborg.PartitionRequest{Device: device, Layout: layout}
	return a
}

// endDivided ends a partition; its host has seen the card as divided like that then, and
// shows it so.
func (h *host) endDivided(t testing.TB, work cyborg.Work, state cyborg.OperationState, seen cyborg.Layout) {
	t.Helper()
	h.sequence++
	h.devices()[0] = divided("card0", seen)
	outcome := cyborg.Outcome{
		Operation: work.Operation, State: state, Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.devices()[0]}},
	}
	if state != cyborg.OperationSucceeded {
		outcome.Error = cyborg.Errorf(cyborg.ErrHardware, "it broke")
	}
	require.NoError(t, h.records.End(t.Context(), runOf(work.Operation), outcome))
}

// partition has the card divided, and returns what the host was asked for.
func (h *host) partition(t testing.TB, device uuid.UUID, layout cyborg.Layout) cyborg.Work {
	t.Helper()
	work := h.records.begin(t, toPartition(device, layout))
	h.endDivided(t, work, cyborg.OperationSucceeded, layout)
	return work
}

// parts lists the accelerators of the host, missing ones included, by the driver's names.
func (h *host) parts(t testing.TB) []string {
	t.Helper()
	return scalar[[]string](t, h.records, "SELECT coalesce(array_agg(local_name ORDER BY local_name COLLATE \"C\"), '{}') FROM deployables WHERE host = $1", h.name)
}

// device reads a device with its accelerators.
func (r *records) device(t testing.TB, id uuid.UUID) cyborg.Device {
	t.Helper()
	d, err := r.Device(t.Context(), id)
	require.NoError(t, err)
	return d
}

// layoutDrift lists the differences of the class layout.
func (r *records) layoutDrift(t testing.TB) []cyborg.Drift {
	t.Helper()
	found, err := r.Drift(t.Context(), db.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLayout}}, db.Page{})
	require.NoError(t, err)
	return found
}

// unclaimed requires that no operation has anything, or any device.
func (r *records) unclaimed(t testing.TB) {
	t.Helper()
	require.Zero(t, scalar[int](t, r, "SELECT (SELECT count(*) FROM claims) + (SELECT count(*) FROM devices WHERE partition_operation IS NOT NULL)"))
}

// TestPartitioningIsRecorded: what a host says about how a card can be divided, and is, is
// recorded in one form, replaced and removed. What nobody could ask for is left out, and the
// backend says so.
func TestPartitioningIsRecorded(t *testing.T) {
	t.Parallel()
	vf := cyborg.PartKind{Name: "vf", Most: 4}

	var many []cyborg.PartKind
	for i := range cyborg.MaxPartKinds + 1 {
		many = append(many, cyborg.PartKind{Name: fmt.Sprint("k", i), Most: 1})
	}

	for name, test := range map[string]struct {
		said, recorded *cyborg.Partitioning
		complaint      string
	}{
		"whole":       {&cyborg.Partitioning{Parts: []cyborg.PartKind{vf}}, &cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: cyborg.Layout{}}, ""},
		"with a zero": {&cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: cyborg.Layout{"vf": 2, "x": 0}}, &cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: vfs(2)}, ""},
		"of very many": {
			&cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "vf", Most: 9999}}}, &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "vf", Most: cyborg.MaxParts}}, Layout: cyborg.Layout{}}, "",
		},
		"kinds that nobody can ask for": {
			&cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "a b", Most: 1}, vf, {Name: "vf", Most: 2}, {Name: "none"}, {Name: "long", Most: 1, Description: strings.Repeat("x", 300)}}},
			&cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: cyborg.Layout{}},
			`kind of parts "a b" of device card0 is left out: that is no name; kind of parts "vf" of device card0 is left out: another one has this name; ` +
				`kind of parts "none" of device card0 is left out: the device can have none of it; kind of parts "long" of device card0 is left out: its description`,
		},
		"too many kinds": {&cyborg.Partitioning{Parts: many}, &cyborg.Partitioning{Parts: many[:cyborg.MaxPartKinds], Layout: cyborg.Layout{}}, `"k64" of device card0 is left out: there are too many`},
		"divided strangely": {
			&cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: cyborg.Layout{"vf": -1}}, nil, "card0 counts as one that cannot be divided: it has -1 parts",
		},
		"divided by a kind without name": {
			&cyborg.Partitioning{Parts: []cyborg.PartKind{vf}, Layout: cyborg.Layout{"": 1}}, nil, "card0 counts as one that cannot be divided",
		},
		"nothing": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			id := h.accelerator(t, "card0").DeviceUUID
			require.Nil(t, r.device(t, id).Partitioning)
			h.divide(t, vfs(1))
			h.devices()[0].Partitioning = test.said
			h.report(t)
			d := r.device(t, id)
			require.Equal(t, test.recorded, d.Partitioning)
			require.Nil(t, d.WantedLayout)
			said := scalar[string](t, r, "SELECT error FROM backends WHERE host = 'h1'")
			require.Contains(t, said, test.complaint)
			require.Equal(t, test.complaint == "", said == "", said)
			require.False(t, h.report(t).Accepted && h.asked(t), "the next report is the same")

			listed, err := r.Devices(t.Context(), db.DeviceFilter{}, db.Page{})
			require.NoError(t, err)
			require.Equal(t, test.recorded, listed[0].Partitioning)
		})
	}
}

// TestTooLargePartitioning: a card that says too much about its parts stays as it was.
func TestTooLargePartitioning(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	before := r.device(t, id).Partitioning
	var many []cyborg.PartKind
	for i := range cyborg.MaxPartKinds {
		many = append(many, cyborg.PartKind{Name: fmt.Sprint("k", i), Most: 1, Description: strings.Repeat("x", 200)})
	}
	h.devices()[0].Partitioning.Parts = many
	h.report(t)
	require.Equal(t, before, r.device(t, id).Partitioning)
	require.Contains(t, scalar[string](t, r, "SELECT error FROM backends WHERE host = 'h1'"), "device card0 stays as it was")
}

// TestPartition: a card is divided, divided otherwise and made whole again. What it has no
// longer leaves the records with the operation, and the operation is found by the card.
func TestPartition(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, 0))
	h, id := r.addDivisible(t)
	whole := h.ready(t, "card0")

	work := r.begin(t, toPartition(id, cyborg.Layout{"vf": 2, "half": 0}))
	require.Equal(t, &cyborg.PartitionWork{
		Device: cyborg.DeviceTarget{
			UUID: id, Backend: "fake", Identity: "card0", Layout: cyborg.Layout{}, Deployables: []string{"card0"}, Installed: []string{"card0"},
		},
		Layout: vfs(2),
	}, work.Partition)
	require.Equal(t, cyborg.StatusPartitioning, r.accelerator(t, whole.UUID).Status())
	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work.Partition, again.Partition)
	r.inStep(t, "h1")
	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(2))

	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, h.parts(t))
	require.True(t, r.hasForgotten(t, whole.UUID))
	require.Equal(t, []string{"h1"}, r.due(t), "its provider leaves Placement")
	require.Equal(t, []string{"card0.vf0.0", "card0.vf1.0"}, scalar[[]string](t, r, "SELECT array_agg(identity ORDER BY identity) FROM attach_handles"))
	for _, part := range h.accelerators(t) {
		require.Equal(t, cyborg.StatusInactive, part.Status())
		require.Nil(t, part.Claim)
	}
	d := r.device(t, id)
	require.Equal(t, vfs(2), d.Partitioning.Layout)
	require.Equal(t, new(vfs(2)), d.WantedLayout)
	r.unclaimed(t)

	vf0 := h.ready(t, "card0.vf0")
	work = h.partition(t, id, vfs(1))
	require.Equal(t, vfs(2), work.Partition.Device.Layout)
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, work.Partition.Device.Deployables)
	require.Equal(t, []string{"card0.vf0"}, work.Partition.Device.Installed)
	require.Equal(t, []string{"card0.vf0"}, h.parts(t))
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, vf0.UUID).Status(), "a part that stays is as it was")

	h.partition(t, id, nil)
	require.Equal(t, []string{"card0"}, h.parts(t))
	require.NotEqual(t, whole.UUID, h.accelerator(t, "card0").UUID)
	require.Equal(t, whole.ProviderUUID, h.accelerator(t, "card0").ProviderUUID)
	require.Equal(t, new(cyborg.Layout{}), r.device(t, id).WantedLayout)
	r.unclaimed(t)

	require.Equal(t, []string{" → whole", "whole → vf=2", "vf=2 → vf=1", "vf=1 → whole"}, r.changes(t, cyborg.SubjectDevice, cyborg.AxisLayout))
	require.Equal(t, work.Operation.String(), scalar[string](t, r, "SELECT operation_id::text FROM events WHERE subject_kind = 'accelerator' AND axis = 'presence' AND to_value = '' AND data ->> 'deployable' = 'h1_card0.vf1'"))
	found, err := r.Operations(t.Context(), db.OperationFilter{Subject: &cyborg.Subject{Kind: cyborg.SubjectDevice, ID: id.String()}, Kinds: []cyborg.OperationKind{cyborg.OperationPartition}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, cyborg.Subject{Kind: cyborg.SubjectDevice, ID: id.String()}, found[0].Subjects[0])
}

// TestPartitionHasNothingToDo: a card that is divided like that, as it should be, is left
// alone, whoever has its parts. One that is divided so without being asked to is not.
func TestPartitionHasNothingToDo(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)

	h.partition(t, id, cyborg.Layout{}) // so far nobody wanted it whole
	h.partition(t, id, vfs(2))
	vf0 := h.ready(t, "card0.vf0")
	r.do(t, toAttach(vf0.UUID, instance("vm1")), cyborg.OperationSucceeded)
	out, err := r.Admit(t.Context(), toPartition(id, cyborg.Layout{"vf": 2, "half": 0}))
	require.NoError(t, err)
	require.True(t, out.NothingToDo)
	_, err = r.Admit(t.Context(), toPartition(id, vfs(1)))
	requireKind(t, cyborg.ErrInUse, err, `accelerator "h1_card0.vf0" is attached to instance vm1`)
	r.do(t, toDetach(vf0.UUID, nil), cyborg.OperationSucceeded)

	// The same layout, but it is another one now that is recorded as wanted.
	h.divide(t, cyborg.Layout{})
	out, err = r.Admit(t.Context(), toPartition(id, cyborg.Layout{}))
	require.NoError(t, err)
	require.False(t, out.NothingToDo)
}

// TestPartitionGuards: a card of which somebody has something, or may have, is not divided;
// maintenance, and what is out of service or missing, are no obstacle. The guards apply
// at the admission, and when it begins.
func TestPartitionGuards(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(t *testing.T, h *host, a *cyborg.Accelerator)
		kind   cyborg.ErrorKind
		text   string
	}{
		"held": {func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'vm', operation_id = gen_random_uuid(), attached_at = now() WHERE deployable_uuid = $1", a.UUID)
		}, cyborg.ErrInUse, "is attached to instance vm"},
		"unconfirmed": {func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = 'h1', unconfirmed_operation = gen_random_uuid() WHERE deployable_uuid = $1", a.UUID)
		}, cyborg.ErrChanged, "may still have it attached"},
		"unclean": {func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE attach_handles SET unclean = 'reset', unclean_since = now() WHERE deployable_uuid = $1", a.UUID)
		}, cyborg.ErrChanged, "has still to be cleaned"},
		"in Nova's whitelist": {func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE deployables SET lifecycle = 'inactive', nova_spec = '{}' WHERE uuid = $1", a.UUID)
		}, cyborg.ErrInUse, "is in the whitelist of Nova"},
		"protected": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.devices()[0].Deployables[1].Protected = "the host lives on it"
			h.report(t)
		}, cyborg.ErrProtected, "must not be touched"},
		"excluded by what somebody has": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			other := h.ready(t, "card1")
			h.records.do(t, toAttach(other.UUID, instance("vm")), cyborg.OperationSucceeded)
			h.devices()[1].Deployables[0].Excludes = []string{"card0.vf0"}
			h.report(t)
		}, cyborg.ErrInUse, "exclude each other"},
		"beside what somebody has": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			other := h.ready(t, "card1")
			h.records.do(t, toAttach(other.UUID, instance("vm")), cyborg.OperationSucceeded)
			h.devices()[0].Deployables[0].SameHolder, h.devices()[1].Deployables[0].SameHolder = "group 1", "group 1"
			h.report(t)
		}, cyborg.ErrInUse, "shares group 1"},
		"missing": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.content.Backends[0].Devices = h.devices()[1:]
			h.report(t)
		}, cyborg.ErrChanged, `device "card0" is missing`},
		"replaced": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE devices SET presence = 'missing', missing_since = now(), replaced_by = 'another' WHERE identity = 'card0'")
		}, cyborg.ErrChanged, `another card (another) is in its place`},
		"not divisible any more": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.devices()[0].Partitioning = nil
			h.report(t)
		}, cyborg.ErrUnsupported, "cannot divide"},
		"of fewer parts": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.devices()[0].Partitioning.Parts[0].Most = 2
			h.report(t)
		}, cyborg.ErrInvalid, "3 parts of kind vf are too many"},
		"of a revoked host": {func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "INSERT INTO host_identities (host, state, enrollment, revoked_through) VALUES ('h1', 'revoked', 1, 1)")
		}, cyborg.ErrHostSilent, "were revoked"},
		"in maintenance": {change: func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			_, err := h.records.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, alice())
			require.NoError(t, err)
		}},
		"in error": {change: func(t *testing.T, h *host, a *cyborg.Accelerator) {
			t.Helper()
			h.records.exec(t, "UPDATE deployables SET lifecycle = 'error', reason = 'x', error_kind = 'program' WHERE uuid = $1", a.UUID)
		}},
		"with a missing part": {change: func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.devices()[0].Deployables = h.devices()[0].Deployables[:1]
			h.report(t)
		}},
		"unready": {change: func(t *testing.T, h *host, _ *cyborg.Accelerator) {
			t.Helper()
			h.devices()[0].Deployables[0].Conditions = []cyborg.Condition{{Code: "hot", Level: cyborg.ConditionUnready}}
			h.report(t)
		}},
	} {
		for _, begun := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", at the beginning: ", begun), func(t *testing.T) {
				t.Parallel()
				r := newRecords(t)
				h := r.addHost(t, "h1", 2)
				h.divide(t, vfs(2))
				a := h.ready(t, "card0.vf0")

				to := toPartition(a.DeviceUUID, vfs(3))
				if begun {
					r.admit(t, to)
				}
				test.change(t, h, a)
				var err error
				if begun {
					_, err = r.Begin(t.Context(), runOf(to.ID))
				} else {
					_, err = r.Admit(t.Context(), to)
				}

				if test.kind == "" {
					require.NoError(t, err)
					return
				}
				requireKind(t, test.kind, err, test.text)
				if begun {
					require.NoError(t, r.End(t.Context(), runOf(to.ID), cyborg.Outcome{Operation: to.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))
				}
				r.unclaimed(t)
				require.Contains(t, h.parts(t), "card0.vf1")
			})
		}
	}
}

// TestPartitionOfWhatIsNotThere: there is no such device, or no such kind of parts.
func TestPartitionOfWhatIsNotThere(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, id := r.addDivisible(t)
	_, err := r.Admit(t.Context(), toPartition(uuid.New(), vfs(1)))
	requireKind(t, cyborg.ErrNotFound, err, "there is no device")
	_, err = r.Admit(t.Context(), toPartition(id, cyborg.Layout{"slice": 1}))
	requireKind(t, cyborg.ErrInvalid, err, `no parts of kind "slice"; it can have vf, half`)
}

// TestNobodyGetsHalfMadeParts: what a report shows while a card is being divided is claimed by
// that operation, in the transaction that records it, and nothing is taken into service by
// itself. So is what a server of release 0.1 records.
func TestNobodyGetsHalfMadeParts(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	work := r.begin(t, toPartition(id, vfs(3)))
	claim := &cyborg.Claim{Operation: work.Operation, Kind: cyborg.OperationPartition}

	h.divide(t, vfs(1))
	r.exec(t, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, program_set)
		VALUES (gen_random_uuid(), $1, 'h1', 'h1_card0.vf1', 'card0.vf1', gen_random_uuid(), 'h1_card0.vf1', '{}', 'x')`, id)
	require.Equal(t, []string{"card0", "card0.vf0", "card0.vf1"}, h.parts(t))
	for _, part := range h.accelerators(t) {
		require.Equal(t, claim, part.Claim)
	}
	untouched, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, untouched)

	part := h.accelerator(t, "card0.vf0")
	for _, a := range []db.Admission{
		toProvision(cyborg.ProvisionRequest{Accelerator: part.UUID}), toProgram(part.UUID), toAttach(part.UUID, onHost("h1")), toRetire(part), toClean(part.UUID),
		toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUninstall}), toPartition(id, vfs(2)), toWhitelist("h1", part),
	} {
		_, err := r.Admit(t.Context(), a)
		requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())
	}
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "any"}))
	requireKind(t, cyborg.ErrNoFit, err)
	r.profile(t, "gpu", one())
	_, err = r.Admit(t.Context(), toBind("h1", vm(), part.ProviderUUID, r.request(t, "gpu")...))
	require.Error(t, err)

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work.Partition, again.Partition, "what the host was signed stays the same")

	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(3))
	require.Equal(t, []string{"card0.vf0", "card0.vf1", "card0.vf2"}, h.parts(t))
	r.unclaimed(t)
	untouched, err = r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, untouched, 3)
}

// TestUndonePartition: what has appeared meanwhile, and is gone again, leaves the records; the
// rest is as before.
func TestUndonePartition(t *testing.T) {
	t.Parallel()
	for _, state := range []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationCancelled} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, id := r.addDivisible(t)
			whole := h.ready(t, "card0")

			// Ended before it has begun.
			op := r.admit(t, toPartition(id, vfs(1)))
			require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: state, Error: cyborg.Errorf(cyborg.ErrHardware, "x")}))
			r.unclaimed(t)

			work := r.begin(t, toPartition(id, vfs(2)))
			h.divide(t, vfs(1))
			h.endDivided(t, work, state, cyborg.Layout{})
			require.Equal(t, []string{"card0"}, h.parts(t))
			require.Equal(t, whole.UUID, h.accelerator(t, "card0").UUID)
			require.Equal(t, cyborg.StatusReady, h.accelerator(t, "card0").Status())
			require.Nil(t, r.device(t, id).WantedLayout)
			r.unclaimed(t)

			// It is divided into some of the parts: these stay, and so does what was there before.
			work = r.begin(t, toPartition(id, vfs(2)))
			h.divide(t, vfs(2))
			h.endDivided(t, work, state, vfs(1))
			require.Equal(t, []string{"card0", "card0.vf0"}, h.parts(t))
			require.Equal(t, cyborg.StatusMissing, h.accelerator(t, "card0").Status())
			r.unclaimed(t)

			out, err := r.Admit(t.Context(), db.Admission{ID: uuid.New(), Actor: alice(), RetryOf: work.Operation, Request: cyborg.PartitionRequest{Device: id, Layout: vfs(2)}})
			require.NoError(t, err)
			require.Equal(t, work.Operation, out.Operation.RetryOf)
			second, err := r.Begin(t.Context(), runOf(out.Operation.ID))
			require.NoError(t, err)
			require.Equal(t, []string{"card0", "card0.vf0"}, second.Partition.Device.Deployables)
			h.endDivided(t, second, cyborg.OperationSucceeded, vfs(2))
			require.Equal(t, []string{"card0.vf0", "card0.vf1"}, h.parts(t))
		})
	}
}

// TestPartitionThatNeedsAnOperator: all of the card is in error, also what was never in
// service, until a partition has succeeded. Then each is where it was, and an error of
// something else stays.
func TestPartitionThatNeedsAnOperator(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.divide(t, vfs(4))
	id := h.accelerator(t, "card0.vf0").DeviceUUID
	h.partition(t, id, vfs(4))
	vf0, vf1, vf2 := h.ready(t, "card0.vf0"), h.ready(t, "card0.vf1"), h.ready(t, "card0.vf2")
	r.do(t, toRetire(vf2), cyborg.OperationSucceeded)
	r.exec(t, "UPDATE deployables SET lifecycle = 'error', reason = 'x', error_kind = 'program' WHERE uuid = $1", vf1.UUID)

	work := r.begin(t, toPartition(id, cyborg.Layout{"half": 1}))
	h.divide(t, cyborg.Layout{"half": 1, "vf": 3})
	h.endDivided(t, work, cyborg.OperationNeedsOperator, cyborg.Layout{"half": 1, "vf": 3})
	r.unclaimed(t)
	require.Equal(t, []string{"card0.half0", "card0.vf0", "card0.vf1", "card0.vf2", "card0.vf3"}, h.parts(t), "nobody knows what is gone")
	untouched, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, untouched)
	for name, want := range map[string]cyborg.Lifecycle{
		"card0.half0": cyborg.LifecycleError, "card0.vf0": cyborg.LifecycleError, "card0.vf1": cyborg.LifecycleError, "card0.vf2": cyborg.LifecycleInactive,
		"card0.vf3": cyborg.LifecycleError,
	} {
		require.Equal(t, want, h.accelerator(t, name).Lifecycle, name)
	}
	_, err = r.Admit(t.Context(), toAttach(vf0.UUID, instance("vm")))
	requireKind(t, cyborg.ErrChanged, err, "needs an operator: it broke")
	require.Contains(t, cyborg.AsError(err).Hint, "Partition its device again")

	h.divide(t, vfs(4))
	require.Empty(t, r.layoutDrift(t))
	work = h.partition(t, id, vfs(4)) // as it is, and should be: but nobody knew that
	require.Equal(t, []string{"card0.half0", "card0.vf0", "card0.vf1", "card0.vf2", "card0.vf3"}, work.Partition.Device.Deployables)
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, work.Partition.Device.Installed, "what was never in service does not get there")
	for name, want := range map[string]cyborg.Lifecycle{
		"card0.vf0": cyborg.LifecycleReady, "card0.vf1": cyborg.LifecycleError, "card0.vf2": cyborg.LifecycleInactive, "card0.vf3": cyborg.LifecycleInactive,
	} {
		require.Equal(t, want, h.accelerator(t, name).Lifecycle, name)
	}
	require.Equal(t, []string{"card0.vf0", "card0.vf1", "card0.vf2", "card0.vf3"}, h.parts(t))
	untouched, err = r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{h.accelerator(t, "card0.vf3").UUID}, untouched)
}

// TestPartsAfterAPartitionThatNeedsAnOperator: a host that was silent at the end shows later
// what it has made of the card. Nobody knows whether that is all of it, so nothing of it is
// taken into service by itself, until a partition has succeeded.
func TestPartsAfterAPartitionThatNeedsAnOperator(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	h.ready(t, "card0")
	work := r.begin(t, toPartition(id, vfs(3)))
	r.end(t, work, cyborg.OperationNeedsOperator)
	r.unclaimed(t)

	h.divide(t, vfs(2))
	require.Equal(t, []string{"card0", "card0.vf0", "card0.vf1"}, h.parts(t))
	untouched, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, untouched)

	h.partition(t, id, vfs(3))
	untouched, err = r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, untouched, 3)
}

// TestPartitionSettlesWhatIsLeftInDoubt: somebody has made one of the parts ready, so the card
// itself is in doubt no more. The rest is, until a partition has succeeded.
func TestPartitionSettlesWhatIsLeftInDoubt(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.divide(t, vfs(2))
	vf0, vf1 := h.ready(t, "card0.vf0"), h.ready(t, "card0.vf1")
	h.partition(t, vf0.DeviceUUID, vfs(2))
	r.end(t, r.begin(t, toPartition(vf0.DeviceUUID, vfs(3))), cyborg.OperationNeedsOperator)
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: vf0.UUID}), cyborg.OperationSucceeded)
	require.False(t, r.inDoubt(t, vf0.DeviceUUID))

	to := toPartition(vf0.DeviceUUID, vfs(2))
	out, err := r.Admit(t.Context(), to)
	require.NoError(t, err)
	require.False(t, out.NothingToDo)
	work, err := r.Begin(t.Context(), runOf(to.ID))
	require.NoError(t, err)
	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(2))
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, vf1.UUID).Status())
}

// inDoubt reads whether nobody knows how a device is divided.
func (r *records) inDoubt(t testing.TB, id uuid.UUID) bool {
	t.Helper()
	return scalar[bool](t, r, "SELECT layout_doubt_operation IS NOT NULL FROM devices WHERE uuid = $1", id)
}

// TestCardWithNothingInServiceThatNeedsAnOperator: a card that has nothing that could be in
// error, at a partition that could not be undone, is marked itself. Nothing that appears on it
// is taken into service by itself until a partition has succeeded, also where it is divided as
// wanted, or until somebody makes ready what he names of it.
func TestCardWithNothingInServiceThatNeedsAnOperator(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, h *host){
		"nothing at all": func(t *testing.T, h *host) {
			t.Helper()
			h.devices()[0].Deployables = nil
			h.report(t)
			h.records.exec(t, "DELETE FROM attach_handles; DELETE FROM deployables")
		},
		"retired only": func(t *testing.T, h *host) {
			t.Helper()
			h.records.do(t, toRetire(h.ready(t, "card0")), cyborg.OperationSucceeded)
		},
	} {
		for _, solve := range []string{"partition", "partition as it is", "provision"} {
			t.Run(name+", "+solve, func(t *testing.T) {
				t.Parallel()
				r := newRecords(t)
				h, id := r.addDivisible(t)
				h.partition(t, id, cyborg.Layout{})
				prepare(t, h)
				r.end(t, r.begin(t, toPartition(id, vfs(3))), cyborg.OperationNeedsOperator)
				r.unclaimed(t)
				require.True(t, r.inDoubt(t, id))

				shown := vfs(2)
				if solve == "partition as it is" {
					shown = cyborg.Layout{}
				}
				h.divide(t, shown)
				untouched, err := r.Unprovisioned(t.Context(), 10)
				require.NoError(t, err)
				require.Empty(t, untouched)
				if name == "nothing at all" && solve == "provision" { // who asks for anything has not looked at it
					r.do(t, toProvision(cyborg.ProvisionRequest{Name: "any"}), cyborg.OperationSucceeded)
					require.True(t, r.inDoubt(t, id))
				}

				// One that fails, and is undone, leaves the doubt.
				h.endDivided(t, r.begin(t, toPartition(id, vfs(1))), cyborg.OperationFailed, shown)
				require.True(t, r.inDoubt(t, id))

				left := 0
				switch solve {
				case "partition":
					h.partition(t, id, vfs(3))
					left = 3
				case "partition as it is":
					out, err := r.Admit(t.Context(), toPartition(id, shown))
					require.NoError(t, err)
					require.False(t, out.NothingToDo)
					work, err := r.Begin(t.Context(), runOf(out.Operation.ID))
					require.NoError(t, err)
					h.endDivided(t, work, cyborg.OperationSucceeded, shown)
					if name == "nothing at all" {
						left = 1
					}
				default:
					part := h.accelerator(t, "card0.vf1")
					r.do(t, toProvision(cyborg.ProvisionRequest{Name: part.Name}), cyborg.OperationSucceeded)
					if name == "retired only" {
						left = 1
					}
				}
				require.False(t, r.inDoubt(t, id))
				untouched, err = r.Unprovisioned(t.Context(), 10)
				require.NoError(t, err)
				require.Len(t, untouched, left)
			})
		}
	}
}

// TestPartitionInstallsWhatIsInService: what was in service is made anew, and installed again.
// What is in error because it could not be installed or uninstalled is not: that would fail
// again, and is cured otherwise.
func TestPartitionInstallsWhatIsInService(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.divide(t, vfs(4))
	id := h.accelerator(t, "card0.vf0").DeviceUUID
	h.ready(t, "card0.vf0")
	for name, kind := range map[string]string{"card0.vf1": "attach", "card0.vf2": "provision", "card0.vf3": "retire"} {
		r.exec(t, "UPDATE deployables SET lifecycle = 'error', reason = 'x', error_kind = $2 WHERE uuid = $1", h.ready(t, name).UUID, kind)
	}

	work := r.begin(t, toPartition(id, vfs(2)))
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, work.Partition.Device.Installed)
}

// TestPartitionOfACardWithNothing: a card that offers nothing now is divided as well. Only one
// operation divides it, its backend is left alone, and nobody forgets it meanwhile.
func TestPartitionOfACardWithNothing(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.devices()[0] = divided("card0", cyborg.Layout{})
	h.devices()[0].Deployables, h.devices()[0].Fingerprint = nil, gpu()
	h.report(t)
	r.exec(t, "DELETE FROM attach_handles; DELETE FROM deployables")
	id := scalar[uuid.UUID](t, r, "SELECT uuid FROM devices")

	configure := toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUpdate, Options: map[string]any{"a": "b"}})
	r.admit(t, configure)
	_, err := r.Admit(t.Context(), toPartition(id, vfs(2)))
	requireKind(t, cyborg.ErrClaimed, err, configure.ID.String()+" (configure) works on device")
	require.NoError(t, r.End(t.Context(), runOf(configure.ID), cyborg.Outcome{Operation: configure.ID, State: cyborg.OperationCancelled, Error: cyborg.Errorf(cyborg.ErrCancelled, "x")}))

	work := r.begin(t, toPartition(id, vfs(2)))
	require.Empty(t, work.Targets)
	require.Empty(t, work.Partition.Device.Deployables)
	_, err = r.Admit(t.Context(), toPartition(id, vfs(1)))
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String()+" (partition) works on device")
	configure.ID = uuid.New()
	_, err = r.Admit(t.Context(), configure)
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String()+" (partition) works on backend")

	// Another card in its place, and a long absence: the records stay.
	h.put(0, secondGPU())
	h.report(t)
	require.Contains(t, scalar[string](t, r, "SELECT error FROM backends WHERE host = 'h1'"), "which is still in use")
	_, err = r.Forget(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, cyborg.PresenceMissing, r.device(t, id).Presence)

	r.end(t, work, cyborg.OperationSucceeded)
	r.unclaimed(t)
	h.report(t) // the card is forgotten, with the layout that was wanted of it
	h.report(t)
	d := r.device(t, scalar[uuid.UUID](t, r, "SELECT uuid FROM devices"))
	require.NotEqual(t, id, d.UUID)
	require.Nil(t, d.WantedLayout)

	op := r.admit(t, toPartition(d.UUID, vfs(1)))
	found, err := r.Operations(t.Context(), db.OperationFilter{Subject: &cyborg.Subject{Kind: cyborg.SubjectDevice, ID: d.UUID.String()}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, op.ID, found[0].ID)
}

// TestPartitionOfACardThatGoesAway: while a card is being divided, another one comes into its
// slot, it is missing for long, and somebody would forget its host. Nothing of it is deleted
// before the operation has ended, and not by it either.
func TestPartitionOfACardThatGoesAway(t *testing.T) {
	t.Parallel()
	for name, show := range map[string]func(h *host){
		"replaced": func(h *host) { h.put(0, secondGPU()) },
		"missing":  func(h *host) { h.content.Backends[0].Devices = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			h.devices()[0] = divided("card0", cyborg.Layout{})
			h.put(0, gpu())
			h.report(t)
			whole := h.ready(t, "card0")
			work := r.begin(t, toPartition(whole.DeviceUUID, vfs(1)))
			require.Equal(t, gpu(), work.Partition.Device.Fingerprint)

			show(h)
			h.report(t)
			_, err := r.Forget(t.Context(), 0)
			require.NoError(t, err)
			require.Equal(t, []string{"card0"}, h.parts(t))
			h.fall(t)
			err = r.ForgetHost(t.Context(), "h1", alice())
			requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())

			r.end(t, work, cyborg.OperationSucceeded)
			r.unclaimed(t)
			require.Equal(t, []string{"card0"}, h.parts(t), "nobody knows how it is divided now")
			require.Equal(t, new(vfs(1)), r.device(t, whole.DeviceUUID).WantedLayout)

			h.report(t)
			h.report(t)
			if name == "missing" {
				require.NoError(t, err2(r.Forget(t.Context(), 0)))
				require.Empty(t, h.parts(t))
				return
			}
			require.NotEqual(t, whole.DeviceUUID, h.accelerator(t, "card0").DeviceUUID)
			require.Nil(t, r.device(t, h.accelerator(t, "card0").DeviceUUID).WantedLayout, "of the other card nobody has wanted anything")
		})
	}
}

// err2 returns the second of two results.
func err2[T any](_ T, err error) error { return err }

// TestLateReportOfAPartition: a report that was made before the card was divided, and comes
// after the end, changes nothing; one that was made after the observation counts.
func TestLateReportOfAPartition(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	work := r.begin(t, toPartition(id, vfs(2)))
	late := h.next()
	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(2))

	_, err := r.MergeReports(t.Context(), []agentapi.Report{late})
	require.NoError(t, err)
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, h.parts(t))
	require.Equal(t, vfs(2), r.device(t, id).Partitioning.Layout)
	require.Empty(t, r.layoutDrift(t))
	h.report(t)
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, h.parts(t))

	work = r.begin(t, toPartition(id, vfs(1)))
	seen := divided("card0", vfs(1))
	h.sequence++
	sequence := h.sequence
	h.divide(t, vfs(1)) // it is newer, and comes before the end
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, Observations: []cyborg.Observation{{Sequence: sequence, Backend: "fake", Device: seen}},
	}))
	require.Equal(t, []string{"card0.vf0"}, h.parts(t))
	r.unclaimed(t)
}

// TestPartsThatSomebodyHasStay: what somebody has all the same when the card is divided anew
// is not deleted: the journal of the host has it attached, by an operation that the records
// have lost.
func TestPartsThatSomebodyHasStay(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	work := r.begin(t, toPartition(id, vfs(1)))
	h.attached("card0", uuid.New())
	h.report(t)
	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(1))
	require.Equal(t, []string{"card0", "card0.vf0"}, h.parts(t))
	require.NotNil(t, h.accelerator(t, "card0").Handles[0].Unconfirmed)
	r.unclaimed(t)
}

// TestPartOfAnotherCardMovesHere: a part that another operation works on moves to a card that
// is being divided. When that operation lets go of it, it belongs to the one that divides.
func TestPartOfAnotherCardMovesHere(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.divide(t, cyborg.Layout{})
	other := h.ready(t, "card1")
	id := h.accelerator(t, "card0").DeviceUUID
	work := r.begin(t, toPartition(id, vfs(1)))

	attach := r.begin(t, toAttach(other.UUID, onHost("h1")))
	r.exec(t, "UPDATE deployables SET device_uuid = $1 WHERE uuid = $2", id, other.UUID)
	require.Equal(t, attach.Operation, r.accelerator(t, other.UUID).Claim.Operation)
	r.end(t, attach, cyborg.OperationFailed)
	require.Equal(t, &cyborg.Claim{Operation: work.Operation, Kind: cyborg.OperationPartition}, r.accelerator(t, other.UUID).Claim)
	h.endDivided(t, work, cyborg.OperationFailed, cyborg.Layout{})
	r.unclaimed(t)
}

// TestPartitionDoesNotBeginUnderAnotherOperation: a part that another operation works on moves
// to a card before its partition begins, which then does not.
func TestPartitionDoesNotBeginUnderAnotherOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.divide(t, cyborg.Layout{})
	other := h.ready(t, "card1")
	id := h.accelerator(t, "card0").DeviceUUID
	op := r.admit(t, toPartition(id, vfs(1)))

	attach := r.begin(t, toAttach(other.UUID, onHost("h1")))
	r.exec(t, "UPDATE deployables SET device_uuid = $1 WHERE uuid = $2", id, other.UUID)
	_, err := r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrClaimed, err, attach.Operation.String())
}

// TestPartitionWaitsForItsHost: where the database has been started, its host has first to say
// what it has, also of a card with nothing.
func TestPartitionWaitsForItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	h.devices()[0].Deployables = nil
	h.report(t)
	r.exec(t, "DELETE FROM attach_handles; DELETE FROM deployables")
	op := r.admit(t, toPartition(id, vfs(1)))
	r.restart(t)
	_, err := r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrUnavailable, err, "who has device")
	h.hear(t)
	_, err = r.Begin(t.Context(), runOf(op.ID))
	require.NoError(t, err)
}

// TestRestoredPartition: a restored database has lost a partition, or its end. What the host
// shows counts, and a partition puts it in order.
func TestRestoredPartition(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	h, id := old.addDivisible(t)
	h.partition(t, id, vfs(1))
	before := old.dump(t)
	work := old.begin(t, toPartition(id, vfs(2)))
	during := old.dump(t)

	r := old.remake(t, before)
	h.records = r
	err := r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded})
	requireKind(t, cyborg.ErrNotFound, err)
	h.divide(t, vfs(2)) // its host has divided it meanwhile
	require.Equal(t, []string{"card0.vf0", "card0.vf1"}, h.parts(t))
	r.unclaimed(t)
	require.Len(t, r.layoutDrift(t), 1, "nobody knows that this was wanted")
	h.partition(t, id, vfs(2))
	require.Empty(t, r.layoutDrift(t))

	r = r.remake(t, during)
	h.records = r
	h.report(t)
	require.Equal(t, work.Operation, h.accelerator(t, "card0.vf1").Claim.Operation)
	h.endDivided(t, work, cyborg.OperationSucceeded, vfs(2))
	require.Equal(t, new(vfs(2)), r.device(t, id).WantedLayout)
	r.unclaimed(t)
}

// TestLayoutDrift: a card that is not divided as it should be is drift until it is, or until
// something else is wanted of it; not while it is being divided, and not while it is gone.
func TestLayoutDrift(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.divide(t, cyborg.Layout{})
	h.devices()[1] = divided("card1", vfs(3))
	h.report(t)
	id, second := h.accelerator(t, "card0").DeviceUUID, h.accelerator(t, "card1.vf0").DeviceUUID
	require.Empty(t, r.layoutDrift(t), "nobody has wanted anything")
	h.partition(t, id, vfs(2))
	require.Empty(t, r.layoutDrift(t))

	h.divide(t, vfs(1))
	drift := r.layoutDrift(t)
	require.Len(t, drift, 1)
	require.Equal(t, "h1", drift[0].Host)
	require.Equal(t, id, drift[0].Device)
	require.Equal(t, "device card0 is divided otherwise: vf=1; wanted: vf=2", drift[0].Detail)
	h.divide(t, cyborg.Layout{})
	require.Equal(t, "device card0 is divided otherwise: whole; wanted: vf=2", r.layoutDrift(t)[0].Detail)
	require.Equal(t, drift[0].FoundAt, r.layoutDrift(t)[0].FoundAt, "since it was so first")
	h.devices()[0].Partitioning = nil
	h.report(t)
	require.Equal(t, "device card0 cannot be divided any more; wanted: vf=2", r.layoutDrift(t)[0].Detail)
	r.exec(t, "UPDATE devices SET wanted_layout = '{}' WHERE uuid = $1", id)
	require.Empty(t, r.layoutDrift(t), "what cannot be divided is whole")
	h.divide(t, cyborg.Layout{})
	require.Empty(t, r.layoutDrift(t))
	h.devices()[0].Partitioning = nil
	h.report(t)
	require.Empty(t, r.layoutDrift(t))
	r.exec(t, `UPDATE devices SET wanted_layout = '{"vf": 2}' WHERE uuid = $1`, id)

	// Two of one host are told apart, also from page to page.
	r.exec(t, `UPDATE devices SET wanted_layout = '{"vf": 1}' WHERE uuid = $1`, second)
	drift = r.layoutDrift(t)
	require.Len(t, drift, 2)
	first, err := r.Drift(t.Context(), db.DriftFilter{}, db.Page{Limit: 1})
	require.NoError(t, err)
	rest, err := r.Drift(t.Context(), db.DriftFilter{}, db.Page{Limit: 9, Marker: first[0].Key()})
	require.NoError(t, err)
	require.Equal(t, drift, append(first, rest...))
	r.exec(t, `UPDATE devices SET wanted_layout = '{"vf": 3}' WHERE uuid = $1`, second)

	h.divide(t, vfs(1))
	work := r.begin(t, toPartition(id, vfs(1)))
	require.Empty(t, r.layoutDrift(t))
	h.endDivided(t, work, cyborg.OperationFailed, vfs(1))
	require.Len(t, r.layoutDrift(t), 1)
	gone := h.devices()
	h.content.Backends[0].Devices = nil
	h.report(t)
	require.Empty(t, r.layoutDrift(t))
	h.content.Backends[0].Devices = gone
	h.report(t)
	require.Len(t, r.layoutDrift(t), 1)
	h.partition(t, id, vfs(1))
	require.Empty(t, r.layoutDrift(t))
}

// TestPartitionIsAdmittedOnce: the same id, or the same key, is the same operation.
func TestPartitionIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, id := r.addDivisible(t)
	to := toPartition(id, vfs(1))
	to.IdempotencyKey, to.Fingerprint = "k", "f"
	r.admit(t, to)
	for _, fresh := range []uuid.UUID{to.ID, uuid.New()} {
		again := to
		again.ID = fresh
		out, err := r.Admit(t.Context(), again)
		require.NoError(t, err)
		require.True(t, out.Repeated)
		require.Equal(t, to.ID, out.Operation.ID)
	}
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM operations"))
}

// TestPartitionAgainstEverything admits a partition at the same moment as something else of
// the same card, from two processes. One of the two has the card then: whatever was admitted
// with the partition in force claims nothing of it.
func TestPartitionAgainstEverything(t *testing.T) {
	t.Parallel()
	for name, rival := range map[string]func(t *testing.T, r *records, a *cyborg.Accelerator) db.Admission{
		"partition": func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission {
			return toPartition(a.DeviceUUID, vfs(4))
		},
		"attach": func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission {
			return toAttach(a.UUID, instance("vm"))
		},
		"program":   func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission { return toProgram(a.UUID) },
		"retire":    func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission { return toRetire(a) },
		"whitelist": func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission { return toWhitelist("h1", a) },
		"bind": func(t *testing.T, r *records, a *cyborg.Accelerator) db.Admission {
			t.Helper()
			return toBind("h1", vm(), a.ProviderUUID, r.request(t, "gpu")...)
		},
		"provision": func(_ *testing.T, _ *records, a *cyborg.Accelerator) db.Admission {
			return toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID})
		},
		"configure": func(*testing.T, *records, *cyborg.Accelerator) db.Admission {
			return toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUpdate, Options: map[string]any{"a": "b"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			r.profile(t, "gpu", one())
			h := r.addHost(t, "h1", 1)
			h.divide(t, vfs(2))
			other := openStore(t, r.url, defaults())
			device := h.accelerator(t, "card0.vf0").DeviceUUID
			if name != "provision" && name != "whitelist" {
				h.ready(t, "card0.vf0")
				h.ready(t, "card0.vf1")
			}

			for range 12 {
				a := h.accelerator(t, "card0.vf1")
				admissions := []db.Admission{toPartition(device, vfs(3)), rival(t, r, a)}
				var (
					wg       sync.WaitGroup
					admitted [2]bool
				)
				for i, store := range []*db.Store{r.Store, other} {
					wg.Go(func() {
						_, err := store.Admit(t.Context(), admissions[i])
						admitted[i] = err == nil
						switch cyborg.ErrorKindOf(err) {
						case "", cyborg.ErrClaimed, cyborg.ErrInUse, cyborg.ErrChanged:
						default:
							t.Error(err)
						}
					})
				}
				wg.Wait()
				require.False(t, admitted[0] && admitted[1], "both have the card")

				for i, won := range admitted {
					if won {
						require.NoError(t, r.End(t.Context(), runOf(admissions[i].ID), cyborg.Outcome{
							Operation: admissions[i].ID, State: cyborg.OperationCancelled, Error: cyborg.Errorf(cyborg.ErrCancelled, "x"),
						}))
					}
				}
				r.unclaimed(t)
			}
		})
	}
}

// TestPartitionAgainstReports: while cards are divided, reports show them half made, and
// other processes take all that is new into service. Nobody ever gets something that the
// operation has.
func TestPartitionAgainstReports(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, id := r.addDivisible(t)
	other := openStore(t, r.url, defaults())
	var (
		wg   sync.WaitGroup
		took atomic.Int32
		done atomic.Bool
	)

	// take takes what is new into service, as Reconcile and AdmitNew do.
	take := func() {
		found, err := other.Unprovisioned(t.Context(), 10)
		if err != nil {
			t.Error(err)
		}
		for _, a := range found {
			to := toProvision(cyborg.ProvisionRequest{Accelerator: a})
			if _, err := other.Admit(t.Context(), to); err != nil {
				continue // somebody else was faster
			}
			took.Add(1)
			_, err := other.Begin(t.Context(), runOf(to.ID))
			state := cyborg.OperationSucceeded
			if err != nil {
				state = cyborg.OperationFailed
			}
			if err := other.End(t.Context(), runOf(to.ID), cyborg.Outcome{Operation: to.ID, State: state}); err != nil {
				t.Error(err)
			}
		}
	}
	wg.Go(func() {
		for !done.Load() {
			take()
		}
	})

	for i := range 10 {
		layout := vfs(i%2 + 1)
		to := toPartition(id, layout)
		for { // until nobody takes one of its parts into service
			_, err := r.Admit(t.Context(), to)
			if err == nil {
				break
			}
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
		}
		work, err := r.Begin(t.Context(), runOf(to.ID))
		require.NoError(t, err)
		for count := range 4 {
			h.divide(t, cyborg.Layout{"half": count % 2, "vf": count})
			require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM deployables d LEFT JOIN claims c ON c.deployable_uuid = d.uuid AND c.operation_id = $1 WHERE c IS NULL", to.ID))
		}
		h.endDivided(t, work, cyborg.OperationSucceeded, layout)
	}
	done.Store(true)
	wg.Wait()
	take()
	require.Positive(t, took.Load(), "what is there at the end is taken into service")
}

// TestPartitionOfTheSchema: the schema lets one open operation divide a device, which must let
// go of it before it ends, and takes no claim for another one.
func TestPartitionOfTheSchema(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	h.divide(t, cyborg.Layout{})
	h.devices()[1] = divided("card1", cyborg.Layout{})
	h.report(t)
	a, b := h.accelerator(t, "card0"), h.accelerator(t, "card1")
	first, second := r.begin(t, toPartition(a.DeviceUUID, vfs(1))), r.begin(t, toPartition(b.DeviceUUID, vfs(1)))
	for _, test := range []struct {
		text, sql string
		args      []any
	}{
		{"handed over", "UPDATE devices SET partition_operation = $2 WHERE uuid = $1", []any{a.DeviceUUID, second.Operation}},
		{"devices_partitioned", "INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info, partition_operation) SELECT gen_random_uuid(), host, backend, driver, 'x', type, vendor_id, product_id, vendor, model, control_path_kind, control_path_info, partition_operation FROM devices WHERE uuid = $1", []any{a.DeviceUUID}},
		{"devices_partition_fkey", "WITH c AS (DELETE FROM claims) UPDATE operations SET state = 'succeeded', ended_at = now() WHERE id = $1", []any{first.Operation}},
		{"devices_layout_differs_from_wanted", "UPDATE devices SET layout_differs_since = now()", nil},
	} {
		_, err := r.sql.Exec(t.Context(), test.sql, test.args...)
		require.ErrorContains(t, err, test.text)
	}
}
