package sysfs_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// The functions that the tests work on.
const (
	port = "0000:00:01.0"
	gpu  = "0000:3b:00.0"
	nic  = "0000:18:00.0"
	ssd  = "0000:c1:00.0"
	qat  = "0000:b1:00.0"
)

// logger writes to the test's log.
func logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	return slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// tree reads the PCI functions below a root.
func tree(tb testing.TB, root string) *sysfs.Tree {
	tb.Helper()
	return sysfs.NewTree(root, logger(tb))
}

// addresses returns the addresses of functions, in their order.
func addresses(functions []sysfs.Function) []string {
	list := []string{}
	for _, f := range functions {
		list = append(list, f.Address.String())
	}
	return list
}

// place writes files below a directory.
func place(tb testing.TB, root string, files map[string]string) {
	tb.Helper()
	for name, text := range files {
		name = filepath.Join(root, name)
		require.NoError(tb, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(tb, os.WriteFile(name, []byte(text), 0o600))
	}
}

func TestFunctionsReadsFacts(t *testing.T) {
	t.Parallel()
	bridge := sysfstest.Bridge(t, port)
	card := sysfstest.In("17", sysfstest.Under(bridge, sysfstest.GPU(t, gpu)))
	card.SubsystemVendor, card.SubsystemProduct, card.NUMANode = "10de", "134f", 1
	unknown := simulator.Function{
		Address: cyborg.PCIAddress{Domain: 0x10000, Bus: 1}, Vendor: "abcd", Product: "1234", Class: 0xff0000, NUMANode: -1,
	}
	host := sysfstest.New(t, bridge, card, sysfstest.QAT(t, qat), unknown)
	host.SetVFs(qat, "2")

	functions, err := tree(t, host.Root()).Functions(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{port, gpu, qat, "0000:b1:01.0", "0000:b1:01.1", "10000:01:00.0"}, addresses(functions))

	node := 1
	require.Equal(t, sysfs.Function{
		Address: card.Address, Path: "sys/devices/pci0000:00/" + port + "/" + gpu,
		Vendor: "10de", Product: "20b0", SubsystemVendor: "10de", SubsystemProduct: "134f", Class: 0x030200, Revision: "00",
		Driver: "nvidia", NUMANode: &node, IOMMUGroup: "17", VFs: nil,
	}, functions[1])

	pf, vf := functions[2], functions[4]
	require.Equal(t, 16, pf.TotalVFs)
	require.Equal(t, []cyborg.PCIAddress{functions[3].Address, vf.Address}, pf.VFs)
	require.Equal(t, &pf.Address, vf.PF)
	require.Equal(t, "37c9", vf.Product)
	require.Equal(t, "c6xxvf", vf.Driver)

	require.Nil(t, functions[5].NUMANode)
	require.Empty(t, functions[5].IOMMUGroup)
	require.Empty(t, functions[5].Driver)
}

// A function with an invalid attribute is reported without it. Only a function
// without an identity is left out.
func TestFunctionsToleratesInvalidAttributes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const bus = "sys/bus/pci/devices/"
	place(t, root, map[string]string{
		// Directories instead of links, as some recordings have them.
		bus + "0000:00:01.0/vendor": "0x10de\n", bus + "0000:00:01.0/device": "0x20b0\n", bus + "0000:00:01.0/class": "0x030200\n",
		bus + "0000:00:01.0/numa_node": "many\n", bus + "0000:00:01.0/sriov_totalvfs": "-3\n", bus + "0000:00:01.0/revision": "?\n",
		bus + "0000:00:01.0/subsystem_vendor": "0x123456789\n",
		// Only modalias.
		bus + "0000:00:02.0/modalias": "pci:v000010EEd00005004sv000010EEsd0000000Ebc12sc00i00\n",
		// No identity.
		bus + "0000:00:03.0/vendor": "0xzz\n", bus + "0000:00:03.0/device": "0x1\n",
		bus + "0000:00:04.0/vendor": "0x10de\n", bus + "0000:00:04.0/device": "0x20b0\n", bus + "0000:00:04.0/class": "0x12345678\n",
		bus + "0000:00:05.0/modalias": "pci:v000010EE\n",
		// No PCI address.
		bus + "README": "hello", bus + "0000:00:1F.0/vendor": "0x8086",
	})
	require.NoError(t, os.Symlink("../../../devices/pci0000:00/0000:00:06.0", filepath.Join(root, bus, "0000:00:06.0")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(root, bus, "0000:00:01.0/virtfn0")))
	require.NoError(t, os.Symlink("../nowhere", filepath.Join(root, bus, "0000:00:01.0/physfn")))

	functions, err := tree(t, root).Functions(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"0000:00:01.0", "0000:00:02.0"}, addresses(functions))
	require.Nil(t, functions[0].NUMANode)
	require.Zero(t, functions[0].TotalVFs)
	require.Empty(t, functions[0].VFs)
	require.Nil(t, functions[0].PF)
	require.Equal(t, "10ee", functions[1].Vendor)
	require.Equal(t, "5004", functions[1].Product)
	require.Equal(t, "000e", functions[1].SubsystemProduct)
	require.Equal(t, sysfs.Class(0x120000), functions[1].Class)
}

func TestFunctionsOfThisMachine(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("/sys/bus/pci/devices")
	if err != nil || len(entries) == 0 {
		t.Skip("this machine has no PCI bus")
	}

	present := []string{}
	for _, entry := range entries {
		present = append(present, entry.Name())
	}
	slices.Sort(present)

	here := tree(t, "/")
	require.True(t, here.Live())
	functions, err := here.Functions(t.Context())
	require.NoError(t, err)
	require.Equal(t, present, addresses(functions))
}

// TestFunctionsWhileVirtualOnesGo reads a card whose virtual functions are being
// removed: the first is gone, the second waits for its user and has lost its
// links, the third is still to come. Another card, which happens to be where the
// fourth would be and has its ids, is none of them.
func TestFunctionsWhileVirtualOnesGo(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.QAT(t, qat))
	host.SetVFs(qat, "3")
	const other = "sys/devices/pci0000:b1/0000:b1:01.3"
	place(t, host.Root(), map[string]string{
		other + "/vendor": "0x8086\n", other + "/device": "0x37c9\n", other + "/class": "0x0b4000\n", other + "/sriov_totalvfs": "16\n",
	})
	symlink(t, host, "sys/bus/pci/devices/0000:b1:01.3", "../../../devices/pci0000:b1/0000:b1:01.3")
	devices := filepath.Join(host.Root(), "sys/bus/pci/devices")
	for _, link := range []string{qat + "/virtfn0", qat + "/virtfn1", "0000:b1:01.0", "0000:b1:01.1/physfn"} {
		require.NoError(t, os.Remove(filepath.Join(devices, link)))
	}

	functions, err := tree(t, host.Root()).Functions(t.Context())
	require.NoError(t, err)
	physical := map[string]string{}
	for _, f := range functions {
		if f.PF != nil {
			physical[f.Address.String()] = f.PF.String()
		}
	}
	require.Equal(t, map[string]string{"0000:b1:01.1": qat, "0000:b1:01.2": qat}, physical)
	going := []cyborg.PCIAddress{sysfstest.Address(t, "0000:b1:01.1"), sysfstest.Address(t, "0000:b1:01.2")}
	require.Equal(t, going, functions[0].VFs)

	alone, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, qat))
	require.NoError(t, err)
	require.Equal(t, going, alone.VFs)
}

func TestFunctionsFailsWithoutSysfs(t *testing.T) {
	t.Parallel()
	empty := tree(t, t.TempDir())
	require.False(t, empty.Live())
	_, err := empty.Functions(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "a missing sysfs is not a host without devices")
	_, err = tree(t, "/nonexistent").Functions(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	busless := t.TempDir()
	place(t, busless, map[string]string{"sys/devices/system/cpu/online": "0-3\n"})
	functions, err := tree(t, busless).Functions(t.Context())
	require.NoError(t, err)
	require.Empty(t, functions)
}

// A link in the tree that leads out of the root is not followed.
func TestFunctionsStaysBelowItsRoot(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	place(t, parent, map[string]string{"secret/vendor": "0x10de\n", "secret/device": "0x20b0\n", "secret/class": "0x030200\n"})

	root := filepath.Join(parent, "root")
	devices := filepath.Join(root, "sys/bus/pci/devices")
	require.NoError(t, os.MkdirAll(devices, 0o755))
	require.NoError(t, os.Symlink("../../../../../secret", filepath.Join(devices, "0000:00:01.0")))
	require.NoError(t, os.Symlink(filepath.Join(parent, "secret"), filepath.Join(devices, "0000:00:02.0")))

	functions, err := tree(t, root).Functions(t.Context())
	require.NoError(t, err)
	require.Empty(t, functions)
}

// A function that comes and goes while the tree is read does not disturb the
// others.
func TestFunctionsDuringHotplug(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"))

	done := make(chan error, 1)
	go func() {
		for range 20 {
			if err := host.Simulator.Unplug(sysfstest.Address(t, nic)); err != nil {
				done <- err
				return
			}
			if err := host.Simulator.Plug(sysfstest.Address(t, nic)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()

	here := tree(t, host.Root())
	for {
		functions, err := here.Functions(t.Context())
		require.NoError(t, err)
		require.Contains(t, addresses(functions), gpu)

		select {
		case err := <-done:
			require.NoError(t, err)
			return
		default:
		}
	}
}

func TestFunction(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	here := tree(t, host.Root())
	f, err := here.Function(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)
	require.Equal(t, "nvidia", f.Driver)

	_, err = here.Function(t.Context(), sysfstest.Address(t, nic))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, nic)

	host.Set("sys/bus/pci/devices/"+gpu+"/vendor", "garbage")
	_, err = here.Function(t.Context(), sysfstest.Address(t, gpu))
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `"garbage"`)
}

func TestFunctionsStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tree(t, sysfstest.New(t, sysfstest.GPU(t, gpu)).Root()).Functions(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzFunctions looks for a value in sysfs that makes the reader panic, or fail
// for all functions.
func FuzzFunctions(f *testing.F) {
	f.Add("0x10de\n", "0x20b0\n", "0x030200\n", "pci:v000010EEd00005004sv000010EEsd0000000Ebc12sc00i00\n", "0\n")
	f.Add("", "-", "0x", "pci:v", "99999999999999999999")

	root := f.TempDir()
	here := sysfs.NewTree(root, slog.New(slog.DiscardHandler))
	f.Fuzz(func(t *testing.T, vendor, device, class, modalias, number string) {
		const dir = "sys/bus/pci/devices/0000:00:01.0/"
		place(t, root, map[string]string{
			dir + "vendor": vendor, dir + "device": device, dir + "class": class, dir + "modalias": modalias,
			dir + "numa_node": number, dir + "sriov_totalvfs": number, dir + "revision": class, dir + "boot_vga": number,
		})

		functions, err := here.Functions(t.Context())
		require.NoError(t, err)
		for _, f := range functions {
			require.Len(t, f.Vendor, 4)
			require.Len(t, f.Product, 4)
			require.Len(t, f.Class.String(), 6)
			require.GreaterOrEqual(t, f.TotalVFs, 0)
		}
	})
}
