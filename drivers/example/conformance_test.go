package example_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/conformance"
	"github.com/cyborg-project/cyborg/drivers/example"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// gaudi returns an accelerator with its node, as the kernel's driver habanalabs
// makes it.
func gaudi(t *testing.T, address string, number int) simulator.Function {
	t.Helper()
	name := fmt.Sprintf("accel%d", number)
	return simulator.Function{
		Address: sysfstest.Address(t, address), Vendor: "1da3", Product: "1020", Class: 0x120000, Driver: "habanalabs",
		Children: []simulator.Child{{Class: "accel", Name: name, Number: fmt.Sprintf("261:%d", number), Node: "/dev/accel/" + name}},
	}
}

// appear makes a node as udev does. A plain file is enough, because the driver
// only reads its mode.
func appear(t *testing.T, host *sysfstest.Host, node string) {
	t.Helper()
	dir := filepath.Join(host.Root(), "dev/accel")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, node), nil, 0o600))
}

// newDriver returns a driver on the host that gives nodes to the group of this
// process, which needs no privileges.
func newDriver(t *testing.T, host *sysfstest.Host) drivers.Driver {
	t.Helper()
	driver, err := example.New(drivers.Environment{
		Host: "node1", Backend: "accel", Root: host.Root(), StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	}, map[string]any{"group": os.Getgid()})
	require.NoError(t, err)
	return driver
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, conformance.Subject{
		Services: []string{"discover", "attach", "in_use"},
		New: func(t *testing.T) *conformance.Rig {
			t.Helper()
			host := sysfstest.New(t, gaudi(t, "0000:19:00.0", 0), gaudi(t, "0000:1a:00.0", 1), sysfstest.SSD(t, "0000:c1:00.0", "nvme0n1", "259:0"))
			appear(t, host, "accel0")
			appear(t, host, "accel1")
			host.Mount("259:0", "/dev/nvme0n1", "/") // the root file system of the host is on this disk

			return &conformance.Rig{
				Driver:  newDriver(t, host),
				Restart: func(t *testing.T) drivers.Driver { t.Helper(); return newDriver(t, host) },
				Snapshot: func(t *testing.T) string {
					t.Helper()
					nodes, err := filepath.Glob(filepath.Join(host.Root(), "dev/accel/*"))
					require.NoError(t, err)

					state := ""
					for _, node := range nodes {
						info, err := os.Stat(node)
						require.NoError(t, err)
						state += fmt.Sprintln(node, info.Mode())
					}
					return state
				},
				Use: func(t *testing.T, _ drivers.Target, handle cyborg.HandleReport) func() {
					t.Helper()
					host.Open(4711, "python3", handle.Info["path"])
					return func() { host.End(4711) }
				},
				Vanish: func(t *testing.T, device cyborg.DeviceReport) func() {
					t.Helper()
					path := device.Deployables[0].Handles[0].Info["path"]
					host.Unplug(device.Identity)
					require.NoError(t, os.Remove(filepath.Join(host.Root(), path)))

					return func() {
						host.Plug(device.Identity)
						appear(t, host, filepath.Base(path))
					}
				},
			}
		},
	})
}

func TestNewRefusesOptionsItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, options := range []map[string]any{{"groups": 7}, {"group": "wheel"}, {"group": -1}} {
		_, err := example.New(drivers.Environment{Backend: "accel"}, options)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), options)
	}
}
