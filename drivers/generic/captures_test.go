package generic_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
)

// fact is what the inventory and the files of the recording must agree on.
type fact struct {
	Vendor, Product, Class, Group string
	NUMANode                      int
}

// TestInventoryOfEachCapture compares the inventory of every recording in ghw
// with the files of its PCI tree, which the test reads itself.
func TestInventoryOfEachCapture(t *testing.T) {
	t.Parallel()
	for _, name := range sysfstest.Recordings(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			root, err := capture.Open(name, filepath.Join(t.TempDir(), "machine"))
			require.NoError(t, err)

			driver, err := generic.New(drivers.Environment{Root: root, Log: logger(t)}, map[string]any{"device_spec": "*"})
			require.NoError(t, err)
			devices, err := driver.Discover(t.Context())
			require.NoError(t, err)

			require.Equal(t, held(t, root), inventory(t, devices))
			requireDiskProtected(t, root, devices)
			requireUntouchable(t, driver, devices)
		})
	}
}

// held reads the facts from the recording's PCI tree.
func held(t *testing.T, root string) map[string]fact {
	t.Helper()
	facts := map[string]fact{}
	entries, err := os.ReadDir(filepath.Join(root, "sys/bus/pci/devices"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return facts
	}

	for _, entry := range entries {
		dir := filepath.Join(root, "sys/bus/pci/devices", entry.Name())
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return ""
			}
			return strings.TrimPrefix(strings.TrimSpace(string(text)), "0x")
		}

		node, err := strconv.Atoi(read("numa_node"))
		if err != nil {
			node = -1
		}
		group, err := os.Readlink(filepath.Join(dir, "iommu_group"))
		if err != nil {
			group = ""
		}

		facts[entry.Name()] = fact{read("vendor"), read("device"), read("class"), strings.TrimPrefix(filepath.Base(group), "."), node}
	}
	return facts
}

// inventory turns the report into the same facts. None of the recordings has
// links from physical to virtual functions, so each function is a device.
func inventory(t *testing.T, devices []cyborg.DeviceReport) map[string]fact {
	t.Helper()
	facts := map[string]fact{}
	for _, device := range devices {
		require.Len(t, device.Deployables, 1)
		require.Equal(t, device.Identity, device.Deployables[0].Name)

		f := fact{Vendor: device.VendorID, Product: device.ProductID, NUMANode: -1}
		f.Class, _ = device.BoardInfo["pci_class"].(string)
		f.Group, _ = device.BoardInfo["iommu_group"].(string)
		if device.NUMANode != nil {
			f.NUMANode = *device.NUMANode
		}
		facts[device.Identity] = f
	}
	return facts
}

// requireDiskProtected requires that no disk controller may be touched: each of
// these machines has mounted something whose disks cannot be found in its
// recording.
func requireDiskProtected(t *testing.T, root string, devices []cyborg.DeviceReport) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "proc/self/mounts")); err != nil {
		return // two recordings have no mount table
	}

	disks, err := filepath.Glob(filepath.Join(root, "sys/block/*"))
	require.NoError(t, err)
	for _, disk := range disks {
		target, err := os.Readlink(disk)
		require.NoError(t, err)
		for _, device := range devices {
			if strings.Contains(target, "/"+device.Identity+"/") {
				require.NotEmpty(t, device.Deployables[0].Protected, "%s is on the way to %s", device.Identity, filepath.Base(disk))
			}
		}
	}
}

// requireUntouchable requires that nothing in a recording can be changed.
func requireUntouchable(t *testing.T, driver drivers.Driver, devices []cyborg.DeviceReport) {
	t.Helper()
	for _, device := range devices {
		target := drivers.Target{Device: device, Deployable: device.Deployables[0]}
		err := driver.(drivers.Installer).Install(t.Context(), target)
		require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))
		err = driver.(drivers.Attacher).Attach(t.Context(), drivers.AttachRequest{Target: target, Handle: target.Deployable.Handles[0]})
		require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err))
	}
}
