package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// The PCI functions of the simulated machine.
const (
	gpu      = "0000:17:00.0" // bound to nvidia, alone in its IOMMU group
	fpga     = "0000:3b:00.0" // without a driver
	qat      = "0000:3d:00.0" // may have virtual functions
	network  = "0000:41:00.0" // protected: the network interface of the host
	disk     = "0000:5e:00.0" // protected: the disk with the host's root
	neighbor = "0000:5f:00.0" // a disk that shares its IOMMU group with crowded
	crowded  = "0000:60:00.0"
	bare     = "0000:61:00.0" // in no IOMMU group
)

// machine is a standalone with one simulated machine, whose sysfs behaves like
// that of a real kernel.
type machine struct {
	*harness.Standalone

	host *sysfstest.Host
}

// newMachine runs a standalone whose host "rack" is the simulated machine.
func newMachine(t *testing.T, env ...string) *machine {
	t.Helper()
	host := sysfstest.New(t,
		sysfstest.In("12", sysfstest.GPU(t, gpu)), sysfstest.In("13", sysfstest.FPGA(t, fpga)), sysfstest.QAT(t, qat),
		sysfstest.NIC(t, network, "eth0"), sysfstest.SSD(t, disk, "nvme0n1", "259:0"),
		sysfstest.In("77", sysfstest.SSD(t, neighbor, "nvme1n1", "259:1")), sysfstest.In("77", sysfstest.FPGA(t, crowded)),
		sysfstest.In("", sysfstest.FPGA(t, bare)))

	host.Up("eth0")
	host.Mount("259:0", "/dev/nvme0n1", "/")

	s := harness.Start(t, harness.Options{Hosts: []string{"rack=sysfs:" + host.Root()}, Env: append(shortWaits(), env...)})
	return &machine{Standalone: s, host: host}
}

// driver returns the kernel driver to which a function is bound, "" for none.
func (m *machine) driver(t *testing.T, address string) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(m.host.Root(), "sys/bus/pci/devices", address, "driver"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return ""
	}

	return filepath.Base(target)
}

// awaitsVFIO waits until Reconcile has bound a function to VFIO again.
func (m *machine) awaitsVFIO(t *testing.T, address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, "bound again", func() error {
		if driver := m.driver(t, address); driver != "vfio-pci" {
			return fmt.Errorf("%s has the driver %q, not vfio-pci", address, driver)
		}
		return nil
	})
}

// at returns the path of a function's accelerator in the API.
func (m *machine) at(t *testing.T, address string) string {
	t.Helper()
	return "/v1/accelerators/" + m.accelerator(t, address).UUID.String()
}

// accelerator returns the accelerator that has the function as its handle.
func (m *machine) accelerator(t *testing.T, address string) apiclient.Accelerator {
	t.Helper()
	for _, a := range m.Accelerators(t) {
		for _, handle := range a.Handles {
			if handle.Identity == address {
				return a
			}
		}
	}

	t.Fatalf("no accelerator has the function %s", address)
	return apiclient.Accelerator{}
}

// status returns the status of a function's accelerator.
func (m *machine) status(t *testing.T, address string) cyborg.Status {
	t.Helper()
	return m.accelerator(t, address).Status
}

// discover has the agent look at the machine, and waits for its report.
func (m *machine) discover(t *testing.T) {
	t.Helper()
	status, _, found := request(t, m.Standalone, http.MethodPost, "/v1/hosts/rack/discover", nil)
	require.Equal(t, http.StatusOK, status, found)
	require.Empty(t, found["errors"])
}

// TestSimulatedMachine uses the generic driver on a simulated machine, through
// the API and the command line: functions are taken into service, bound to VFIO
// and back, used, unplugged and plugged in, and the machine boots.
func TestSimulatedMachine(t *testing.T) { //nolint:tparallel // each subtest continues where the one before ended
	t.Parallel()
	m := newMachine(t)

	for _, chapter := range []struct {
		name string
		play func(*testing.T, *machine)
	}{
		{"protected functions", protectedFunctions},
		{"not viable", notViable},
		{"life over HTTP", lifeOfGPU},
		{"life on the command line", lifeOnTheCommandLine},
		{"vanished under its holder", vanishedFunction},
		{"unbound by hand", unboundByHand},
		{"virtual functions", virtualFunctions},
		{"another device_spec", anotherDeviceSpec},
		{"what the host does not allow", notAllowed},
		{"reboot", rebootedMachine},
	} {
		if !t.Run(chapter.name, func(t *testing.T) {
			chapter.play(t, m)
			harness.RequireSound(t, m.Standalone)
		}) {
			return
		}
	}
}

// protectedFunctions asserts that nobody can take the functions on which the
// host itself depends.
func protectedFunctions(t *testing.T, m *machine) {
	t.Helper()

	for address, why := range map[string]string{network: "eth0", disk: "nvme0n1"} {
		a := m.accelerator(t, address)
		require.Contains(t, a.Protected, why)

		for _, try := range []struct {
			method, path string
			body         any
		}{
			{http.MethodPost, "/ready", nil},
			{http.MethodPost, "", map[string]any{"name": "mine"}},
		} {
			status, _, problem := request(t, m.Standalone, try.method, m.at(t, address)+try.path, try.body)
			require.Equal(t, http.StatusConflict, status, problem)
			require.Equal(t, "protected", problem["kind"])
			require.Contains(t, problem["detail"], why)
		}

		_, stderr, code := m.CLI(t, "accelerator", "ready", a.Name)
		require.Equal(t, 4, code)
		require.Contains(t, stderr, why)
		require.Equal(t, cyborg.StatusInactive, m.status(t, address))
	}

	require.Equal(t, "i40e", m.driver(t, network))
	require.Equal(t, "nvme", m.driver(t, disk))

	// A specification that only protected functions satisfy finds nothing.
	status, _, problem := request(t, m.Standalone, http.MethodPost, "/accelerators",
		map[string]any{"name": "net", "acc_specs": map[string]any{"device_type": "NIC"}})
	require.Equal(t, http.StatusConflict, status, problem)
	require.Equal(t, "no_fit", problem["kind"])
}

// notViable provisions functions that cannot be bound to VFIO. That fails with
// the reason, and they are as before.
func notViable(t *testing.T, m *machine) {
	t.Helper()
	for address, why := range map[string]string{crowded: neighbor, bare: "IOMMU"} {
		status, headers, problem := request(t, m.Standalone, http.MethodPost, m.at(t, address), map[string]any{"name": "no-" + address[5:7]})
		require.Equal(t, http.StatusUnprocessableEntity, status, problem)
		require.Equal(t, "unsupported", problem["kind"])
		require.Contains(t, problem["detail"], why)
		require.NotEmpty(t, problem["hint"])

		_, _, op := request(t, m.Standalone, http.MethodGet, "/v1/operations/"+headers.Get("Cyborg-Operation"), nil)
		require.Equal(t, "failed", op["state"])

		a := m.accelerator(t, address)
		require.Equal(t, cyborg.StatusInactive, a.Status)
		require.Equal(t, "rack_"+address, a.Name, "the name after the failed provision")
		require.Nil(t, a.Claim)
		require.Empty(t, m.driver(t, address))
	}

	require.Equal(t, "nvme", m.driver(t, neighbor))
}

// lifeOfGPU provisions, attaches and detaches the GPU over HTTP. Whoever has it
// open keeps it.
func lifeOfGPU(t *testing.T, m *machine) {
	t.Helper()
	status, headers, problem := request(t, m.Standalone, http.MethodPost, "/v1/accelerators",
		map[string]any{"name": "render", "host": "rack", "acc_specs": map[string]any{"device_type": "GPU", "vendor_id": "10de"}})
	require.Equal(t, http.StatusCreated, status, problem)

	at := headers.Get("Location")
	require.Equal(t, "render", m.accelerator(t, gpu).Name)
	require.Equal(t, "nvidia", m.driver(t, gpu), "provision does not bind the GPU to VFIO yet")

	// While a process has the GPU open, it is not attached.
	m.host.Open(4711, "Xorg", "/dev/dri/card1")
	status, _, problem = request(t, m.Standalone, http.MethodPut, at, map[string]any{})
	require.Equal(t, http.StatusConflict, status, problem)
	require.Equal(t, "in_use", problem["kind"])
	require.Contains(t, problem["detail"], "Xorg")
	require.Equal(t, "nvidia", m.driver(t, gpu))
	require.Equal(t, cyborg.StatusReady, m.status(t, gpu))
	m.host.End(4711)

	status, _, answer := request(t, m.Standalone, http.MethodPut, at, map[string]any{"host": "rack"})
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, "vfio-pci", m.driver(t, gpu))
	require.Equal(t, cyborg.StatusAttached, m.status(t, gpu))

	// A process that has the VFIO group open uses the GPU.
	m.host.Open(4712, "qemu-system-x86", "/dev/vfio/12")
	status, _, problem = request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, "in_use", problem["kind"])
	require.Contains(t, problem["detail"], "qemu-system-x86")
	require.Contains(t, problem["detail"], "4712")
	require.Equal(t, "vfio-pci", m.driver(t, gpu))
	require.Equal(t, cyborg.StatusAttached, m.status(t, gpu))

	_, _, usage := request(t, m.Standalone, http.MethodGet, at+"/usage", nil)
	handle := usage["deployables"].([]any)[0].(map[string]any)["handles"].([]any)[0].(map[string]any)

	require.Equal(t, true, handle["attached"])
	require.Equal(t, true, handle["in_use"])
	require.Contains(t, handle["by"], "qemu-system-x86")

	m.host.End(4712)

	status, _, problem = request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)
	require.Equal(t, "nvidia", m.driver(t, gpu), "the detach restores the driver")
	require.Equal(t, cyborg.StatusReady, m.status(t, gpu))
}

// lifeOnTheCommandLine does the same with the FPGA on the command line.
func lifeOnTheCommandLine(t *testing.T, m *machine) {
	t.Helper()
	run := func(code int, args ...string) (string, string) {
		stdout, stderr, got := m.CLI(t, args...)
		require.Equal(t, code, got, "%s\n%s%s", strings.Join(args, " "), stdout, stderr)
		return stdout, stderr
	}

	run(0, "accelerator", "create", "coder", "--accelerator", "rack_"+fpga)
	run(0, "accelerator", "attach", "coder")
	require.Equal(t, "vfio-pci", m.driver(t, fpga))

	m.host.Open(4713, "dpdk-app", "/dev/vfio/13")
	_, stderr := run(4, "accelerator", "detach", "coder", "--yes")
	require.Contains(t, stderr, "dpdk-app")

	stdout, _ := run(0, "accelerator", "usage", "coder")
	require.Contains(t, stdout, "dpdk-app")
	m.host.End(4713)

	run(0, "accelerator", "detach", "coder", "--yes")
	require.Empty(t, m.driver(t, fpga), "the detach leaves it without a driver, as before")

	stdout, _ = run(0, "accelerator", "list", "--host", "rack", "--status", "ready", "-f", "value", "-c", "name")
	require.ElementsMatch(t, []string{"coder", "render"}, strings.Fields(stdout))
}

// vanishedFunction unplugs a function that somebody holds. It stays in the
// records, fenced, until it is back or its holder gives it up.
func vanishedFunction(t *testing.T, m *machine) {
	t.Helper()
	at := m.at(t, fpga)
	pull := func() {
		status, _, answer := request(t, m.Standalone, http.MethodPut, at, map[string]any{})
		require.Equal(t, http.StatusOK, status, answer)

		m.host.Unplug(fpga)
		m.discover(t)

		a := m.accelerator(t, fpga)
		require.Equal(t, cyborg.StatusMissing, a.Status)
		require.False(t, a.MissingAt.IsZero())
		require.NotNil(t, a.Fence)
		require.Contains(t, a.Fence.Reason, "vanished")
		require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "rack"}}, a.Holders, "the holder of the missing function")

		status, _, problem := request(t, m.Standalone, http.MethodPut, at, map[string]any{})
		require.Equal(t, http.StatusConflict, status, problem)
	}
	pull()

	// An event can be read when every older transaction has ended.
	until(t, "told in the history", func(context.Context) error {
		history := m.history(t, at)
		if !strings.Contains(history, "presence: present -> missing") || !strings.Contains(history, "fence") {
			return fmt.Errorf("the history does not tell that it vanished: %s", history)
		}
		return nil
	})

	// It comes back: the fence is lifted, and Reconcile attaches it again.
	m.host.Plug(fpga)
	require.Empty(t, m.driver(t, fpga))

	m.discover(t)
	m.awaitsVFIO(t, fpga)
	harness.RequireSound(t, m.Standalone)

	a := m.accelerator(t, fpga)
	require.Equal(t, cyborg.StatusAttached, a.Status)
	require.Nil(t, a.Fence)

	status, _, problem := request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)
	require.Empty(t, m.driver(t, fpga))

	// Its holder gives it up while it is missing.
	pull()
	status, _, problem = request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)

	a = m.accelerator(t, fpga)
	require.Equal(t, cyborg.StatusMissing, a.Status)
	require.Empty(t, a.Holders)
	require.Nil(t, a.Fence)

	m.host.Plug(fpga)
	m.discover(t)
	require.Equal(t, cyborg.StatusReady, m.status(t, fpga))
	require.Empty(t, m.driver(t, fpga))
}

// history returns the changes of an accelerator, one a line.
func (m *machine) history(t *testing.T, at string) string {
	t.Helper()
	_, _, history := request(t, m.Standalone, http.MethodGet, at+"/history?limit=1000", nil)

	var text strings.Builder
	for _, event := range history["event"].([]any) {
		e := event.(map[string]any)
		fmt.Fprintf(&text, "%s: %s -> %s\n", e["axis"], e["from"], e["to"])
	}

	return text.String()
}

// unboundByHand unbinds an attached function in sysfs. The next discovery
// notices it, Reconcile binds it again, and the detach still restores the
// original driver.
func unboundByHand(t *testing.T, m *machine) {
	t.Helper()
	at := m.at(t, gpu)
	status, _, answer := request(t, m.Standalone, http.MethodPut, at, map[string]any{})
	require.Equal(t, http.StatusOK, status, answer)

	require.NoError(t, m.host.Simulator.Write("sys/bus/pci/drivers/vfio-pci/unbind", gpu))
	require.Empty(t, m.driver(t, gpu))

	m.discover(t)
	m.awaitsVFIO(t, gpu)
	harness.RequireSound(t, m.Standalone)

	status, _, problem := request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)
	require.Equal(t, "nvidia", m.driver(t, gpu))
}

// virtualFunctions creates virtual functions. They are accelerators of their
// own, and the physical function cannot be handed out while they exist.
func virtualFunctions(t *testing.T, m *machine) {
	t.Helper()

	require.Equal(t, cyborg.StatusInactive, m.status(t, qat))
	m.host.SetVFs(qat, "4")
	m.discover(t)
	require.Equal(t, cyborg.StatusMissing, m.status(t, qat), "the physical function while it has virtual ones")

	device, err := m.API.Device(t.Context(), m.accelerator(t, qat).DeviceUUID)
	require.NoError(t, err)
	require.Equal(t, qat, device.Identity)

	virtual := map[string]apiclient.Accelerator{}
	for _, a := range device.Accelerators {
		if a.Specs.Capability["physical_function"] == qat {
			virtual[a.Handles[0].Identity] = a
		}
	}

	require.Len(t, virtual, 4)
	for address, a := range virtual {
		require.Equal(t, cyborg.StatusInactive, a.Status)
		require.Equal(t, "c6xxvf", m.driver(t, address))
	}
	// Two of them are attached at the same time.

	taken := 0
	for address := range virtual {
		at := m.at(t, address)
		status, _, problem := request(t, m.Standalone, http.MethodPost, at+"/ready", nil)
		require.Equal(t, http.StatusOK, status, problem)
		status, _, problem = request(t, m.Standalone, http.MethodPut, at, map[string]any{})
		require.Equal(t, http.StatusOK, status, problem)
		require.Equal(t, "vfio-pci", m.driver(t, address))

		if taken++; taken == 2 {
			break
		}
	}

	require.Equal(t, "c6xx", m.driver(t, qat))
	for address := range virtual {
		status, _, problem := request(t, m.Standalone, http.MethodDelete, m.at(t, address), nil)
		require.Equal(t, http.StatusNoContent, status, problem)
		require.Equal(t, "c6xxvf", m.driver(t, address))
	}

	m.host.SetVFs(qat, "0")
	m.discover(t)
	require.Equal(t, cyborg.StatusInactive, m.status(t, qat))
	for address := range virtual {
		require.Equal(t, cyborg.StatusMissing, m.status(t, address))
	}
}

// anotherDeviceSpec changes the options of the running driver. The inventory
// follows without a restart. A change that would drop an attached device is
// refused.
func anotherDeviceSpec(t *testing.T, m *machine) {
	t.Helper()
	const backend = "/v1/hosts/rack/drivers/pci"
	_, _, before := request(t, m.Standalone, http.MethodGet, backend, nil)

	specs := func(vendor string) map[string]any {
		return map[string]any{"options": map[string]any{
			"simulate": true, "device_spec": []any{map[string]any{"vendor_id": vendor, "product_id": "*"}},
		}}
	}

	at := m.at(t, gpu)
	status, _, answer := request(t, m.Standalone, http.MethodPut, at, map[string]any{})
	require.Equal(t, http.StatusOK, status, answer)

	status, _, problem := request(t, m.Standalone, http.MethodPut, backend, specs("10ee"))
	require.Equal(t, http.StatusConflict, status, problem)
	require.Equal(t, "in_use", problem["kind"])
	require.Contains(t, problem["detail"], gpu)

	require.Equal(t, cyborg.StatusAttached, m.status(t, gpu))

	status, _, problem = request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)
	require.Equal(t, "nvidia", m.driver(t, gpu))

	status, _, problem = request(t, m.Standalone, http.MethodPut, backend, specs("ten"))
	require.Equal(t, http.StatusBadRequest, status, problem)
	require.Contains(t, problem["detail"], "ten")

	status, _, answer = request(t, m.Standalone, http.MethodPut, backend, specs("10ee"))
	require.Equal(t, http.StatusOK, status, answer)

	shown := map[string]bool{}
	for _, a := range m.Accelerators(t) {
		if a.Presence == cyborg.PresencePresent {
			shown[a.Handles[0].Identity] = true
		}
	}
	require.Equal(t, map[string]bool{fpga: true, crowded: true, bare: true}, shown)

	// A backend with a device in use cannot be uninstalled. Afterwards it can, and
	// installing it again restores its accelerators.
	status, _, answer = request(t, m.Standalone, http.MethodPut, m.at(t, fpga), map[string]any{})
	require.Equal(t, http.StatusOK, status, answer)

	status, _, problem = request(t, m.Standalone, http.MethodDelete, backend, nil)
	require.Equal(t, http.StatusConflict, status, problem)
	require.Equal(t, "in_use", problem["kind"])

	status, _, problem = request(t, m.Standalone, http.MethodDelete, m.at(t, fpga), nil)
	require.Equal(t, http.StatusNoContent, status, problem)

	status, _, problem = request(t, m.Standalone, http.MethodDelete, backend, nil)
	require.Equal(t, http.StatusNoContent, status, problem)

	_, _, after := request(t, m.Standalone, http.MethodGet, backend, nil)
	require.Equal(t, "disabled", after["state"])
	require.Equal(t, cyborg.StatusMissing, m.status(t, fpga))

	status, _, answer = request(t, m.Standalone, http.MethodPost, "/v1/hosts/rack/drivers",
		map[string]any{"name": "pci", "driver": "generic", "options": before["options"]})
	require.Equal(t, http.StatusCreated, status, answer)

	require.Equal(t, cyborg.StatusReady, m.status(t, fpga))
	require.Equal(t, cyborg.StatusReady, m.status(t, gpu))
}

// notAllowed asks, as an administrator, for what only the host's own
// configuration can allow: a driver of cards that do not exist, and a path.
func notAllowed(t *testing.T, m *machine) {
	t.Helper()
	const drivers = "/v1/hosts/rack/drivers"
	secret := filepath.Join(t.TempDir(), "shadow")
	require.NoError(t, os.WriteFile(secret, []byte("root:$6$canary:19000"), 0o600))

	status, _, problem := request(t, m.Standalone, http.MethodPost, drivers, map[string]any{"driver": "fake", "options": map[string]any{"park": "1xgpu"}})
	require.Equal(t, http.StatusUnprocessableEntity, status, problem)
	require.Contains(t, problem["detail"], `host rack does not allow driver "fake"; in agent.drivers it has: generic`)

	for option, value := range map[string]string{"pci_ids": secret, "PCI_IDs": "../../pci.ids", "vfio_driver": "nbd"} {
		status, _, problem = request(t, m.Standalone, http.MethodPost, drivers,
			map[string]any{"name": "other", "driver": "generic", "options": map[string]any{option: value}})
		require.Equal(t, http.StatusBadRequest, status, problem)
		require.Contains(t, problem["detail"], "on host rack, no request may set these options of driver generic so: "+option)
	}
}

// rebootedMachine boots the machine, which undoes the binding to VFIO.
// Reconcile binds the function again, and a detach restores the driver that the
// boot had bound.
func rebootedMachine(t *testing.T, m *machine) {
	t.Helper()
	at := m.at(t, gpu)
	status, _, answer := request(t, m.Standalone, http.MethodPut, at, map[string]any{})
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, "vfio-pci", m.driver(t, gpu))

	host, err := m.API.Host(t.Context(), "rack")
	require.NoError(t, err)

	m.Kill(t)
	m.host.Reboot()
	require.Equal(t, "nvidia", m.driver(t, gpu))
	m.Restart(t)

	m.awaitsVFIO(t, gpu)
	harness.RequireSound(t, m.Standalone)

	again, err := m.API.Host(t.Context(), "rack")
	require.NoError(t, err)
	require.NotEqual(t, host.BootID, again.BootID)
	require.Equal(t, cyborg.StatusAttached, m.status(t, gpu))

	status, _, problem := request(t, m.Standalone, http.MethodDelete, at, nil)
	require.Equal(t, http.StatusNoContent, status, problem)
	require.Equal(t, "nvidia", m.driver(t, gpu))
}

// TestPhysicalNetworkOfAPort maps a network card to a physical network. The
// handle of a request on one of its virtual functions names that network, which
// Nova needs for a port.
func TestPhysicalNetworkOfAPort(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.host.SetVFs(network, "1")

	_, errs, code := m.CLI(t, "driver", "update", "rack", "pci", "--option", "physical_device_mappings=physnet1")
	require.NotZero(t, code)
	require.Contains(t, errs, "write the physical network")

	_, errs, code = m.CLI(t, "driver", "update", "rack", "pci", "--option", "simulate=true", "--option", "device_spec=*",
		"--option", "physical_device_mappings=physnet1:eth0", "--quiet")
	require.Zero(t, code, errs)

	const vf = "0000:41:01.0"
	card := m.accelerator(t, vf)
	require.Contains(t, card.Attributes, cyborg.Attribute{Key: "physical_network", Value: "physnet1"})

	_, err := m.API.MakeReady(t.Context(), card.UUID)
	require.NoError(t, err)
	profile(t, m.Standalone, "port", map[string]string{"resources:CUSTOM_NIC": "1", "trait:CUSTOM_PHYSNET_PHYSNET1": "required"})

	arq := makeRequest(t, m.Standalone, "port")
	_, status := patchRequest(t, m.Standalone, arq, card, uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)
	requireResolved(t, m.Standalone)

	_, _, body := request(t, m.Standalone, "GET", requestsPath+"/"+arq, nil)
	require.Equal(t, map[string]any{
		"domain": "0000", "bus": "41", "device": "01", "function": "0", "physical_network": "physnet1",
	}, body["attach_handle_info"])
}
