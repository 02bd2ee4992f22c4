package generic_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// park is a host with one of each, and a disk that the host lives on.
func park(t *testing.T) *sysfstest.Host {
	t.Helper()
	port := sysfstest.Bridge(t, "0000:00:01.0")
	host := sysfstest.New(t, port,
		sysfstest.Under(port, sysfstest.GPU(t, "0000:3b:00.0")), sysfstest.FPGA(t, "0000:5e:00.0"),
		sysfstest.NIC(t, "0000:18:00.0", "ens1"), sysfstest.QAT(t, "0000:b1:00.0"),
		sysfstest.SSD(t, "0000:c1:00.0", "nvme0n1", "259:0"))
	host.Mount("259:0", "/dev/nvme0n1", "/")
	return host
}

// environment is what an agent gives to a backend on the host.
func environment(t *testing.T, host *sysfstest.Host) drivers.Environment {
	t.Helper()
	return drivers.Environment{Host: "node1", Backend: "pci", Root: host.Root(), Log: logger(t)}
}

func simulated(t *testing.T, host *sysfstest.Host) drivers.Driver {
	t.Helper()
	driver, err := generic.New(environment(t, host), map[string]any{"device_spec": "*", "simulate": true, "deadline": "10s"})
	require.NoError(t, err)
	return driver
}

// snapshot is everything that the simulated kernel shows.
func snapshot(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	for _, top := range []string{"sys", "dev"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			all.WriteString(name)
			switch {
			case entry.Type()&fs.ModeSymlink != 0:
				target, err := os.Readlink(name)
				require.NoError(t, err)
				all.WriteString(" -> " + target)
			case entry.Type().IsRegular():
				text, err := os.ReadFile(name)
				require.NoError(t, err)
				all.WriteString(" = " + string(text))
			}
			all.WriteString("\n")
			return nil
		}))
	}
	return all.String()
}

// choose picks the function at an address.
func choose(address string) func(*testing.T, []cyborg.DeviceReport) (drivers.Target, cyborg.HandleReport) {
	return func(t *testing.T, devices []cyborg.DeviceReport) (drivers.Target, cyborg.HandleReport) {
		t.Helper()
		for _, device := range devices {
			for _, deployable := range device.Deployables {
				if deployable.Name == address {
					return drivers.Target{Device: device, Deployable: deployable}, deployable.Handles[0]
				}
			}
		}
		require.Failf(t, "not discovered", "Discover does not show %s", address)
		return drivers.Target{}, cyborg.HandleReport{}
	}
}

// TestConformance runs the suite on functions that differ in what they had before: a driver with a node, no driver at
// all, a driver with a network interface, and a virtual function.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{
		"gpu": "0000:3b:00.0", "fpga without driver": "0000:5e:00.0", "nic": "0000:18:00.0", "virtual function": "0000:b1:01.2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, conformance.Subject{
				Services: []string{"discover", "install", "attach", "in_use"},
				New:      func(t *testing.T) *conformance.Rig { t.Helper(); return rig(t, address) },
			})
		})
	}
}

func rig(t *testing.T, address string) *conformance.Rig {
	t.Helper()
	host := park(t)
	const qat = "0000:b1:00.0"
	host.SetVFs(qat, "4")
	return &conformance.Rig{
		Driver:   simulated(t, host),
		Restart:  func(t *testing.T) drivers.Driver { t.Helper(); return simulated(t, host) },
		Choose:   choose(address),
		Snapshot: func(t *testing.T) string { t.Helper(); return snapshot(t, host.Root()) },
		Use: func(t *testing.T, _ drivers.Target, _ cyborg.HandleReport) func() {
			t.Helper()
			group, err := os.Readlink(filepath.Join(host.Root(), "sys/bus/pci/devices", address, "iommu_group"))
			require.NoError(t, err)
			host.Open(4711, "qemu-kvm", "/dev/vfio/"+filepath.Base(group))
			return func() { host.End(4711) }
		},
		Vanish: func(t *testing.T, device cyborg.DeviceReport) func() {
			t.Helper()
			host.Unplug(device.Identity)
			return func() {
				host.Plug(device.Identity)
				if device.Identity == qat {
					host.SetVFs(qat, "4")
				}
			}
		},
	}
}
