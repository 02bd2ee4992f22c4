package adopt_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

const computeHost = "compute1.example.org"

// upstreamOf fills the database with what the drivers of an OpenStack Cyborg
// would have reported of these devices. Each device has one deployable with the
// given name, and the first handle of each of its parts is bound.
func (c *cloud) upstreamOf(t *testing.T, devices []cyborg.DeviceReport, name func(d cyborg.DeviceReport) string) *cloud {
	t.Helper()
	text := func(info map[string]string) string {
		out, err := json.Marshal(info)
		require.NoError(t, err)
		return string(out)
	}

	c.exec(t, `INSERT INTO device_profiles (id, uuid, name, profile_json) VALUES (1, '`+uuid.NewString()+`', 'p', '{"groups": [{"resources:FPGA": "1"}]}')`)

	handle := 0
	for i, d := range devices {
		id := i + 1

		c.exec(t, fmt.Sprintf(`INSERT INTO devices (id, uuid, type, vendor, model, hostname, status) VALUES (%d, '%s', '%s', '%s', 'x', '%s', 'enabled')`,
			id, uuid.NewString(), d.Type, d.VendorID, computeHost))

		c.exec(t, fmt.Sprintf(`INSERT INTO controlpath_ids (id, uuid, device_id, cpid_type, cpid_info) VALUES (%[1]d, '%[2]s', %[1]d, 'PCI', '%[3]s')`,
			id, uuid.NewString(), text(d.ControlPath.Info)))

		c.exec(t, fmt.Sprintf(`INSERT INTO deployables (id, uuid, name, num_accelerators, device_id, rp_uuid, driver_name) VALUES (%[1]d, '%[2]s', '%[3]s', 1, %[1]d, '%[4]s', 'x')`,
			id, uuid.NewString(), name(d), uuid.NewString()))

		for _, part := range d.Deployables {
			for n, h := range part.Handles {
				handle++
				c.exec(t, fmt.Sprintf(`INSERT INTO attach_handles (id, uuid, deployable_id, cpid_id, in_use, attach_type, attach_info) VALUES (%[1]d, '%[2]s', %[3]d, %[3]d, %[4]t, '%[5]s', '%[6]s')`,
					handle, uuid.NewString(), id, n == 0, h.Kind, text(h.Info)))
				if n == 0 {
					c.exec(t, fmt.Sprintf(`INSERT INTO extended_accelerator_requests (uuid, state, device_profile_id, device_profile_group_id, hostname, instance_uuid,
						attach_handle_id, substate, deployable_id) VALUES ('%s', 'Bound', 1, 0, '%s', '%s', %d, 'Initial', %d)`,
						uuid.NewString(), computeHost, uuid.NewString(), handle, id))
				}
			}
		}
	}
	return c
}

// fakeDevices returns what the fake driver reports.
func fakeDevices(t *testing.T) (name string, devices []cyborg.DeviceReport) {
	t.Helper()
	driver, err := fake.New(drivers.Environment{Root: t.TempDir(), StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)},
		map[string]any{"park": "2xfpga,1xgpu"})
	require.NoError(t, err)

	devices, err = driver.Discover(t.Context())
	require.NoError(t, err)
	return fake.Name, devices
}

// genericDevices returns what the generic driver reports of a GPU and a QAT
// card.
func genericDevices(t *testing.T) (name string, devices []cyborg.DeviceReport) {
	t.Helper()
	host := sysfstest.New(t, sysfstest.GPU(t, "0000:3b:00.0"), sysfstest.QAT(t, "0000:5e:00.0"))
	driver, err := generic.New(drivers.Environment{Root: host.Root(), Backend: "generic", StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)},
		map[string]any{"device_spec": []any{map[string]any{"address": "*:*:*.*"}}})
	require.NoError(t, err)

	devices, err = driver.Discover(t.Context())
	require.NoError(t, err)
	return generic.Name, devices
}

// report merges the first report of the host, with these devices of the driver.
func (o *ours) report(t *testing.T, driver string, devices []cyborg.DeviceReport) {
	t.Helper()
	content := agentapi.Content{
		Backends:    []agentapi.BackendReport{{Name: driver, Driver: driver, State: cyborg.BackendOK, Services: []string{}, Devices: devices}},
		Attachments: []agentapi.Attachment{},
	}

	replies, err := o.MergeReports(t.Context(), []agentapi.Report{{
		Host: computeHost, BootID: "boot", Instance: "agent", AgentVersion: "test", Sequence: 1_700_000_000_000, Digest: content.Digest(), Content: content,
	}})
	require.NoError(t, err)
	require.True(t, replies[0].Accepted)
}

// rows returns what a report must not change of each accelerator, by its UUID,
// and the backend of each accelerator's device, by the device's identity.
func (o *ours) rows(t *testing.T) (kept map[uuid.UUID]string, devices map[string]string) {
	t.Helper()
	accelerators, err := o.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{Limit: 100})
	require.NoError(t, err)

	kept, devices = map[uuid.UUID]string{}, map[string]string{}
	for _, a := range accelerators {
		text := fmt.Sprintf("%s %s %s %s %s", a.Name, a.ProviderName, a.ProviderUUID, a.DeviceUUID, a.Presence)
		for _, h := range a.Handles {
			text += fmt.Sprintf(" %s %s %v %s", h.UUID, h.Identity, h.Holder, h.Presence)
		}
		kept[a.UUID] = text

		device, err := o.Device(t.Context(), a.DeviceUUID)
		require.NoError(t, err)
		devices[device.Identity] = device.Backend
	}
	return kept, devices
}

// TestReportsMatchAdoptedDevices: a host's report must be matched to what was
// adopted, whatever names its driver uses. Nothing may be doubled, lost or
// taken from its holder.
func TestReportsMatchAdoptedDevices(t *testing.T) {
	t.Parallel()

	renamed := func(t *testing.T) (string, []cyborg.DeviceReport) { // by a driver that names devices by serial number
		t.Helper()
		_, devices := genericDevices(t)
		for i := range devices {
			devices[i].Identity = fmt.Sprintf("serial-%d", i)
			devices[i].Deployables[0].Name = fmt.Sprintf("card-%d", i)
		}
		return "vendor", devices
	}

	byAddress := func(d cyborg.DeviceReport) string {
		return "compute1_" + strings.TrimPrefix(d.ControlPath.Info["domain"], " ") + addressOf(d)
	}

	for name, test := range map[string]struct {
		devices func(t *testing.T) (string, []cyborg.DeviceReport)
		named   func(d cyborg.DeviceReport) string
	}{
		"fake": {fakeDevices, func(d cyborg.DeviceReport) string {
			return "compute1_FakeDevice_" + strings.NewReplacer(":", "_", ".", "_").Replace(d.Identity)
		}},
		"generic":                   {genericDevices, byAddress},
		"a driver with other names": {renamed, byAddress},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver, devices := test.devices(t)
			require.NotEmpty(t, devices)

			from, o := newPostgreSQL(t).upstreamOf(t, devices, test.named), newOurs(t)
			report := o.adopt(t, from, true)
			require.True(t, report.Applied, texts(report.Refused))

			before, _ := o.rows(t)
			require.Len(t, before, len(devices))

			o.report(t, driver, devices)
			after, known := o.rows(t)
			require.Equal(t, before, after)
			for _, d := range devices {
				require.Equal(t, driver, known[d.Identity], "the device belongs to the driver's backend now")
			}
			require.Len(t, known, len(devices))

			again := o.adopt(t, from, true)
			require.True(t, again.Applied)
			require.Zero(t, again.Adopted.Counts[db.AdoptDevice].New)
			after, _ = o.rows(t)
			require.Equal(t, before, after)
		})
	}
}

// addressOf returns the device's PCI address without its domain, such as
// :3b:00.0.
func addressOf(d cyborg.DeviceReport) string {
	i := d.ControlPath.Info
	return fmt.Sprintf(":%s:%s.%s", i["bus"], i["device"], i["function"])
}

// TestAdoptedVirtualFunctions: OpenStack Cyborg records a physical function and
// each of its virtual functions as separate devices, while our driver reports
// one device with the virtual functions as its parts. The parts must be matched
// to the adopted virtual functions. The physical function becomes missing; no
// instance can have held it.
func TestAdoptedVirtualFunctions(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.NIC(t, "0000:81:00.0", "ens1"))
	host.SetVFs("0000:81:00.0", "2")
	driver, err := generic.New(drivers.Environment{Root: host.Root(), Backend: "generic", StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)},
		map[string]any{"device_spec": []any{map[string]any{"address": "*:*:*.*"}}})
	require.NoError(t, err)

	shown, err := driver.Discover(t.Context())
	require.NoError(t, err)
	require.Len(t, shown, 1)
	require.Len(t, shown[0].Deployables, 2)

	cards := []cyborg.DeviceReport{shown[0]}
	cards[0].Deployables = nil
	for _, part := range shown[0].Deployables {
		cards = append(cards, cyborg.DeviceReport{
			Type: cyborg.DeviceTypeNIC, VendorID: "8086", ControlPath: cyborg.ControlPath{Kind: "PCI", Info: part.Handles[0].Info},
			Deployables: []cyborg.DeployableReport{part},
		})
	}

	shown, err = driver.Discover(t.Context())
	require.NoError(t, err)

	from := newPostgreSQL(t).upstreamOf(t, cards, func(d cyborg.DeviceReport) string { return "compute1_" + d.ControlPath.Info["domain"] + addressOf(d) })
	o := newOurs(t)
	require.True(t, o.adopt(t, from, true).Applied)
	before, _ := o.rows(t)

	o.report(t, generic.Name, shown)

	accelerators, err := o.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{Limit: 100})
	require.NoError(t, err)
	require.Len(t, accelerators, len(before), "no accelerator is new")
	for _, a := range accelerators {
		require.Contains(t, before, a.UUID)

		physical := a.ProviderName == "compute1_0000:81:00.0"
		require.Equal(t, physical, a.Presence == cyborg.PresenceMissing, a.ProviderName)
		if !physical {
			require.NotNil(t, a.Handles[0].Holder, "%s is still its instance's", a.ProviderName)
			require.Nil(t, a.Fence)
		}
	}
}

// TestAdoptedDeviceVanished: an adopted device that the host does not report is
// missing. An instance holds it, so it stays with its holder and is fenced.
func TestAdoptedDeviceVanished(t *testing.T) {
	t.Parallel()
	driver, devices := fakeDevices(t)
	from, o := newPostgreSQL(t).upstreamOf(t, devices, func(d cyborg.DeviceReport) string { return "compute1_Fake" + d.Identity }), newOurs(t)
	require.True(t, o.adopt(t, from, true).Applied)

	o.report(t, driver, devices[1:])

	accelerators, err := o.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{Limit: 100})
	require.NoError(t, err)
	require.Len(t, accelerators, len(devices))
	for _, a := range accelerators {
		gone := a.ProviderName == "compute1_Fake"+devices[0].Identity
		require.Equal(t, gone, a.Presence == cyborg.PresenceMissing, a.Name)
		require.Equal(t, gone, a.Fence != nil, a.Name)
		require.NotNil(t, a.Handles[0].Holder)
	}
}

// TestAdoptAfterTheFirstReportIsRefused: a host that has reported already has
// records of its own for the same devices. Nothing is adopted, and the report
// says what to do.
func TestAdoptAfterTheFirstReportIsRefused(t *testing.T) {
	t.Parallel()
	driver, devices := fakeDevices(t)
	from, o := newPostgreSQL(t).upstreamOf(t, devices, func(d cyborg.DeviceReport) string { return "compute1_Fake" + d.Identity }), newOurs(t)

	o.report(t, driver, devices)
	before, _ := o.rows(t)

	report := o.adopt(t, from, true)
	require.False(t, report.Applied)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(report.Refusal()))

	var text strings.Builder
	report.Write(&text)
	require.Contains(t, text.String(), "has reported "+devices[0].Identity)
	require.Contains(t, text.String(), "forget the host, then adopt")

	after, _ := o.rows(t)
	require.Equal(t, before, after)
}
