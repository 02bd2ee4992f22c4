package db_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// record reads the host as it is recorded.
func (h *host) record(t *testing.T) cyborg.Host {
	t.Helper()
	found, err := h.records.Host(t.Context(), h.name)
	require.NoError(t, err)
	return found
}

// devices are those of the next report, which a test may change.
func (h *host) devices() []cyborg.DeviceReport { return h.content.Backends[0].Devices }

// newestEvent is the id of the newest event, zero where there is none.
func (h *host) newestEvent(t *testing.T) int64 {
	t.Helper()
	return scalar[int64](t, h.records, "SELECT coalesce(max(id), 0) FROM events")
}

// TestFirstReport: the first report of a host records all that it says about
// backends, devices and handles.
func TestFirstReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(2)}

	node := 1
	h.devices()[0].NUMANode = &node
	h.devices()[0].BoardInfo = cyborg.JSONObject{"serial": "s", "nested": map[string]any{"a": 1.5}}
	h.content.Backends[0].Options = map[string]any{"spec": "x"}
	require.Equal(t, agentapi.ReportReply{Generation: 1, Accepted: true}, h.report(t))

	found := h.record(t)
	require.Equal(t, 2, found.Devices)
	require.False(t, found.Silent)
	require.Equal(t, []cyborg.Backend{{
		Host: "h1", Name: "fake", Driver: "fake", Options: map[string]any{"spec": "x"}, State: cyborg.BackendOK,
		Services: []string{"discover", "attach"},
	}}, found.Backends)

	list, err := r.Devices(t.Context(), db.DeviceFilter{}, db.Page{})
	require.NoError(t, err)
	one, err := r.Device(t.Context(), list[0].UUID)
	require.NoError(t, err)
	require.Equal(t, "card0", one.Identity)
	require.Equal(t, &node, one.NUMANode)
	require.Equal(t, h.devices()[0].BoardInfo, one.BoardInfo)
	require.Equal(t, h.devices()[0].ControlPath, one.ControlPath)
	require.Len(t, one.Deployables, 1)

	a := one.Deployables[0]
	require.Equal(t, h.devices()[0].Deployables[0].Specs, a.Specs)
	require.Equal(t, []cyborg.Attribute{{Key: "rc", Value: "FPGA"}}, a.Attributes)
	require.Equal(t, cyborg.DeviceTypeFPGA, a.DeviceType)
	require.Equal(t, "fake", a.Driver)
	require.Len(t, a.Handles, 2)
	require.Equal(t, map[string]string{"function": "0"}, a.Handles[0].Info)
}

// TestRepeatedAndUnchangedReports: a report that is repeated or says nothing
// new leaves no event and no new generation, and an older one is refused with
// the sequence to exceed.
func TestRepeatedAndUnchangedReports(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	event, generation := h.newestEvent(t), h.record(t).Generation

	last := h.next()
	for range 3 { // the acknowledgement was lost
		replies, err := r.MergeReports(t.Context(), []agentapi.Report{last})
		require.NoError(t, err)
		require.Equal(t, agentapi.ReportReply{Generation: generation, Accepted: true}, replies[0])
	}

	require.True(t, h.report(t).Accepted)
	require.Equal(t, generation, h.record(t).Generation)
	require.Equal(t, event, h.newestEvent(t), "nothing changed")

	replies, err := r.MergeReports(t.Context(), []agentapi.Report{last})
	require.NoError(t, err)
	require.False(t, replies[0].Accepted, "older than the last")
	require.Equal(t, h.sequence, replies[0].Exceed)

	r.exec(t, "UPDATE devices SET observed_seq = $1 WHERE host = 'h1' AND identity = 'card1'", h.sequence+7)
	replies, err = r.MergeReports(t.Context(), []agentapi.Report{last})
	require.NoError(t, err)
	require.Equal(t, h.sequence+7, replies[0].Exceed, "what an operation has observed since counts, too")
	r.exec(t, "UPDATE devices SET observed_seq = 0 WHERE host = 'h1'")

	h.boot = "boot-2"
	require.Equal(t, generation+1, h.report(t).Generation)
	require.Equal(t, event+1, h.newestEvent(t), "only the boot")
	require.Equal(t, "boot-2", h.record(t).BootID)
}

// TestReportsAlternateBetweenConductors: reports A, B and A again go to
// different conductors, and a late copy of B changes nothing.
func TestReportsAlternateBetweenConductors(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	other := openStore(t, r.url, defaults())
	h := r.addHost(t, "h1", 1)
	beatOfA := h.beat()

	send := func(store *db.Store, report agentapi.Report) agentapi.ReportReply {
		replies, err := store.MergeReports(t.Context(), []agentapi.Report{report})
		require.NoError(t, err)
		return replies[0]
	}

	h.devices()[0].Deployables[0].BitstreamID = "b"
	b := h.next()
	b.Content = content(1)
	b.Content.Backends[0].Devices[0].Deployables[0].BitstreamID = "b"
	require.True(t, send(other, b).Accepted)
	require.Equal(t, "b", h.accelerator(t, "card0").BitstreamID)

	h.devices()[0].Deployables[0].BitstreamID = ""
	a := h.next()
	reply := send(r.Store, a)
	require.True(t, reply.Accepted)
	require.False(t, send(other, b).Accepted)
	require.Empty(t, h.accelerator(t, "card0").BitstreamID)
	require.Equal(t, int64(3), h.record(t).Generation)

	replies, err := other.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beatOfA})
	require.NoError(t, err)
	require.True(t, replies[0].Report, "the digest is the same, but what was acknowledged with it is not what is recorded")

	h.reply = reply
	replies, err = other.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.False(t, replies[0].Report)
}

// TestReportsOfOneHostTogether: of several reports of one host in one batch,
// only the newest counts.
func TestReportsOfOneHostTogether(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(1)}
	older := h.next()
	h.content = content(3)
	newer := h.next()

	replies, err := r.MergeReports(t.Context(), []agentapi.Report{newer, older})
	require.NoError(t, err)
	require.True(t, replies[0].Accepted)
	require.False(t, replies[1].Accepted)
	require.Len(t, h.accelerators(t), 3)
}

// TestL12ConcurrentReports: whichever conductors receive the reports of a host,
// in whatever order, each card is recorded once, and the newest report decides
// which cards are present.
func TestL12ConcurrentReports(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}
	h := &host{records: r, name: "h1", boot: "b"}

	var work errgroup.Group
	for i := range 8 {
		h.content = content(8 - i%4)
		report := h.next()
		work.Go(func() error {
			_, err := stores[i%2].MergeReports(t.Context(), []agentapi.Report{report})
			return err
		})
	}
	require.NoError(t, work.Wait())

	shown := 0
	for local, a := range h.accelerators(t) {
		require.Len(t, a.Handles, 2, local)
		if a.Presence == cyborg.PresencePresent {
			shown++
		}
	}
	require.Equal(t, len(h.content.Backends[0].Devices), shown)
}

// TestVanishingAndReturning: a card or handle that a report no longer shows is
// missing, and fenced where somebody holds it. When it returns it is what it
// was.
func TestVanishingAndReturning(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	held := h.attach(t, "card0")

	all := h.devices()
	h.content.Backends[0].Devices = all[1:2]
	h.report(t)
	require.Equal(t, 1, h.record(t).Devices)

	a := h.accelerator(t, "card0")
	require.Equal(t, cyborg.StatusMissing, a.Status())
	require.NotZero(t, a.MissingAt)
	require.Equal(t, &cyborg.Fence{Reason: "vanished while in use"}, a.Fence)
	require.Equal(t, cyborg.PresenceMissing, a.Handles[0].Presence)
	require.Equal(t, onHost("h1"), *a.Handles[0].Holder)
	require.Nil(t, h.accelerator(t, "card2").Fence, "nobody holds it")
	require.Equal(t, cyborg.StatusMissing, h.accelerator(t, "card2").Status())

	h.content.Backends[0].Devices = all
	h.report(t)
	a = h.accelerator(t, "card0")
	require.Equal(t, cyborg.StatusReady, a.Status(), "it came back as what it was")
	require.Equal(t, held.UUID, a.UUID)
	require.Nil(t, a.Fence)
	require.Len(t, a.Holders(), 1)

	// A handle vanishes without its card.
	handles := all[0].Deployables[0].Handles
	all[0].Deployables[0].Handles = handles[1:]
	h.report(t)

	a = h.accelerator(t, "card0")
	require.Equal(t, cyborg.PresencePresent, a.Presence)
	require.Equal(t, "vanished while in use", a.Fence.Reason)
	require.Equal(t, cyborg.PresenceMissing, a.Handles[0].Presence)

	_, err := r.Admit(t.Context(), toAttach(a.UUID, instance("vm")))
	requireKind(t, cyborg.ErrChanged, err, "vanished while in use")

	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	require.Nil(t, h.accelerator(t, "card0").Fence)
	work := r.begin(t, toAttach(a.UUID, instance("vm")))
	require.Equal(t, "card0.1", work.Handles[0].Identity, "not the one that is missing")
}

// TestBackendsThatFailOrGo: what a failed backend had stays as it is recorded,
// because the backend does not know. What a disabled or removed backend had is
// missing.
func TestBackendsThatFailOrGo(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	second := agentapi.BackendReport{Name: "second", Driver: "generic", State: cyborg.BackendOK, Devices: []cyborg.DeviceReport{device("other")}}
	h.content.Backends = append(h.content.Backends, second)
	h.report(t)

	first := h.content.Backends[0]
	status := func(local string) cyborg.Status { return h.accelerator(t, local).Status() }

	h.content.Backends[0] = agentapi.BackendReport{Name: "fake", Driver: "fake", State: cyborg.BackendFailed}
	h.report(t)
	require.Equal(t, cyborg.StatusInactive, status("card0"), "a failed backend does not know")
	require.Equal(t, cyborg.StatusInactive, status("other"))
	require.NotEmpty(t, h.record(t).Backends[0].Error)
	require.Equal(t, cyborg.BackendFailed, h.record(t).Backends[0].State)

	h.content.Backends[0].State = cyborg.BackendDisabled
	h.report(t)
	require.Equal(t, cyborg.StatusMissing, status("card0"))
	require.Equal(t, cyborg.StatusInactive, status("other"))

	h.content.Backends[0] = first
	h.report(t)
	require.Equal(t, cyborg.StatusInactive, status("card0"))

	h.content.Backends = h.content.Backends[:1] // second is gone from the configuration
	h.report(t)
	require.Equal(t, cyborg.StatusMissing, status("other"))
	require.Equal(t, cyborg.BackendDisabled, h.record(t).Backends[1].State)

	forgotten, err := r.Forget(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 4, forgotten)
	require.Len(t, h.record(t).Backends, 1)
}

// TestInvalidPartsOfAReportAreSkipped: a report may contain what drivers must
// not report. Its valid parts are recorded, and its backends name the rest as
// errors.
func TestInvalidPartsOfAReportAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "a", 1)
	h := &host{records: r, name: "h1", boot: "b", content: content(3)}

	devices := h.devices()
	devices[1].Deployables[0].Handles[1].Identity = "card0.0"       // belongs to card0
	devices[2].Deployables[0].Handles[1].Identity = "card2.0"       // its own, twice
	devices = append(devices, device(""), device("card1"))          // no identity; twice
	devices = append(devices, cyborg.DeviceReport{Identity: "odd"}) // nothing but a name
	devices[5].Deployables = []cyborg.DeployableReport{deployable("card0", 1), deployable("", 1)}
	h.content.Backends[0].Devices = devices

	h.content.Backends = append(h.content.Backends, agentapi.BackendReport{
		Name: "late", Driver: "generic", State: cyborg.BackendOK, Devices: []cyborg.DeviceReport{device("card0"), device("mine")},
	})
	h.report(t)

	found := h.accelerators(t)
	require.Len(t, found, 4)
	require.Len(t, found["card0"].Handles, 2)
	require.Len(t, found["card1"].Handles, 1)
	require.Len(t, found["card2"].Handles, 1)
	require.Equal(t, "late", found["mine"].Backend)

	backends := h.record(t).Backends
	require.Equal(t, cyborg.BackendOK, backends[0].State)
	for _, text := range []string{"card0.0 is shown twice", "card2.0 is shown twice", "without identity", "card1 is shown twice", `"card0" of device odd is shown twice`, "without name"} {
		require.Contains(t, backends[0].Error, text)
	}
	require.Contains(t, backends[1].Error, "card0 is shown twice")

	// The accelerators of two hosts would get the same name, first within one
	// merge, then in two.
	x := &host{records: r, name: "x", boot: "b", content: content(0)}
	x.content.Backends[0].Devices = []cyborg.DeviceReport{{Identity: "i", Deployables: []cyborg.DeployableReport{deployable("y_z", 1)}}}
	xy := &host{records: r, name: "x_y", boot: "b", content: content(0)}
	xy.content.Backends[0].Devices = []cyborg.DeviceReport{{Identity: "i", Deployables: []cyborg.DeployableReport{deployable("z", 1)}}}

	_, err := r.MergeReports(t.Context(), []agentapi.Report{x.next(), xy.next()})
	require.NoError(t, err)
	require.Len(t, x.accelerators(t), 1)
	require.Empty(t, xy.accelerators(t))

	clash := &host{records: r, name: "a_b", boot: "b", content: content(1)}
	clash.devices()[0].Deployables = []cyborg.DeployableReport{deployable("c", 1)}
	clash.report(t)

	late := &host{records: r, name: "a", boot: "boot-1", sequence: 10, content: content(1)}
	late.content.Backends[0].Devices = append(late.devices(), cyborg.DeviceReport{
		Identity: "x", Deployables: []cyborg.DeployableReport{deployable("b_c", 1), deployable("fine", 1)},
	})
	late.report(t)
	require.Len(t, late.accelerators(t), 2)
	require.Contains(t, late.record(t).Backends[0].Error, `its name "a_b_c" belongs to one of host a_b`)
}

// TestL7VanishedHandle: when a function disappears, its handle becomes missing,
// and those of its siblings do not.
func TestL7VanishedHandle(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	reported := &h.devices()[0].Deployables[0]
	*reported = deployable("card0", 3)
	h.report(t)

	byIdentity := func() map[string]uuid.UUID {
		out := map[string]uuid.UUID{}
		for _, handle := range h.accelerator(t, "card0").Handles {
			if handle.Presence == cyborg.PresencePresent {
				out[handle.Identity] = handle.UUID
			}
		}
		return out
	}

	left := byIdentity()
	require.Len(t, left, 3)

	gone := reported.Handles[0].Identity
	reported.Handles = reported.Handles[1:]
	h.report(t)
	delete(left, gone)
	require.Equal(t, left, byIdentity())
}

// TestHandleThatMoves: a function belongs to the deployable that shows it,
// unless somebody holds it on its recorded deployable.
func TestHandleThatMoves(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0")
	handles := &h.devices()[0].Deployables[0].Handles
	moved := (*handles)[0]
	id := a.Handles[0].UUID
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)

	*handles = (*handles)[1:]
	other := &h.devices()[1].Deployables[0]
	other.Handles = append(other.Handles, moved)
	h.report(t)
	require.Len(t, h.accelerator(t, "card1").Handles, 2, "it is held where it was")
	require.Equal(t, "vanished while in use", h.accelerator(t, "card0").Fence.Reason)
	require.Contains(t, h.record(t).Backends[0].Error, "held by host h1")

	beat, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.True(t, beat[0].Report, "the agent is asked until it can be recorded")

	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	h.report(t)
	require.Len(t, h.accelerator(t, "card0").Handles, 1)
	found := h.accelerator(t, "card1").Handles
	require.Len(t, found, 3)
	require.Contains(t, []uuid.UUID{found[0].UUID, found[1].UUID, found[2].UUID}, id)
	require.Empty(t, h.record(t).Backends[0].Error)

	beat, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
	require.NoError(t, err)
	require.False(t, beat[0].Report)
}

// TestDeviceThatMoves: a device moves to another backend once nobody holds it.
// Its accelerators stay the same, even where the device gets another identity.
func TestDeviceThatMoves(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)

	shown := h.devices()
	h.content.Backends[0] = agentapi.BackendReport{Name: "fake", Driver: "fake", State: cyborg.BackendFailed, Error: "no"}
	h.content.Backends = append(h.content.Backends, agentapi.BackendReport{Name: "new", Driver: "generic", State: cyborg.BackendOK, Devices: shown})
	h.report(t)
	require.Equal(t, "fake", h.accelerator(t, "card0").Backend)
	require.Contains(t, h.record(t).Backends[1].Error, "card0 stays with backend fake")

	r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	h.report(t)
	require.Equal(t, "new", h.accelerator(t, "card0").Backend)
	require.Equal(t, a.UUID, h.accelerator(t, "card0").UUID)

	// The device has another identity, because its serial number became known.
	h.content.Backends[1].Devices[0].Identity = "serial-1"
	h.report(t)
	require.Equal(t, a.UUID, h.accelerator(t, "card0").UUID)
	require.NotEqual(t, a.DeviceUUID, h.accelerator(t, "card0").DeviceUUID)
	require.Equal(t, cyborg.StatusReady, h.accelerator(t, "card0").Status())
	require.Equal(t, 1, h.record(t).Devices)
}

// TestNewOnADisabledDevice: a new accelerator is in maintenance where all
// others of its device are.
func TestNewOnADisabledDevice(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"all", "what differs"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 2)
			a := h.accelerator(t, "card0")

			cleaning := cyborg.Maintenance{Reason: "cleaning", By: "bob", For: time.Hour}
			_, err := r.MaintainDevice(t.Context(), a.DeviceUUID, cleaning, alice())
			require.NoError(t, err)

			split := func(names ...string) {
				before := h.next()
				devices := h.devices()
				h.content = content(2)
				for i := range h.devices() {
					d := &h.devices()[i]
					d.Deployables = slices.Clone(devices[i].Deployables)
					for _, name := range names {
						d.Deployables = append(d.Deployables, deployable(d.Identity+name, 0))
					}
				}

				now := h.next()
				if mode != "all" {
					now = since(before, now)
				}
				require.True(t, h.tell(t, now).Accepted)
			}

			split("-a", "-b")
			was := h.accelerator(t, "card0").Maintenance
			require.NotZero(t, was.Until)

			for _, name := range []string{"card0-a", "card0-b"} {
				require.Equal(t, was, h.accelerator(t, name).Maintenance)
				require.Equal(t, "cleaning", scalar[string](t, r, `SELECT data ->> 'reason' FROM events
					WHERE subject_id = $1 AND axis = 'administration'`, h.accelerator(t, name).UUID.String()))
			}
			require.Nil(t, h.accelerator(t, "card1-a").Maintenance)

			_, err = r.Enable(t.Context(), h.accelerator(t, "card0-a").UUID, alice())
			require.NoError(t, err)
			split("-c")
			require.Nil(t, h.accelerator(t, "card0-c").Maintenance, "it is not the device that is out of use")
		})
	}
}

// TestNameOfNewAcceleratorIsTaken: a new accelerator gets a suffix where
// another one has its name already.
func TestNameOfNewAcceleratorIsTaken(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card0").UUID, Name: "h2_card0"}), cyborg.OperationSucceeded)
	late := r.addHost(t, "h2", 1).accelerator(t, "card0")
	require.Equal(t, "h2_card0", late.ProviderName)
	require.Contains(t, late.Name, "h2_card0~")
}

// TestBadReportDoesNotBlockItsBatch: an invalid report fails alone, and the
// valid one beside it is recorded.
func TestBadReportDoesNotBlockItsBatch(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	fine := &host{records: r, name: "fine", boot: "b", content: content(1)}
	r.refuseVendor(t)

	bad := func(change func(*agentapi.Report)) agentapi.Report {
		h := &host{records: r, name: "bad", boot: "b", content: content(1)}
		report := h.next()
		change(&report)
		return report
	}

	for i, report := range []agentapi.Report{
		bad(func(r *agentapi.Report) { r.Host = "" }),
		bad(func(r *agentapi.Report) { r.Host = "bad\x00" }),
		bad(func(r *agentapi.Report) { r.Sequence = 0 }),
		bad(func(r *agentapi.Report) { r.Sequence = agentapi.MaxSequence + 1 }),
		bad(func(r *agentapi.Report) { r.Digest = "" }),
		bad(func(r *agentapi.Report) { r.BootID = "\x00" }),
		bad(func(r *agentapi.Report) { r.Content.Backends[0].Devices[0].Vendor = "\x00" }),
		bad(func(r *agentapi.Report) { r.Content.Backends[0].State = "maybe" }),
		bad(func(r *agentapi.Report) { r.Content.Backends = append(r.Content.Backends, r.Content.Backends[0]) }),
		bad(func(r *agentapi.Report) { r.Content.Backends[0].Driver = "" }),
		bad(func(r *agentapi.Report) { r.Content.Backends[0].Devices[0].Vendor = "only the database notices" }),
	} {
		sequence := fine.sequence
		replies, err := r.MergeReports(t.Context(), []agentapi.Report{fine.next(), report})
		requireKind(t, cyborg.ErrInvalid, errors.Unwrap(unjoin(err)), "report of host")
		require.Equal(t, agentapi.ReportReply{Generation: 1, Accepted: true}, replies[0], "%d", i)
		require.Zero(t, replies[1])
		require.Equal(t, sequence+1, scalar[int64](t, r, "SELECT report_seq FROM hosts WHERE name = 'fine'"))
	}
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM hosts WHERE name <> 'fine'"))

	odd := bad(func(r *agentapi.Report) { r.Content.Backends[0].Devices[0].Vendor = `\u0000 "quoted" \` })
	odd.Host = "odd"
	_, err := r.MergeReports(t.Context(), []agentapi.Report{odd})
	require.NoError(t, err)
}

// refuseVendor makes the database refuse the devices of one vendor. So does it with
// whatever a check of reports has left out.
func (r *records) refuseVendor(t testing.TB) {
	t.Helper()
	r.exec(t, "ALTER TABLE devices ADD CHECK (vendor <> 'only the database notices')")
}

// TestBadReportsAreFoundByHalves: of a batch with bad reports all others are
// recorded, in few transactions, and each bad one has one line in the log a minute.
func TestBadReportsAreFoundByHalves(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	began := time.Now()
	said := &transcript.Text{}
	count := &counter{}
	r.Store = openStoreSaying(t, r.url, db.Options{SilentAfter: 25 * time.Minute, Tracer: count}, said)
	r.refuseVendor(t)

	const hosts = 64
	reports := make([]agentapi.Report, hosts)
	for i := range reports {
		reports[i] = (&host{records: r, name: fmt.Sprint("h", i), boot: "b", content: content(1)}).next()
	}
	for _, i := range []int{17, 18} {
		reports[i].Content.Backends[0].Devices[0].Vendor = "only the database notices"
	}

	before := count.statements.Load()
	replies, err := r.MergeReports(t.Context(), reports)
	require.Equal(t, 2, strings.Count(fmt.Sprint(err), "cannot be recorded"), err)
	for i, reply := range replies {
		require.Equal(t, i != 17 && i != 18, reply.Accepted, "%d", i)
	}
	require.Less(t, count.since(&before), int64(400), "one by one, they take more than a thousand")

	_, err = r.MergeReports(t.Context(), reports)
	require.Error(t, err)
	lines := strings.Count(said.String(), "a report cannot be recorded")
	require.GreaterOrEqual(t, lines, 2, said)
	require.LessOrEqual(t, lines, 2*linesSince(began), said)
	require.Equal(t, lines, strings.Count(said.String(), "level=ERROR"), said)
}

// TestNumbersOutOfRange: a device whose NUMA node the records cannot hold is
// recorded without it. What they hold as JSON, lists can read, too.
func TestNumbersOutOfRange(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(3)}
	for i, node := range []int{1 << 40, math.MinInt32 - 1, math.MaxInt32} {
		h.devices()[i].NUMANode = &node
	}
	h.devices()[0].Deployables[0].Specs.Num = math.MaxInt
	require.True(t, h.report(t).Accepted)

	list, err := r.Devices(t.Context(), db.DeviceFilter{}, db.Page{})
	require.NoError(t, err)
	require.Nil(t, list[0].NUMANode)
	require.Nil(t, list[1].NUMANode)
	require.Equal(t, math.MaxInt32, *list[2].NUMANode)
	for _, text := range []string{"device card0 is recorded without its NUMA node: 1099511627776 is", "device card1"} {
		require.Contains(t, h.record(t).Backends[0].Error, text)
	}

	most := 0
	require.NoError(t, r.EachDeployable(t.Context(), db.DeployableFilter{}, db.Listing{}, func(d *db.ListedDeployable) {
		most = max(most, d.Accelerators)
	}))
	require.Equal(t, math.MaxInt, most)
}

// TestNumberOutOfReach: whoever can report for a host cannot put its numbers
// where the host's agent can no longer go on.
func TestNumberOutOfReach(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "b", content: content(1)}
	h.report(t)

	send := func(sequence int64) (agentapi.ReportReply, error) {
		report := h.next()
		report.Sequence, report.Content = sequence, agentapi.Content{}
		report.Digest = report.Content.Digest()
		replies, err := r.MergeReports(t.Context(), []agentapi.Report{report, {Host: "h2", BootID: "b", Sequence: sequence, Digest: "d"}})
		return replies[0], err
	}

	for _, sequence := range []int64{agentapi.MaxSequence, agentapi.MaxSequence - 1, 1 << 44, agentapi.MaxClock + agentapi.MaxJump + 1} {
		reply, err := send(sequence)
		requireKind(t, cyborg.ErrInvalid, errors.Unwrap(unjoin(err)), fmt.Sprintf("sequence %d is above", sequence))
		require.Zero(t, reply)
	}
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM hosts WHERE name <> 'h1'"))
	require.Equal(t, h.sequence-4, scalar[int64](t, r, "SELECT report_seq FROM hosts"))

	// However far a number goes, the next one is within reach.
	known := int64(agentapi.MaxClock)
	for range 3 {
		known += agentapi.MaxJump
		reply, err := send(known)
		require.NoError(t, err)
		require.True(t, reply.Accepted)
	}

	h.sequence = known
	require.True(t, h.report(t).Accepted)
	require.Equal(t, known+1, scalar[int64](t, r, "SELECT report_seq FROM hosts WHERE name = 'h1'"))
}

// TestObservedNumberOutOfReach: what a step says that it saw does not put the
// numbers of its host where the host's agent can no longer go on, either. Where
// such an observation has gone as far as it may, the next report may follow it.
func TestObservedNumberOutOfReach(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := &host{records: r, name: "h1", boot: "boot-1", content: content(1)}
	h.report(t)
	a := h.ready(t, "card0")

	program := func(sequence int64) {
		t.Helper()
		work := r.begin(t, toProgram(a.UUID))
		seen := device("card0")
		seen.Deployables[0].BitstreamID = "new"
		require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
			Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "new",
			Observations: []cyborg.Observation{{Sequence: sequence, Backend: "fake", Device: seen}},
		}))
	}
	observed := func() int64 { return scalar[int64](t, r, "SELECT max(observed_seq) FROM devices") }

	const furthest = int64(agentapi.MaxClock + agentapi.MaxJump)
	for _, sequence := range []int64{math.MaxInt64, agentapi.MaxSequence, furthest + 1} {
		program(sequence)
		require.Zero(t, observed())
		replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{h.beat()})
		require.NoError(t, err)
		require.True(t, replies[0].Report, "the host is asked how the device is")
		require.Zero(t, h.report(t).Exceed)
	}

	program(furthest)
	require.Equal(t, furthest, observed())
	require.Equal(t, furthest, h.report(t).Exceed)
	h.sequence = furthest
	reply := h.report(t)
	require.True(t, reply.Accepted)
	require.Zero(t, reply.Exceed)

	program(furthest + 1 + agentapi.MaxJump)
	require.Equal(t, furthest+1+agentapi.MaxJump, observed())
}

// unjoin wraps the only error that was joined.
func unjoin(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	return fmt.Errorf("%w", joined.Unwrap()[0])
}

// TestSilentHosts: a host without heartbeats is silent until its next one, and
// a heartbeat of an unknown host is answered with a request for a report.
func TestSilentHosts(t *testing.T) {
	t.Parallel()
	r := newRecordsWith(t, db.Options{SilentAfter: 30 * time.Second})
	a, b := r.addHost(t, "a", 1), r.addHost(t, "b", 0)

	a.fall(t)
	overdue, err := r.SilentHosts(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, overdue, 1)
	require.Equal(t, "a", overdue[0].Name)
	require.True(t, overdue[0].Silent)

	services, err := r.Services(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, []bool{services[0].Alive, services[1].Alive})

	unknown := agentapi.Heartbeat{Host: "c"}
	replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{a.beat(), b.beat(), unknown, {Host: "\x00"}})
	require.NoError(t, err)
	require.Equal(t, []agentapi.HeartbeatReply{{}, {}, {Report: true}, {Report: true}}, replies)

	overdue, err = r.SilentHosts(t.Context(), 0)
	require.NoError(t, err)
	require.Empty(t, overdue)
	require.Equal(t, time.Unix(1, 0).UTC(), scalar[time.Time](t, r, "SELECT agent_started_at FROM hosts WHERE name = 'a'").UTC())

	early, late := a.beat(), b.beat()
	early.SentAt, late.SentAt = time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{early, late})
	require.NoError(t, err)

	for name, want := range map[string]float64{"a": 3600, "b": -3600} {
		host, err := r.Host(t.Context(), name)
		require.NoError(t, err)
		require.InDelta(t, want, *host.ClockOffset, 60)
	}

	require.NoError(t, r.RecordService(t.Context(), cyborg.Service{Role: "conductor", Host: "c1", Instance: "1", Version: "2", StartedAt: time.Now()}))
	services, err = r.Services(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Len(t, services, 3)
	require.True(t, services[2].Alive)

	require.NoError(t, r.DeleteService(t.Context(), services[2]))
	services, err = r.Services(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Len(t, services, 2)
}
