package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// These tests run on the kernel of a machine of tests/hardware.

// function returns what the kernel of this machine says about a function.
func function(t *testing.T, address string) sysfs.Function {
	t.Helper()
	f, err := tree(t, "/").Function(t.Context(), sysfstest.Address(t, address))
	require.NoError(t, err)
	return f
}

// userOf returns who uses a function of this machine.
func userOf(t *testing.T, address string) string {
	t.Helper()
	by, err := tree(t, "/").Users(t.Context(), function(t, address))
	require.NoError(t, err)
	return by
}

// giveToVFIO has VFIO take a function of this machine.
func giveToVFIO(t *testing.T, address string) {
	t.Helper()
	b := sysfs.NewBinder(tree(t, "/"), sysfs.LiveKernel("/"), "", deadline, logger(t))
	require.NoError(t, b.Bind(t.Context(), sysfstest.Address(t, address), "vfio-pci"))
}

// controller is that of the machine's disk.
const controller = "0000:01:00.0"

// TestMultipathDiskOnKernel opens the machine's disk, which belongs to an NVMe
// subsystem and so is not below its controller in sysfs.
func TestMultipathDiskOnKernel(t *testing.T) { //nolint:paralleltest // the machine has one disk
	fakebus.Need(t)
	require.Empty(t, userOf(t, controller))

	dir, err := filepath.EvalSymlinks("/sys/block/nvme0n1")
	require.NoError(t, err)
	require.Contains(t, dir, "/nvme-subsystem/")

	disk, err := os.Open("/dev/nvme0n1")
	require.NoError(t, err)
	require.Regexp(t, `^process \d+ \(.*\) has /dev/nvme0n1 open$`, userOf(t, controller))
	require.NoError(t, disk.Close())
	require.Empty(t, userOf(t, controller))
}

// TestResetOnKernel resets the controller of the machine's disk, which is made by QEMU and not
// by fakebus. Its driver has it afterwards.
func TestResetOnKernel(t *testing.T) { //nolint:paralleltest // the machine has one disk
	fakebus.Need(t)
	f := function(t, controller)
	require.Equal(t, "nvme", f.Driver)
	require.Contains(t, f.ResetMethods, "flr")
	require.Empty(t, function(t, "0000:00:1f.0").ResetMethods, "a function of the chipset")

	b := sysfs.NewBinder(tree(t, "/"), sysfs.LiveKernel("/"), t.TempDir(), deadline, logger(t))
	before, err := b.Binding(t.Context(), f.Address)
	require.NoError(t, err)
	require.NoError(t, b.Unbind(t.Context(), f.Address, "nvme"))
	registers, err := tree(t, "/").Registers(t.Context(), f)
	require.NoError(t, err)
	require.True(t, registers.Express())

	require.NoError(t, b.Reset(t.Context(), f.Address))
	after, err := tree(t, "/").AwaitReset(t.Context(), f, registers)
	require.NoError(t, err)
	require.True(t, after.Express())

	require.NoError(t, b.Restore(t.Context(), f.Address, "", before))
	require.Equal(t, "nvme", function(t, controller).Driver)
	require.Eventually(t, func() bool { _, err := os.Stat("/dev/nvme0n1"); return err == nil }, time.Minute, 50*time.Millisecond)
}

// TestSharedFileSystemOnKernel looks for the device through which /out comes
// from outside the machine.
func TestSharedFileSystemOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	tags, err := filepath.Glob("/sys/bus/virtio/drivers/9pnet_virtio/virtio*/mount_tag")
	require.NoError(t, err)
	require.Len(t, tags, 1)
	dir, err := filepath.EvalSymlinks(filepath.Dir(tags[0]))
	require.NoError(t, err)

	protection, err := tree(t, "/").Protection(t.Context())
	require.NoError(t, err)
	address := sysfstest.Address(t, filepath.Base(filepath.Dir(dir)))
	require.Equal(t, "its file system out is mounted on /out", protection[address])
}

// TestSerialOnKernel reads the serial number of the machine's network card, which
// QEMU makes of its hardware address, and those of functions without one.
func TestSerialOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	serial := func(address string) string {
		presence, err := tree(t, "/").Presence(t.Context(), function(t, address), true)
		require.NoError(t, err)
		require.True(t, presence.Answers)
		return presence.Serial
	}
	require.Equal(t, "52-54-00-ff-ff-12-34-56", serial("0000:00:10.0"))
	require.Empty(t, serial("0000:00:1f.0"), "it is without PCI Express")
	require.Empty(t, serial("0000:01:00.0"))
	card := fakebus.Plug(t, fakebus.GPU())
	require.Empty(t, serial(card.At("00.0")))
	card.Yank()
	presence, err := tree(t, "/").Presence(t.Context(), function(t, card.At("00.0")), true)
	require.NoError(t, err)
	require.Equal(t, sysfs.Presence{}, presence)
	card.Unyank()
}

// holderTable has what is said of each way to hold a function.
var holderTable = map[fakebus.Holding]string{
	fakebus.Group:  `^process \d+ \(vfiohold\) has /dev/vfio/\d+ open$`,
	fakebus.Device: `^process \d+ \(vfiohold\) has /dev/vfio/\d+ open$`,
	fakebus.Alone:  `^its VFIO group \d+ is in use, and this kernel does not tell by which process$`,
}

// TestHoldersOnKernel finds who uses a function through VFIO, whatever the user
// keeps open. Another function of VFIO has no user meanwhile.
func TestHoldersOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	used, free := fakebus.Plug(t, fakebus.GPU()).At("00.0"), fakebus.Plug(t, fakebus.GPU()).At("00.0")
	giveToVFIO(t, used)
	giveToVFIO(t, free)

	for _, what := range []fakebus.Holding{fakebus.Group, fakebus.Device, fakebus.Alone} {
		require.Empty(t, userOf(t, used), what)
		release := fakebus.Hold(t, used, what)
		require.Regexp(t, holderTable[what], userOf(t, used), what)
		require.Empty(t, userOf(t, free), what)
		release()
	}
}

// TestVirtualFunctionsWhileTheyGoOnKernel removes virtual functions of which one
// is in use. The kernel waits for its user, and has removed the links before.
func TestVirtualFunctionsWhileTheyGoOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	card := fakebus.Plug(t, fakebus.GPU())
	card.SetVFs(3)
	pf, gone, used := card.At("00.0"), card.At("00.1"), card.At("00.2")
	giveToVFIO(t, used)
	release := fakebus.Hold(t, used, fakebus.Device)

	removed := make(chan error, 1)
	go func() { removed <- os.WriteFile("/sys/bus/pci/devices/"+pf+"/sriov_numvfs", []byte("0"), 0) }()
	require.Eventually(t, func() bool {
		_, err := os.Lstat("/sys/bus/pci/devices/" + used + "/physfn")
		return os.IsNotExist(err)
	}, time.Minute, 10*time.Millisecond)

	_, err := os.Stat("/sys/bus/pci/devices/" + gone)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, []cyborg.PCIAddress{sysfstest.Address(t, used), sysfstest.Address(t, card.At("00.3"))}, function(t, pf).VFs)
	require.Equal(t, "it has 2 virtual functions", userOf(t, pf))

	all, err := tree(t, "/").Functions(t.Context())
	require.NoError(t, err)
	for _, f := range all {
		if f.Address.String() == used {
			require.NotNil(t, f.PF)
			require.Equal(t, pf, f.PF.String())
		}
	}

	release()
	require.NoError(t, <-removed)
	require.Empty(t, function(t, pf).VFs)
}
