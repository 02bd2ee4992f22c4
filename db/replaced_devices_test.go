package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// These tests are about cards that are replaced by others in their slots.

// The cards of these tests. The second is of the same model as the first.
func gpu() cyborg.Fingerprint {
	return cyborg.Fingerprint{Model: "10de:20b0 10de:134f", Serial: "48-b0-2d-ff-ff-12-34-56"}
}

func secondGPU() cyborg.Fingerprint {
	return cyborg.Fingerprint{Model: "10de:20b0 10de:134f", Serial: "48-b0-2d-ff-ff-12-34-57"}
}

func qat() cyborg.Fingerprint { return cyborg.Fingerprint{Model: "8086:37c8 8086:0000"} }

// put puts a card into the slot of the device, as the host's next report says.
func (h *host) put(device int, card cyborg.Fingerprint) { h.devices()[device].Fingerprint = card }

// addGPU adds a host with one GPU.
func (r *records) addGPU(t testing.TB) *host {
	t.Helper()
	h := r.addHost(t, "h1", 1)
	h.put(0, gpu())
	h.report(t)
	return h
}

// hasForgotten tells whether the accelerator has left the records.
func (r *records) hasForgotten(t testing.TB, id uuid.UUID) bool {
	t.Helper()
	_, err := r.Accelerator(t.Context(), id)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return true
	}
	require.NoError(t, err)
	return false
}

// TestReplacedDeviceIsForgotten: a card that nobody has leaves the records with the
// report that shows another one in its slot, and the next report brings that as new.
func TestReplacedDeviceIsForgotten(t *testing.T) {
	t.Parallel()
	for name, card := range map[string]cyborg.Fingerprint{"by another model": qat(), "by another card of its model": secondGPU()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			old := h.ready(t, "card0")

			h.put(0, card)
			require.True(t, h.report(t).Accepted)
			require.True(t, r.hasForgotten(t, old.UUID))
			require.Empty(t, h.accelerators(t))
			require.Equal(t, []string{" → " + card.String()}, r.changes(t, cyborg.SubjectDevice, cyborg.AxisReplacedBy))
			require.True(t, h.asked(t), "the next heartbeat asks for the report that brings the other card")

			h.report(t)
			a := h.accelerator(t, "card0")
			require.NotEqual(t, old.UUID, a.UUID)
			require.Equal(t, cyborg.StatusInactive, a.Status(), "nobody has taken the other card into service")
			require.True(t, a.UninstallPending.IsZero(), "what was installed was so on the card that is gone")
			require.Equal(t, []string{" → present", "present → missing", "missing → ", " → present"}, r.changes(t, cyborg.SubjectDevice, cyborg.AxisPresence))
			require.False(t, h.asked(t))
		})
	}
}

// TestReplacedDeviceStaysWithItsHolder: as long as somebody has a card, another one in
// its slot is not recorded, and gets to nobody.
func TestReplacedDeviceStaysWithItsHolder(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]cyborg.Holder{"its host": onHost("h1"), "an instance": instance(uuid.NewString())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			a := h.ready(t, "card0")
			operation := r.do(t, toAttach(a.UUID, holder), cyborg.OperationSucceeded).Operation
			if holder.Kind == cyborg.HolderHost {
				h.attached("card0", operation)
				h.report(t)
			}

			h.put(0, qat())
			for i := range h.content.Attachments { // a boot of the host came with it
				h.content.Attachments[i].State = cyborg.AttachmentLost
			}
			h.report(t)
			for range 2 { // the next report says the same
				h.report(t)
				a = r.accelerator(t, a.UUID)
				require.Equal(t, []cyborg.Holder{holder}, a.Holders())
				require.Equal(t, cyborg.PresenceMissing, a.Presence)
				require.Equal(t, &cyborg.Fence{Reason: "vanished while in use"}, a.Fence)
				require.Equal(t, "1234", a.Specs.VendorID, "what it is stays as it was")
				require.Empty(t, r.disagreements(t), "its host is asked for nothing")
				require.False(t, h.asked(t), "nothing would come of it")
			}

			device, err := r.Device(t.Context(), a.DeviceUUID)
			require.NoError(t, err)
			require.Equal(t, qat().String(), device.ReplacedBy)
			require.Equal(t, gpu(), device.Fingerprint)
			backends := h.record(t).Backends
			require.Contains(t, backends[0].Error, "card0 (8086:37c8 8086:0000) is left out: it is in the place of another card "+
				"(10de:20b0 10de:134f, serial 48-b0-2d-ff-ff-12-34-56), which is still in use")

			_, err = r.Admit(t.Context(), toAttach(a.UUID, instance(uuid.NewString())))
			requireKind(t, cyborg.ErrChanged, err, `another card (8086:37c8 8086:0000) is in its place on host h1`)

			r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
			require.True(t, h.asked(t))
			h.content.Attachments = nil
			h.report(t)
			require.True(t, r.hasForgotten(t, a.UUID))
			h.report(t)
			require.Equal(t, cyborg.StatusInactive, h.accelerator(t, "card0").Status())
			require.Empty(t, h.record(t).Backends[0].Error)
		})
	}
}

// TestReplacedDeviceComesBack: whoever has the card has it again.
func TestReplacedDeviceComesBack(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, instance(uuid.NewString())), cyborg.OperationSucceeded)
	h.put(0, secondGPU())
	h.report(t)
	require.Equal(t, cyborg.PresenceMissing, r.accelerator(t, a.UUID).Presence)

	h.put(0, gpu())
	h.report(t)
	a = r.accelerator(t, a.UUID)
	require.Equal(t, cyborg.PresencePresent, a.Presence)
	require.Nil(t, a.Fence)
	device, err := r.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	require.Empty(t, device.ReplacedBy)

	// Once it is pulled out without another one in its place, none is told.
	h.put(0, secondGPU())
	h.report(t)
	h.content.Backends[0].Devices = nil
	h.report(t)
	device, err = r.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	require.Equal(t, cyborg.PresenceMissing, device.Presence)
	require.Empty(t, device.ReplacedBy)
}

// TestReplacedDeviceIsKept: also what nobody holds stays while something depends on it.
func TestReplacedDeviceIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keep func(t *testing.T, r *records, h *host, a *cyborg.Accelerator) (end func())
	}{
		"while an operation works on it": {func(t *testing.T, r *records, _ *host, a *cyborg.Accelerator) func() {
			t.Helper()
			work := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}))
			return func() { r.end(t, work, cyborg.OperationFailed) }
		}},
		"while its host has not confirmed a detach by force": {func(t *testing.T, r *records, h *host, a *cyborg.Accelerator) func() {
			t.Helper()
			h.ready(t, "card0")
			h.attached("card0", r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded).Operation)
			h.report(t)
			h.fall(t)
			r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
			return func() {
				d := r.disagreements(t)["card0"]
				require.Equal(t, gpu(), d.Fingerprint, "the host is told which card it is about")
				decided, err := r.Decide(t.Context(), d)
				require.NoError(t, err)
				require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
				h.content.Attachments = nil
			}
		}},
		"while Nova gives it out": {func(t *testing.T, r *records, h *host, _ *cyborg.Accelerator) func() {
			t.Helper()
			r.exec(t, `UPDATE deployables SET nova_spec = '{}'`)
			return func() {
				require.Contains(t, h.record(t).Backends[0].Error, "which is in Nova's whitelist")
				r.exec(t, `UPDATE deployables SET nova_spec = NULL`)
				r.exec(t, `UPDATE hosts SET digest = ''`) // as the end of the operation does
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			a := h.accelerator(t, "card0")
			end := c.keep(t, r, h, a)

			h.put(0, qat())
			h.report(t)
			require.False(t, r.hasForgotten(t, a.UUID))
			require.Equal(t, cyborg.PresenceMissing, r.accelerator(t, a.UUID).Presence)

			end()
			h.report(t)
			require.True(t, r.hasForgotten(t, a.UUID))
		})
	}
}

// TestFingerprintIsLearned: a serial number that cannot be read at all times is not
// forgotten, and a device of an agent that says nothing is the one that was recorded.
func TestFingerprintIsLearned(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")

	for _, says := range []cyborg.Fingerprint{{Model: gpu().Model}, gpu(), {Model: gpu().Model}, {}} {
		h.put(0, says)
		h.report(t)
		require.False(t, r.hasForgotten(t, a.UUID))
	}
	device, err := r.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	require.Equal(t, gpu(), device.Fingerprint)

	h.put(0, secondGPU())
	h.report(t)
	require.True(t, r.hasForgotten(t, a.UUID))
}

// TestStepsSayWhichCard: the work of an operation has the fingerprint of the card, and
// so has the look before a handle is given to an instance.
func TestStepsSayWhichCard(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	a := h.ready(t, "card0")
	work := r.begin(t, toAttach(a.UUID, instance(uuid.NewString())))
	require.Equal(t, gpu(), work.Targets[0].Fingerprint)
	require.Equal(t, gpu(), work.Given[0].Target.Fingerprint)
}

// TestReplacedDeviceInADifference: a difference that shows another card is answered
// with the question for the whole report, which has it.
func TestReplacedDeviceInADifference(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	a := h.ready(t, "card0")
	h.report(t)
	base := h.content.Digest()

	h.put(0, qat())
	report := h.next()
	report.Base = base
	replies, err := r.MergeReports(t.Context(), []agentapi.Report{report})
	require.NoError(t, err)
	require.True(t, replies[0].Whole)
	require.False(t, r.hasForgotten(t, a.UUID))

	h.report(t)
	require.True(t, r.hasForgotten(t, a.UUID))
}

// TestReplacedDeviceAfterAnOperation: what an operation has observed of another card
// that came meanwhile is not recorded of the one that it was about.
func TestReplacedDeviceAfterAnOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	a := h.ready(t, "card0")
	work := r.begin(t, toAttach(a.UUID, instance(uuid.NewString())))
	h.put(0, qat())
	h.sequence++
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrChanged, "another card"),
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.devices()[0]}},
	}))
	require.Equal(t, cyborg.PresenceMissing, r.accelerator(t, a.UUID).Presence)
	require.True(t, h.asked(t))

	h.report(t)
	require.True(t, r.hasForgotten(t, a.UUID))
}

// TestInstanceThatLacksItsCardIsNotRescued: Nova would give it the other card. Neither
// is it rescued while its host does not show the card, or cannot tell: another one may be
// there. Who asks for it learns why.
func TestInstanceThatLacksItsCardIsNotRescued(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		boot func(h *host)
		why  string
	}{
		"replaced": {func(h *host) { h.put(0, qat()) }, `another card (8086:37c8 8086:0000) is in the place of its accelerator "h1_card0"`},
		"missing":  {func(h *host) { h.content.Backends[0].Devices = h.devices()[1:] }, `its host does not show its accelerator "h1_card0"`},
		"nobody can tell": {func(h *host) {
			h.content.Backends[0].State, h.content.Backends[0].Error = cyborg.BackendFailed, "no rights"
		}, "cannot tell"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 2)
			r.profile(t, "one", one())
			h.put(0, gpu())
			h.report(t)
			who := uuid.New()
			r.bound(t, h.ready(t, "card0"), who)
			before := h.content.Backends[0]
			before.Devices = []cyborg.DeviceReport{h.devices()[0], h.devices()[1]}
			lacked := func() string {
				why, unclear, err := r.LackedCard(t.Context(), who)
				require.NoError(t, err)
				require.Equal(t, why != "" && name == "nobody can tell", unclear)
				return why
			}
			require.Empty(t, lacked())

			c.boot(h)
			h.reboot(t, 0)
			hosts, err := r.UnrescuedHosts(t.Context(), 10)
			require.NoError(t, err)
			require.Empty(t, hosts)
			out, err := r.Admit(t.Context(), toRescue("h1", true))
			require.NoError(t, err)
			require.True(t, out.NothingToDo)
			require.Contains(t, lacked(), c.why)

			asked := r.begin(t, toRescue("h1", false))
			require.Equal(t, who, asked.Rescues[0].Instance)
			r.end(t, asked, cyborg.OperationFailed)

			h.content.Backends[0] = before
			h.report(t)
			require.Empty(t, lacked())
			hosts, err = r.UnrescuedHosts(t.Context(), 10)
			require.NoError(t, err)
			require.Equal(t, []string{"h1"}, hosts)
			require.Equal(t, who, r.begin(t, toRescue("h1", true)).Rescues[0].Instance)
		})
	}
}

// TestReplacedDeviceOfAnotherName: another card may show what the one had under a
// device of another identity, as where its physical function is the device. The parts
// do not move there, and neither does their holder.
func TestReplacedDeviceOfAnotherName(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]bool{"held": true, "free": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			a := h.ready(t, "card0")
			who := instance(uuid.NewString())
			if held {
				r.do(t, toAttach(a.UUID, who), cyborg.OperationSucceeded)
			}

			h.devices()[0].Identity = "pf"
			h.put(0, qat())
			h.report(t)
			if held {
				a = r.accelerator(t, a.UUID)
				require.Equal(t, cyborg.PresenceMissing, a.Presence)
				require.Equal(t, qat().String(), a.ReplacedBy)
				require.Equal(t, []cyborg.Holder{who}, a.Holders())
				require.Contains(t, h.record(t).Backends[0].Error, "card0 (8086:37c8 8086:0000) is left out: it is in the place of another card")
				require.False(t, h.asked(t))
				r.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
				require.True(t, h.asked(t))
				h.report(t)
			}

			require.True(t, r.hasForgotten(t, a.UUID))
			h.report(t)
			require.Equal(t, cyborg.StatusInactive, h.accelerator(t, "card0").Status())
		})
	}
}

// TestCardUnderAnotherName: what is the same card by its serial number keeps its parts
// when it is shown as another device.
func TestCardUnderAnotherName(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addGPU(t)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, instance(uuid.NewString())), cyborg.OperationSucceeded)

	h.devices()[0].Identity = "pf"
	h.put(0, cyborg.Fingerprint{Model: "10de:20b5", Serial: gpu().Serial})
	h.report(t)
	a = r.accelerator(t, a.UUID)
	require.Equal(t, cyborg.PresencePresent, a.Presence)
	require.Len(t, a.Holders(), 1)
}

// TestInstallOfAForgottenCardIsNotThatOfAnother: what was forgotten while it may have
// been installed has to be uninstalled when it comes back, and another card in its
// place has not.
func TestInstallOfAForgottenCardIsNotThatOfAnother(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		card    cyborg.Fingerprint
		pending bool
	}{"the same": {gpu(), true}, "without a serial": {cyborg.Fingerprint{Model: gpu().Model}, true}, "another": {secondGPU(), false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			h.ready(t, "card0")
			devices := h.devices()
			h.content.Backends[0].Devices = nil
			h.report(t)
			for _, table := range []string{"devices", "deployables", "attach_handles"} {
				r.exec(t, "UPDATE "+table+" SET missing_since = now() - interval '2 days'")
			}
			_, err := r.Forget(t.Context(), 24*time.Hour)
			require.NoError(t, err)

			h.content.Backends[0].Devices = devices
			h.put(0, c.card)
			h.report(t)
			require.Equal(t, c.pending, !h.accelerator(t, "card0").UninstallPending.IsZero())
		})
	}
}

// TestReplacedDeviceOfADeletedInstance: Nova deletes the requests of an instance
// without an operation. The host is then asked for the other card, too, and so it is
// when what was missing for long is forgotten.
func TestReplacedDeviceOfADeletedInstance(t *testing.T) {
	t.Parallel()
	who := uuid.New()
	for name, c := range map[string]struct {
		hold, free func(t *testing.T, r *records, h *host, a *cyborg.Accelerator)
		stays      bool // with the report that comes then
	}{
		"deleted": {
			func(t *testing.T, r *records, _ *host, a *cyborg.Accelerator) {
				t.Helper()
				r.profile(t, "one", one())
				r.bound(t, a, who)
			},
			func(t *testing.T, r *records, _ *host, _ *cyborg.Accelerator) {
				t.Helper()
				_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
				require.NoError(t, err)
			},
			false,
		},
		"forgotten": {
			func(t *testing.T, r *records, h *host, a *cyborg.Accelerator) {
				t.Helper()
				r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
				h.fall(t)
				r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
				h.hear(t)
			},
			func(t *testing.T, r *records, _ *host, _ *cyborg.Accelerator) {
				t.Helper()
				for _, table := range []string{"devices", "deployables", "attach_handles"} {
					r.exec(t, "UPDATE "+table+" SET missing_since = now() - interval '2 days'")
				}
				_, err := r.Forget(t.Context(), 24*time.Hour)
				require.NoError(t, err)
			},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addGPU(t)
			a := h.ready(t, "card0")
			c.hold(t, r, h, a)
			h.put(0, qat())
			h.report(t)
			h.report(t)
			require.False(t, h.asked(t))
			require.False(t, r.hasForgotten(t, a.UUID))

			c.free(t, r, h, a)
			require.True(t, h.asked(t))
			h.report(t)
			require.True(t, r.hasForgotten(t, a.UUID))
			if !c.stays {
				h.report(t)
			}
			require.Equal(t, cyborg.StatusInactive, h.accelerator(t, "card0").Status())
		})
	}
}
