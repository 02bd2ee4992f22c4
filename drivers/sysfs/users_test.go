package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// user returns who uses the function now.
func user(t *testing.T, host *sysfstest.Host, address string) string {
	t.Helper()
	here := tree(t, host.Root())
	f, err := here.Function(t.Context(), sysfstest.Address(t, address))
	require.NoError(t, err)
	by, err := here.Users(t.Context(), f)
	require.NoError(t, err)
	return by
}

// TestUsers starts from hosts on which nobody uses anything, and uses one
// function in each possible way.
func TestUsers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		change  func(t *testing.T, host *sysfstest.Host)
		by      string
	}{
		"nobody": {gpu, func(*testing.T, *sysfstest.Host) {}, ""},
		"node that the driver made": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Open(812, "Xorg", "/dev/dri/card1") },
			"process 812 (Xorg) has /dev/dri/card1 open",
		},
		"node that was removed meanwhile": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Open(812, "Xorg", "/dev/dri/card1 (deleted)") },
			"process 812 (Xorg) has /dev/dri/card1 open",
		},
		"node of NVIDIA": {
			gpu, func(_ *testing.T, h *sysfstest.Host) {
				h.Set("proc/driver/nvidia/gpus/"+gpu+"/information", "Model: \t NVIDIA A100\nDevice Minor: \t 3\n")
				h.Open(99, "python3", "/dev/nvidia3")
			},
			"process 99 (python3) has /dev/nvidia3 open",
		},
		"node of another": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Open(99, "python3", "/dev/nvidia0") }, "",
		},
		"raw disk": {
			ssd, func(_ *testing.T, h *sysfstest.Host) { h.Open(7, "ceph-osd", "/dev/nvme0n1") },
			"process 7 (ceph-osd) has /dev/nvme0n1 open",
		},
		"mounted disk": {
			ssd, func(_ *testing.T, h *sysfstest.Host) { h.Mount("259:0", "/dev/nvme0n1", "/srv") }, "its disk nvme0n1 is mounted on /srv",
		},
		"disk of a volume": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				symlink(t, h, "sys/bus/pci/devices/"+ssd+"/block/nvme0n1/holders/dm-0", "../../../../../../virtual/block/dm-0")
			},
			"its disk nvme0n1 is a part of dm-0",
		},
		"multipath disk": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				multipath(t, h)
				h.Open(7, "ceph-osd", "/dev/nvme7n1")
			},
			"process 7 (ceph-osd) has /dev/nvme7n1 open",
		},
		"partition of a multipath disk": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				multipath(t, h)
				h.Open(7, "ceph-osd", "/dev/nvme7n1p1")
			},
			"process 7 (ceph-osd) has /dev/nvme7n1p1 open",
		},
		"mounted partition of a multipath disk": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				multipath(t, h)
				h.Mount("259:8", "/dev/nvme7n1p1", "/srv")
			},
			"its disk nvme7n1p1 is mounted on /srv",
		},
		"multipath disk of a volume": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				multipath(t, h)
				symlink(t, h, subsystem+"/nvme7n1/nvme7n1p1/holders/dm-0", "../../../../../block/dm-0")
			},
			"its disk nvme7n1p1 is a part of dm-0",
		},
		"multipath disk that it has no path to": {
			ssd, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				multipath(t, h)
				h.Set("sys/devices/pci0000:3b/"+gpu+"/nvme/nvme3/nvme7c3n1/size", "8\n")
				symlink(t, h, subsystem+"/nvme3", "../../../pci0000:3b/"+gpu+"/nvme/nvme3")
				h.Open(7, "ceph-osd", "/dev/nvme7n1")
			},
			"",
		},
		"interface up": {nic, func(_ *testing.T, h *sysfstest.Host) { h.Up("ens1") }, "its network interface ens1 is up"},
		"interface of a container": {
			nic, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				require.NoError(t, os.RemoveAll(filepath.Join(h.Root(), "sys/bus/pci/devices", nic, "net/ens1")))
			},
			"its network interface is in another network namespace, such as a container's",
		},
		"virtual functions": {qat, func(_ *testing.T, h *sysfstest.Host) { h.SetVFs(qat, "3") }, "it has 3 virtual functions"},
		"mediated device": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				symlink(t, h, "sys/bus/mdev/devices/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
					"../../../devices/pci0000:3b/"+gpu+"/83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")
			},
			"it has the mediated device 83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"), sysfstest.QAT(t, qat),
				sysfstest.SSD(t, ssd, "nvme0n1", "259:0"))

			c.change(t, host)
			require.Equal(t, c.by, user(t, host, c.address))
		})
	}
}

// subsystem is an NVMe subsystem, to which the disks of its controllers belong.
const subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys7"

// multipath makes the function ssd a controller of the subsystem, which has a disk
// with a partition.
func multipath(t *testing.T, h *sysfstest.Host) {
	t.Helper()
	h.Set(subsystem+"/nvme7n1/dev", "259:7\n")
	h.Set(subsystem+"/nvme7n1/uevent", "DEVNAME=nvme7n1\nDEVTYPE=disk\n")
	h.Set(subsystem+"/nvme7n1/nvme7n1p1/dev", "259:8\n")
	h.Set(subsystem+"/nvme7n1/nvme7n1p1/uevent", "DEVNAME=nvme7n1p1\nDEVTYPE=partition\n")
	symlink(t, h, "sys/block/nvme7n1", "../devices/virtual/nvme-subsystem/nvme-subsys7/nvme7n1")
	symlink(t, h, subsystem+"/nvme7", "../../../pci0000:c1/"+ssd+"/nvme/nvme7")
}

// A process that has opened the VFIO node uses the function only while VFIO has
// it.
func TestUsersOfVFIO(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]string{"group": "/dev/vfio/7", "device": "/dev/vfio/devices/vfio0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.In("7", sysfstest.GPU(t, gpu)))
			host.Open(4711, "qemu-kvm", node)
			require.Empty(t, user(t, host, gpu), "another driver has it still")

			give(t, host, gpu)
			require.Equal(t, "process 4711 (qemu-kvm) has "+node+" open", user(t, host, gpu))

			host.End(4711)
			require.Empty(t, user(t, host, gpu))
		})
	}
}

// TestUsersBelowABridge checks that the users of a function below a bridge are
// not users of the bridge.
func TestUsersBelowABridge(t *testing.T) {
	t.Parallel()
	bridge := sysfstest.Bridge(t, port)
	host := sysfstest.New(t, bridge, sysfstest.Under(bridge, sysfstest.GPU(t, gpu)))
	host.Open(812, "Xorg", "/dev/dri/card1")
	require.Empty(t, user(t, host, port))
	require.NotEmpty(t, user(t, host, gpu))
}

// TestUsersOfADeviceFile checks an open VFIO device, which newer kernels name
// in fdinfo.
func TestUsersOfADeviceFile(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	give(t, host, gpu)
	host.Open(4711, "spdk_tgt", "anon_inode:[vfio-device]")
	require.Empty(t, user(t, host, gpu), "an older kernel does not tell whose it is, and the group can be opened")

	// The kernel opens a group that nobody has. A directory stands for one that
	// cannot be opened for another reason.
	node := filepath.Join(host.Root(), "dev/vfio", group(t, host, gpu))
	require.NoError(t, os.Rename(node, node+".before"))
	require.NoError(t, os.Mkdir(node, 0o755))
	here := tree(t, host.Root())
	f, err := here.Function(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)
	_, err = here.Users(t.Context(), f)
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%v", err)
	require.NoError(t, os.Remove(node))
	_, err = here.Users(t.Context(), f)
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "a node that is not there tells nothing: %v", err)
	require.NoError(t, os.Rename(node+".before", node))

	host.Set("proc/4711/fdinfo/3", "pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:00/0000:00:01.0/0000:99:00.0\n")
	require.Empty(t, user(t, host, gpu), "the open device is another one")
	host.Set("proc/4711/fdinfo/3", "pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:3b/"+gpu+"\n")
	require.Equal(t, "process 4711 (spdk_tgt) has it open through VFIO", user(t, host, gpu))
}

// TestUsersWhoCannotBeSeen: a process whose files cannot be read may use the
// function, whatever else is known.
func TestUsersWhoCannotBeSeen(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	symlink(t, host, "proc/12/fd", "fd") // it leads nowhere, also for root
	here := tree(t, host.Root())
	f, err := here.Function(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)

	_, err = here.Users(t.Context(), f)
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%v", err)
	host.Open(4711, "spdk_tgt", "anon_inode:[vfio-device]")
	_, err = here.Users(t.Context(), f)
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "somebody uses a device of VFIO, which this one is not: %v", err)
}

// The users of every function of this machine can be read. A function whose
// network interface or disk is in use is protected.
func TestUsersOfThisMachine(t *testing.T) {
	t.Parallel()
	here := tree(t, "/")
	functions, err := here.Functions(t.Context())
	require.NoError(t, err)
	protection, err := here.Protection(t.Context())
	require.NoError(t, err)

	for _, f := range functions {
		by, err := here.Users(t.Context(), f)
		require.NoError(t, err)
		if protection[f.Address] == "" {
			require.NotContains(t, by, "network interface")
			require.NotContains(t, by, "disk")
		}
	}
}

// group returns the IOMMU group of a function.
func group(t *testing.T, host *sysfstest.Host, address string) string {
	t.Helper()
	f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, address))
	require.NoError(t, err)
	return f.IOMMUGroup
}

// give gives a function to VFIO.
func give(t *testing.T, host *sysfstest.Host, address string) {
	t.Helper()
	require.NoError(t, binder(t, host, host.Simulator).Bind(t.Context(), sysfstest.Address(t, address), "vfio-pci"))
}

// binder returns a binder on the host that writes to this kernel.
func binder(t *testing.T, host *sysfstest.Host, kernel sysfs.Kernel) *sysfs.Binder {
	t.Helper()
	return sysfs.NewBinder(tree(t, host.Root()), kernel, "", deadline, logger(t))
}
