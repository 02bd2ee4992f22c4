package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// protected returns the reason for each protected function.
func protected(t *testing.T, host *sysfstest.Host) map[string]string {
	t.Helper()
	protection, err := tree(t, host.Root()).Protection(t.Context())
	require.NoError(t, err)
	list := map[string]string{}
	for address, reason := range protection {
		list[address.String()] = reason
	}
	return list
}

// symlink makes a link in the simulated host.
func symlink(t *testing.T, host *sysfstest.Host, name, target string) {
	t.Helper()
	name = filepath.Join(host.Root(), name)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(t, os.Symlink(target, name))
}

const virtualBlock = "sys/devices/virtual/block/"

// virtio gives a function a virtio device that has this kernel driver.
func virtio(t *testing.T, h *sysfstest.Host, name, address, driver string) {
	t.Helper()
	dir := "sys/devices/pci0000:" + address[5:7] + "/" + address + "/" + name
	require.NoError(t, os.MkdirAll(filepath.Join(h.Root(), dir), 0o755))
	symlink(t, h, dir+"/driver", "../../../../bus/virtio/drivers/"+driver)
	symlink(t, h, "sys/bus/virtio/devices/"+name, "../../../devices/pci0000:"+address[5:7]+"/"+address+"/"+name)
}

// volume makes a virtual block device on top of others.
func volume(t *testing.T, host *sysfstest.Host, name, number string, slaves ...string) {
	t.Helper()
	host.Set(virtualBlock+name+"/dev", number+"\n")
	symlink(t, host, "sys/block/"+name, "../devices/virtual/block/"+name)
	for _, slave := range slaves {
		symlink(t, host, virtualBlock+name+"/slaves/"+slave, "../../../nowhere/"+slave)
	}
}

// partition makes a partition of the test hosts' disk.
func partition(host *sysfstest.Host) {
	host.Set("sys/bus/pci/devices/"+ssd+"/block/nvme0n1/nvme0n1p2/dev", "259:2\n")
	host.Set("sys/bus/pci/devices/"+ssd+"/block/nvme0n1/nvme0n1p2/partition", "2\n")
}

// TestProtection starts from hosts with a GPU, a NIC, a QAT card and a disk
// that the host does not need, and makes the host need one of them in each
// possible way.
func TestProtection(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change    func(t *testing.T, host *sysfstest.Host)
		protected map[string]string
	}{
		"nothing": {func(*testing.T, *sysfstest.Host) {}, map[string]string{}},
		"disk mounted": {
			func(_ *testing.T, h *sysfstest.Host) { h.Mount("259:0", "/dev/nvme0n1", "/") },
			map[string]string{ssd: "its disk nvme0n1 is mounted on /"},
		},
		"partition mounted": {
			func(_ *testing.T, h *sysfstest.Host) { partition(h); h.Mount("259:2", "/dev/root", "/srv/my\\040data") },
			map[string]string{ssd: "its disk nvme0n1p2 is mounted on /srv/my data"},
		},
		"partition swapped to": {
			func(_ *testing.T, h *sysfstest.Host) {
				partition(h)
				h.Set("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p2 partition 1 0 -2\n/swapfile file 1 0 -3\n")
			},
			map[string]string{ssd: "its disk nvme0n1p2 is a swap area"},
		},
		"LVM on a partition": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				partition(h)
				volume(t, h, "dm-0", "253:0", "nvme0n1p2")
				h.Mount("253:0", "/dev/mapper/vg-root", "/")
			},
			map[string]string{ssd: "its disk dm-0 is mounted on /"},
		},
		"partition of a RAID of LVM": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				volume(t, h, "dm-0", "253:0", "nvme0n1")
				volume(t, h, "md127", "9:127", "dm-0")
				h.Set(virtualBlock+"md127/md127p1/dev", "259:9\n")
				h.Mount("259:9", "/dev/md127p1", "/")
			},
			map[string]string{ssd: "its disk md127p1 is mounted on /"},
		},
		"btrfs on a volume named by its mapper": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				volume(t, h, "dm-3", "253:3", "nvme0n1")
				h.Set(virtualBlock+"dm-3/dm/name", "luks-home\n")
				h.Mount("0:35", "/dev/mapper/luks-home", "/home")
			},
			map[string]string{ssd: "its disk dm-3 is mounted on /home"},
		},
		"disk named by a link": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				symlink(t, h, "dev/disk/by-label/data", "../../nvme0n1")
				h.Mount("0:35", "/dev/disk/by-label/data", "/data")
			},
			map[string]string{ssd: "its disk nvme0n1 is mounted on /data"},
		},
		"second disk of a btrfs": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				symlink(t, h, "sys/fs/btrfs/4711-42/devices/nvme0n1", "../../../../nowhere/nvme0n1")
			},
			map[string]string{ssd: "its disk nvme0n1 holds a part of a mounted btrfs"},
		},
		"multipath NVMe": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				const subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys7"
				h.Set(subsystem+"/nvme7n1/dev", "259:7\n")
				symlink(t, h, "sys/block/nvme7n1", "../devices/virtual/nvme-subsystem/nvme-subsys7/nvme7n1")
				symlink(t, h, subsystem+"/nvme7", "../../../pci0000:c1/"+ssd+"/nvme/nvme7")
				h.Mount("259:7", "/dev/nvme7n1", "/")
			},
			map[string]string{ssd: "its disk nvme7n1 is mounted on /"},
		},
		"file system of the hypervisor": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				virtio(t, h, "virtio0", ssd, "9pnet_virtio")
				virtio(t, h, "virtio1", gpu, "9pnet_virtio")
				h.Set("sys/devices/pci0000:3b/"+gpu+"/virtio1/mount_tag", "results\x00\n")
				h.Set("proc/1/mountinfo", "30 1 0:40 / /out rw - 9p results rw,trans=virtio\n")
			},
			map[string]string{gpu: "its file system results is mounted on /out"},
		},
		"file system of the hypervisor without a tag": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				virtio(t, h, "virtio0", ssd, "virtiofs")
				virtio(t, h, "virtio1", gpu, "virtio_net")
				h.Set("proc/1/mountinfo", "30 1 0:40 / /out rw - virtiofs results rw\n")
			},
			map[string]string{ssd: "its file system results is mounted on /out"},
		},
		"ZFS, whose disks nobody tells": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.Set("proc/1/mountinfo", "30 1 0:40 / /tank rw - zfs tank rw\n")
			},
			map[string]string{ssd: "it has the disk nvme0n1, and tank, which is mounted on /tank, may be on it"},
		},
		"volume without known members": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				volume(t, h, "dm-0", "253:0")
				h.Mount("253:0", "/dev/dm-0", "/")
			},
			map[string]string{ssd: "it has the disk nvme0n1, and /dev/dm-0, which is mounted on /, may be on it"},
		},
		"network disk": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				volume(t, h, "rbd0", "252:0")
				h.Mount("252:0", "/dev/rbd0", "/srv")
			},
			map[string]string{},
		},
		"pseudo file systems": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.Set("proc/1/mountinfo", "30 1 0:40 / /n rw - nfs4 server:/x rw\n31 1 0:6 / /dev rw - devtmpfs /dev rw\n"+
					"32 1 0:41 / /run/doc rw - fuse.portal /dev/fuse rw\n33 1 7:0 / /snap/x ro - squashfs /dev/loop0 ro\ngarbage\n34 x - y\n")
			},
			map[string]string{},
		},
		"mounted only for the agent": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.Set("proc/self/mountinfo", "40 1 259:0 / /mnt rw - ext4 /dev/nvme0n1 rw\n")
			},
			map[string]string{ssd: "its disk nvme0n1 is mounted on /mnt"},
		},
		"older mount table": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				require.NoError(t, os.RemoveAll(filepath.Join(h.Root(), "proc/1")))
				h.Set("proc/self/mounts", "/dev/nvme0n1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n")
			},
			map[string]string{ssd: "its disk nvme0n1 is mounted on /"},
		},
		"bcachefs on two disks": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.Set("proc/1/mountinfo", "30 1 0:40 / /b rw - bcachefs /dev/loop0:/dev/nvme0n1 rw\n")
			},
			map[string]string{ssd: "its disk nvme0n1 is mounted on /b"},
		},
		"interface up": {
			func(_ *testing.T, h *sysfstest.Host) { h.Up("ens1") },
			map[string]string{nic: "its network interface ens1 is up"},
		},
		"interface with flags that nobody can read": {
			func(_ *testing.T, h *sysfstest.Host) { h.Set("sys/class/net/ens1/flags", "up") },
			map[string]string{nic: "its network interface ens1 is up"},
		},
		"interface in a bridge": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				symlink(t, h, "sys/class/net/ens1/master", "../../../../virtual/net/br0")
			},
			map[string]string{nic: "its network interface ens1 is a member of br0"},
		},
		"interface with the default route": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.Up("ens1")
				h.Set("proc/1/net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"+
					"ens1 00000000 0100A8C0 0003 0 0 0 00000000 0 0 0\n")
			},
			map[string]string{nic: "its network interface ens1 carries the default route"},
		},
		"interface with the default route of IPv6": {
			func(_ *testing.T, h *sysfstest.Host) {
				zero := "00000000000000000000000000000000"
				h.Set("proc/1/net/ipv6_route", zero+" 00 "+zero+" 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 ens1\n"+
					zero+" 00 "+zero+" 00 "+zero+" ffffffff 00000001 00000000 00200200 lo\n")
			},
			map[string]string{nic: "its network interface ens1 carries the default route"},
		},
		"interface of a virtual function": {
			func(_ *testing.T, h *sysfstest.Host) {
				h.SetVFs(nic, "2")
				h.Set("sys/bus/pci/devices/0000:18:01.1/net/ens1v1/flags", "0x1003\n")
				symlink(t, h, "sys/class/net/ens1v1", "../../devices/pci0000:18/0000:18:01.1/net/ens1v1")
			},
			map[string]string{
				"0000:18:01.1": "its network interface ens1v1 is up",
				nic:            "its virtual function 0000:18:01.1 is protected: its network interface ens1v1 is up",
			},
		},
		"virtual functions of an uplink": {
			func(_ *testing.T, h *sysfstest.Host) { h.SetVFs(nic, "2"); h.Up("ens1") },
			map[string]string{nic: "its network interface ens1 is up"},
		},
		"console": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				h.Set("sys/class/tty/console/active", "tty0 ttyS4\n")
				symlink(t, h, "sys/class/tty/tty0", "../../devices/virtual/tty/tty0")
				symlink(t, h, "sys/class/tty/ttyS4", "../../devices/pci0000:b1/"+qat+"/tty/ttyS4")
			},
			map[string]string{qat: "it carries the system console ttyS4"},
		},
		"group of the disk": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				h.Mount("259:0", "/dev/nvme0n1", "/")
				h.Add(sysfstest.In("7", sysfstest.SSD(t, ssd, "nvme0n1", "259:0")), sysfstest.In("7", sysfstest.GPU(t, gpu)))
			},
			map[string]string{
				ssd: "its disk nvme0n1 is mounted on /",
				gpu: "it shares IOMMU group 7 with " + ssd + ", which is protected: its disk nvme0n1 is mounted on /",
			},
		},
		"group of bridges, which vfio allows": {
			func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				root := sysfstest.Bridge(t, "0000:00:00.0")
				root.Class, root.Driver = 0x060000, ""
				h.Add(sysfstest.In("7", root), sysfstest.In("7", sysfstest.Bridge(t, port)), sysfstest.In("7", sysfstest.GPU(t, gpu)))
			},
			map[string]string{"0000:00:00.0": "it is a host bridge", port: "it is a PCI bridge"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"), sysfstest.QAT(t, qat),
				sysfstest.SSD(t, ssd, "nvme0n1", "259:0"))

			c.change(t, host)
			require.Equal(t, c.protected, protected(t, host))
		})
	}
}

// Functions that are a part of the chipset by their class are protected, and
// accelerators with a similar class are not.
func TestProtectionOfTheChipset(t *testing.T) {
	t.Parallel()
	var functions []simulator.Function
	want := map[string]string{}
	for i, c := range []struct {
		class  uint32
		reason string
	}{
		{0x060000, "it is a host bridge"},
		{0x060400, "it is a PCI bridge"},
		{0x060100, "it is a bridge of the chipset"},
		{0x068000, "it is a bridge of the chipset"},
		{0x080600, "it is a part of the chipset (interrupt controller, DMA, timer, hot-plug or IOMMU)"},
		{0x050000, "it is the memory controller"},
		{0x0c0500, "it is the system management bus"},
		{0x088000, ""}, // other system peripheral: Intel DSA
		{0x080501, ""}, // SD host controller
		{0x050200, ""}, // CXL memory
		{0x120000, ""},
	} {
		address := cyborg.PCIAddress{Device: uint8(i)}
		functions = append(functions, simulator.Function{Address: address, Vendor: "8086", Product: "0001", Class: c.class})
		if c.reason != "" {
			want[address.String()] = c.reason
		}
	}

	require.Equal(t, want, protected(t, sysfstest.New(t, functions...)))
}

func TestProtectionOfTheBootDisplay(t *testing.T) {
	t.Parallel()
	display := simulator.Function{
		Address: sysfstest.Address(t, gpu), Vendor: "1a03", Product: "2000", Class: 0x030000, Driver: "ast", BootVGA: true,
	}
	host := sysfstest.New(t, display)
	require.Equal(t, map[string]string{gpu: "it is the display that this host boots on"}, protected(t, host))

	host.Set("sys/bus/pci/devices/"+gpu+"/boot_vga", "0\n")
	require.Empty(t, protected(t, host))
}

// TestProtectionOfParentControllers checks a controller that is not a bridge by
// its class (Intel VMD) and has the disk below it.
func TestProtectionOfParentControllers(t *testing.T) {
	t.Parallel()
	vmd := simulator.Function{Address: sysfstest.Address(t, "0000:00:0e.0"), Vendor: "8086", Product: "467f", Class: 0x010400, Driver: "vmd"}
	card := sysfstest.Under(vmd, sysfstest.NIC(t, "10000:01:00.0", "ens1"))
	host := sysfstest.New(t, vmd, card)
	require.Empty(t, protected(t, host))

	host.Up("ens1")
	require.Equal(t, map[string]string{
		"10000:01:00.0": "its network interface ens1 is up",
		"0000:00:0e.0":  "protected function 10000:01:00.0 is below it",
	}, protected(t, host))
}

// Without a mount table nobody knows which disks the host needs, so the call
// fails instead of protecting none.
func TestProtectionFailsClosed(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.SSD(t, ssd, "nvme0n1", "259:0"))
	require.NoError(t, os.Remove(filepath.Join(host.Root(), "proc/1/mountinfo")))
	_, err := tree(t, host.Root()).Protection(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "mountinfo")
}

// TestProtectionOfThisMachine checks that something is protected on this
// machine, which needs its root file system.
func TestProtectionOfThisMachine(t *testing.T) {
	t.Parallel()
	protection, err := tree(t, "/").Protection(t.Context())
	require.NoError(t, err)

	disks, err := filepath.Glob("/sys/bus/pci/devices/*/virtio*/block/vda")
	require.NoError(t, err)
	if len(disks) == 0 {
		t.Skip("this machine has no virtio disk")
	}

	address := filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(disks[0]))))
	require.Contains(t, protection[sysfstest.Address(t, address)], "its disk vda")
}
