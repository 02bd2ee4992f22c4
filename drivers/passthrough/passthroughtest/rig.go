// Package passthroughtest has the conformance suite work on simulated PCI functions, for
// the drivers over package passthrough. Only tests import it.
package passthroughtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// Disk is the disk with the root file system of every host of NewHost.
const Disk = "0000:c1:00.0"

// Patience is how long a driver of a test waits for cards that all answer, because a
// busy machine may need it.
const Patience = 5 * time.Minute

// NewHost returns a simulated host with these functions, and with a disk that
// has its root file system.
func NewHost(t testing.TB, functions ...simulator.Function) *sysfstest.Host {
	t.Helper()
	host := sysfstest.New(t, append(functions, sysfstest.SSD(t, Disk, "nvme0n1", "259:0"))...)
	host.Mount("259:0", "/dev/nvme0n1", "/")
	return host
}

// Subject is a function that the suite works on.
type Subject struct {
	// Address is that of the function, on a host with these Functions.
	Address   string
	Functions []simulator.Function
	// VFs is how many virtual functions the physical one at PF gets first.
	PF  string
	VFs int
	// Instead is another card that comes into its place, with as many.
	Instead simulator.Function
}

// Rig returns what the suite needs to work on the subject. The driver is one of the host.
func Rig(t *testing.T, s Subject, newDriver func(t *testing.T, host *sysfstest.Host) drivers.Driver) *conformance.Rig {
	t.Helper()
	functions := slices.Clone(s.Functions)
	for i := range functions {
		functions[i].Reset = "flr"
	}
	host := NewHost(t, functions...)
	divide := func() {
		if s.VFs > 0 {
			host.SetVFs(s.PF, strconv.Itoa(s.VFs))
		}
	}
	divide()

	driver := func(t *testing.T) drivers.Driver { t.Helper(); return newDriver(t, host) }
	return &conformance.Rig{
		Driver:   driver(t),
		Restart:  driver,
		Choose:   Choose(s.Address),
		Snapshot: func(t *testing.T) string { t.Helper(); return Snapshot(t, host.Root()) },
		Use: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) func() {
			t.Helper()
			back := toVFIOAndBack(t, host, handle.Identity)
			host.Open(4711, "qemu-kvm", VFIONode(t, host, handle.Identity))
			return func() {
				host.End(4711)
				back()
			}
		},
		Leave: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			Leave(t, host.Root(), handle)
		},
		Left: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) []cyborg.CleanMethod {
			t.Helper()
			return Left(t, host.Root(), handle)
		},
		Stick: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			host.Fault(simulator.Fault{On: "reset", Subject: handle.Identity, Error: syscall.ENOTTY})
		},
		Fewer: func(_ *testing.T, device cyborg.DeviceReport) {
			for _, f := range functions {
				if f.Address.String() == device.Identity {
					f.FewerVFs = 1
					Exchange(host, f)
				}
			}
		},
		Exchange: func(t *testing.T, _ cyborg.DeviceReport) {
			t.Helper()
			instead := s.Instead
			instead.Reset = "flr"
			Exchange(host, instead)
			divide()
		},
		Vanish: func(t *testing.T, device cyborg.DeviceReport) func() {
			t.Helper()
			host.Unplug(device.Identity)
			return func() {
				host.Plug(device.Identity)
				if device.Identity == s.PF {
					divide()
				}
			}
		},
	}
}

// Snapshot returns everything that the simulated kernel shows.
func Snapshot(t testing.TB, root string) string {
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

// Choose picks the function at an address.
func Choose(address string) func(*testing.T, []cyborg.DeviceReport) (drivers.Target, cyborg.HandleReport) {
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

// Exchange takes the card at the address of another one out, and puts that one in.
func Exchange(host *sysfstest.Host, card simulator.Function) {
	host.Unplug(card.Address.String())
	host.Add(card)
}

// ToVFIO gives a function to VFIO by hand.
func ToVFIO(t testing.TB, host *sysfstest.Host, address string) {
	t.Helper()
	require.NoError(t, host.Simulator.Write("sys/bus/pci/devices/"+address+"/driver_override", "vfio-pci"))
	if name := DriverOf(t, host, address); name != "" {
		require.NoError(t, host.Simulator.Write("sys/bus/pci/drivers/"+name+"/unbind", address))
	}
	require.NoError(t, host.Simulator.Write("sys/bus/pci/drivers_probe", address))
}

// DriverOf returns the kernel driver that has a function, or "".
func DriverOf(t testing.TB, host *sysfstest.Host, address string) string {
	t.Helper()
	target, err := os.Readlink(filepath.Join(host.Root(), "sys/bus/pci/devices", address, "driver"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return ""
	}
	return filepath.Base(target)
}

// toVFIOAndBack gives a function to VFIO, unless VFIO has it already, as a hypervisor does for a
// guest. Back undoes that.
func toVFIOAndBack(t *testing.T, host *sysfstest.Host, address string) (back func()) {
	t.Helper()
	if DriverOf(t, host, address) == "vfio-pci" {
		return func() {}
	}

	ToVFIO(t, host, address)
	return func() {
		require.NoError(t, host.Simulator.Write("sys/bus/pci/devices/"+address+"/driver_override", ""))
		require.NoError(t, host.Simulator.Write("sys/bus/pci/drivers/vfio-pci/unbind", address))
		require.NoError(t, host.Simulator.Write("sys/bus/pci/drivers_probe", address))
	}
}

// VFIONode returns the node of the function's IOMMU group.
func VFIONode(t *testing.T, host *sysfstest.Host, address string) string {
	t.Helper()
	group, err := os.Readlink(filepath.Join(host.Root(), "sys/bus/pci/devices", address, "iommu_group"))
	require.NoError(t, err)
	return "/dev/vfio/" + filepath.Base(group)
}

// Leave writes to a register of each of the handle's functions that has one for its holder.
func Leave(t testing.TB, root string, handle cyborg.HandleReport) {
	t.Helper()
	for _, name := range Configurations(root, handle) {
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = file.WriteAt([]byte{1}, simulator.Volatile)
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
}

// Left returns CleanReset where one of those registers still has what was written.
func Left(t testing.TB, root string, handle cyborg.HandleReport) []cyborg.CleanMethod {
	t.Helper()
	for _, name := range Configurations(root, handle) {
		space, err := os.ReadFile(name)
		if err == nil && space[simulator.Volatile] != 0 {
			return []cyborg.CleanMethod{cyborg.CleanReset}
		}
	}
	return nil
}

// Configurations returns the files with the configuration spaces of the handle's functions.
func Configurations(root string, handle cyborg.HandleReport) []string {
	files := []string{filepath.Join(root, "sys/bus/pci/devices", handle.Identity, "config")}
	for _, function := range handle.With {
		files = append(files, filepath.Join(root, "sys/bus/pci/devices", function.String(), "config"))
	}
	return files
}
