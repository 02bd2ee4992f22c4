package generic_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// These are files of the QAT card that a test divides.
const (
	qatDir       = "sys/bus/pci/devices/" + qat + "/"
	qatNumVFs    = qatDir + "sriov_numvfs"
	qatAutoprobe = qatDir + "sriov_drivers_autoprobe"
)

// vfs returns the layout with so many virtual functions.
func vfs(count int) cyborg.Layout { return cyborg.Layout{"vf": count}.Normal() }

// partition divides the target's device with the last note.
func (b *bench) partition(ctx context.Context, count int) error {
	return b.driver.Partition(ctx, drivers.PartitionRequest{
		Device: b.target.Device, Layout: vfs(count), Prior: b.prior(), Note: b.note, Progress: func(int, string) {},
	})
}

// newDivided returns a bench with a QAT card that has so many virtual functions, which
// Partition has made.
func newDivided(t *testing.T, count int) *bench {
	t.Helper()
	b := newBench(t, passthroughtest.NewHost(t, withSerial(sysfstest.QAT(t, qat), serial), sysfstest.GPU(t, gpu)), qat)
	require.NoError(t, b.partition(t.Context(), count))
	return b
}

// offered lists what a discovery offers of the target's device, and how it says that it is
// divided.
func (b *bench) offered(t *testing.T) (names []string, layout cyborg.Layout) {
	t.Helper()
	devices, err := b.driver.Discover(t.Context())
	require.NoError(t, err)
	for _, device := range devices {
		if device.Identity != b.target.Device.Identity {
			continue
		}
		for _, deployable := range device.Deployables {
			names = append(names, deployable.Name)
		}
		return names, device.Partitioning.Layout
	}
	require.Fail(t, "the device is not there")
	return nil, nil
}

// virtual returns the addresses of the first virtual functions of the QAT card.
func virtual(count int) []string {
	var names []string
	for number := range count {
		names = append(names, fmt.Sprintf("0000:b1:%02x.%d", 1+number/8, number%8))
	}
	return names
}

// writeKernel calls a function before each write, and counts those that are made.
type writeKernel struct {
	sysfs.Kernel
	before func(attribute, text string)
	writes []string
	refuse map[string]error // what is not written, as in writes, and why
}

// Write writes to the kernel.
func (k *writeKernel) Write(attribute, text string) error {
	what := filepath.Base(attribute) + "=" + text
	k.writes = append(k.writes, what)
	if err := k.refuse[what]; err != nil {
		return err
	}
	if k.before != nil {
		k.before(attribute, text)
	}
	return k.Kernel.Write(attribute, text)
}

// TestPartitioningIsReported: physical functions can be divided where the backend wants that.
func TestPartitioningIsReported(t *testing.T) {
	t.Parallel()
	huge := sysfstest.QAT(t, "0000:d0:00.0")
	huge.TotalVFs = 1000
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"), sysfstest.QAT(t, qat), huge)
	host.SetVFs(qat, "3")

	reported := func(options map[string]any) map[string]*cyborg.Partitioning {
		options["simulate"] = true
		driver, err := generic.New(environment(t, host), options)
		require.NoError(t, err)
		devices, err := driver.(*generic.Driver).WithAnswerLimit(passthroughtest.Patience).Discover(t.Context())
		require.NoError(t, err)
		all := map[string]*cyborg.Partitioning{}
		for _, device := range devices {
			all[device.Identity] = device.Partitioning
		}
		return all
	}
	can := func(most, now int) *cyborg.Partitioning {
		return &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "vf", Most: most, Description: "virtual function (SR-IOV)"}}, Layout: vfs(now)}
	}

	require.Equal(t, map[string]*cyborg.Partitioning{gpu: nil, nic: can(8, 0), qat: can(16, 3), huge.Address.String(): can(256, 0), passthroughtest.Disk: nil},
		reported(map[string]any{"device_spec": "*", "partition": true}))
	for _, off := range []map[string]any{{"device_spec": `{"address": "` + qat + `"}`}, {"device_spec": `{"address": "` + qat + `"}`, "partition": false}} {
		require.Equal(t, map[string]*cyborg.Partitioning{qat: nil}, reported(off))
	}
	require.Equal(t, map[string]*cyborg.Partitioning{"0000:b1:01.0": nil, "0000:b1:01.1": nil, "0000:b1:01.2": nil},
		reported(map[string]any{"device_spec": `{"product_id": "37c9"}`, "partition": true}), "their card is not the backend's")
}

// TestPartition divides a card in several ways, one after the other. Its virtual functions
// keep their names and have no driver, and at the end all is as before.
func TestPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withSerial(sysfstest.QAT(t, qat), serial), sysfstest.GPU(t, gpu)), qat)
	before := passthroughtest.Snapshot(t, b.Root())
	kernel := &writeKernel{Kernel: b.Simulator}
	b.restart(t, kernel, "30s")

	for _, step := range []struct {
		count  int
		writes []string
		notes  int
	}{
		{0, nil, 0},
		{4, []string{"sriov_drivers_autoprobe=0", "sriov_numvfs=4"}, 1},
		{4, nil, 1},
		{16, []string{"sriov_numvfs=0", "sriov_numvfs=16"}, 2},
		{2, []string{"sriov_numvfs=0", "sriov_numvfs=2"}, 3},
		{0, []string{"sriov_drivers_autoprobe=1", "sriov_numvfs=0"}, 4},
		{0, nil, 4},
	} {
		kernel.writes = nil
		require.NoError(t, b.partition(t.Context(), step.count), step.count)
		require.Equal(t, step.writes, kernel.writes, step.count)
		require.Len(t, b.notes, step.notes, step.count)

		want := virtual(step.count)
		if step.count == 0 {
			want = []string{qat}
		}
		names, layout := b.offered(t)
		require.Equal(t, want, names)
		require.Equal(t, vfs(step.count), layout)
		for _, name := range virtual(step.count) {
			require.NoFileExists(t, filepath.Join(b.Root(), "sys/bus/pci/devices", name, "driver"))
		}
	}
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestPartitionOfWhatSomebodyHasDivided: virtual functions that were made by hand are parts
// like others. Those that are as wanted stay as they are, with their drivers.
func TestPartitionOfWhatSomebodyHasDivided(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.QAT(t, qat))
	whole := passthroughtest.Snapshot(t, host.Root())
	host.SetVFs(qat, "2")
	before := passthroughtest.Snapshot(t, host.Root())
	b := newBench(t, host, "0000:b1:01.0")
	require.NoError(t, b.partition(t.Context(), 2))
	require.Equal(t, before, passthroughtest.Snapshot(t, host.Root()))
	require.Empty(t, b.notes)

	require.NoError(t, b.partition(t.Context(), 0))
	require.Equal(t, whole, passthroughtest.Snapshot(t, host.Root()))
}

// TestPartitionKeepsTheHostsChoice: whether the kernel gives virtual functions to drivers is,
// once the device is whole, what it was before, also where that has changed since the last time.
func TestPartitionKeepsTheHostsChoice(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.QAT(t, qat)), qat)
	for _, choice := range []string{"0", "1", "0"} {
		require.NoError(t, b.Simulator.Write(qatAutoprobe, choice))
		for _, step := range []struct {
			count int
			want  string
		}{{3, "0"}, {5, "0"}, {0, choice}} {
			require.NoError(t, b.partition(t.Context(), step.count))
			text, err := b.Simulator.Read(qatAutoprobe)
			require.NoError(t, err)
			require.Equal(t, step.want, text, choice)
		}
	}

	// Before Linux 4.12 nobody can choose.
	require.NoError(t, os.Remove(filepath.Join(b.Root(), qatAutoprobe)))
	b.notes = nil
	before := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, b.partition(t.Context(), 1))
	require.NotEqual(t, before, passthroughtest.Snapshot(t, b.Root()))
	require.NoError(t, b.partition(t.Context(), 0))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestPartitionIsRefused asks for what must not be done, or cannot. Nothing changes.
func TestPartitionIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		card   simulator.Function
		before int // virtual functions
		change func(t *testing.T, b *bench)
		layout cyborg.Layout
		want   cyborg.ErrorKind
		says   string
	}{
		"too many": {
			sysfstest.QAT(t, qat), 0, func(*testing.T, *bench) {}, vfs(17), cyborg.ErrInvalid, "17 parts of kind vf are too many: the device can have 16",
		},
		"parts of another kind": {
			sysfstest.QAT(t, qat), 0, func(*testing.T, *bench) {}, cyborg.Layout{"1g.10gb": 1}, cyborg.ErrInvalid, "it can have vf",
		},
		"a function without virtual ones": {
			sysfstest.GPU(t, gpu), 0, func(*testing.T, *bench) {}, vfs(1), cyborg.ErrUnsupported, "cannot divide this device",
		},
		"fewer by now": {
			sysfstest.QAT(t, qat), 0, func(_ *testing.T, b *bench) { b.Set(qatDir+"sriov_totalvfs", "2\n") }, vfs(3), cyborg.ErrInvalid, "2 virtual functions by now",
		},
		"none by now": {
			sysfstest.QAT(t, qat), 0, func(_ *testing.T, b *bench) { b.Set(qatDir+"sriov_totalvfs", "0\n") }, vfs(3), cyborg.ErrUnsupported, "SR-IOV",
		},
		"the host's port": {
			sysfstest.NIC(t, nic, "ens1"), 0, func(_ *testing.T, b *bench) { b.Up("ens1") }, vfs(2), cyborg.ErrProtected, "ens1 is up",
		},
		"the host's port, divided": {
			sysfstest.NIC(t, nic, "ens1"), 3, func(_ *testing.T, b *bench) { b.Up("ens1") }, vfs(0), cyborg.ErrProtected, "ens1 is up",
		},
		"a virtual function that the host needs": {
			sysfstest.QAT(t, qat), 3, func(t *testing.T, b *bench) {
				t.Helper()
				group, err := os.Readlink(filepath.Join(b.Root(), "sys/bus/pci/devices/0000:b1:01.2/iommu_group"))
				require.NoError(t, err)
				b.Add(sysfstest.In(filepath.Base(group), sysfstest.SSD(t, passthroughtest.Disk, "nvme0n1", "259:0")))
			}, vfs(0), cyborg.ErrProtected, "0000:b1:01.2 is not touched",
		},
		"in use": {
			withNode(sysfstest.QAT(t, qat), "/dev/qat_adf_ctl"), 0,
			func(_ *testing.T, b *bench) { b.Open(812, "adf_ctl", "/dev/qat_adf_ctl") }, vfs(2), cyborg.ErrInUse, "process 812 (adf_ctl)",
		},
		"in use while it is divided": {
			withNode(sysfstest.QAT(t, qat), "/dev/qat_adf_ctl"), 1,
			func(_ *testing.T, b *bench) { b.Open(812, "adf_ctl", "/dev/qat_adf_ctl") }, vfs(0), cyborg.ErrInUse, qat + " is in use through its driver c6xx",
		},
		"a virtual function in use": {
			sysfstest.QAT(t, qat), 3, func(t *testing.T, b *bench) {
				t.Helper()
				passthroughtest.ToVFIO(t, b.Host, "0000:b1:01.2")
				b.Open(4711, "qemu-kvm", passthroughtest.VFIONode(t, b.Host, "0000:b1:01.2"))
			}, vfs(0), cyborg.ErrInUse, "0000:b1:01.2 is in use through its driver vfio-pci: process 4711 (qemu-kvm)",
		},
		"no driver": {
			sysfstest.QAT(t, qat), 0, func(t *testing.T, b *bench) {
				t.Helper()
				require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/c6xx/unbind", qat))
			}, vfs(2), cyborg.ErrUnsupported, "has no kernel driver",
		},
		"given to VFIO by hand": {
			sysfstest.QAT(t, qat), 0, func(t *testing.T, b *bench) { t.Helper(); passthroughtest.ToVFIO(t, b.Host, qat) }, vfs(2), cyborg.ErrUnsupported, "without its token",
		},
		"pulled out": {
			withSerial(sysfstest.QAT(t, qat), serial), 0,
			func(_ *testing.T, b *bench) { b.Set(qatDir+"config", strings.Repeat("\xff", 4096)) }, vfs(2), cyborg.ErrHardware, "does not answer",
		},
		"gone": {
			sysfstest.QAT(t, qat), 0, func(_ *testing.T, b *bench) { b.Unplug(qat) }, vfs(2), cyborg.ErrNotFound, qat,
		},
		"another card of the model": {
			withSerial(sysfstest.QAT(t, qat), serial), 2, func(t *testing.T, b *bench) {
				t.Helper()
				passthroughtest.Exchange(b.Host, withSerial(sysfstest.QAT(t, qat), otherSerial))
			}, vfs(0), cyborg.ErrChanged, otherSerial,
		},
		"another card": {
			sysfstest.QAT(t, qat), 0, func(t *testing.T, b *bench) {
				t.Helper()
				passthroughtest.Exchange(b.Host, sysfstest.NIC(t, qat, "ens9"))
			},
			vfs(2), cyborg.ErrChanged, "8086:1572",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := passthroughtest.NewHost(t, c.card)
			address := c.card.Address.String()
			part := address
			if c.before > 0 {
				host.SetVFs(address, fmt.Sprint(c.before))
				part = strings.Replace(address, ":00.0", ":01.0", 1)
			}
			b := newBench(t, host, part)
			c.change(t, b)
			before := passthroughtest.Snapshot(t, host.Root())

			err := b.driver.Partition(t.Context(), drivers.PartitionRequest{
				Device: b.target.Device, Layout: c.layout, Note: b.note, Progress: func(int, string) {},
			})
			require.Equal(t, c.want, cyborg.ErrorKindOf(err), err)
			require.ErrorContains(t, err, c.says)
			require.Equal(t, before, passthroughtest.Snapshot(t, host.Root()))
			require.Empty(t, b.notes)
		})
	}
}

// withNode returns the function with a device that its driver makes.
func withNode(f simulator.Function, node string) simulator.Function {
	f.Children = []simulator.Child{{Class: "misc", Name: filepath.Base(node), Number: "10:120", Node: node}}
	return f
}

// TestPartitionOfACard: what goes with a card to its holder counts when somebody uses it.
func TestPartitionOfACard(t *testing.T) {
	t.Parallel()
	card := graphicsCard(t)
	card[0].TotalVFs = 4
	b := newCardOf(t, cyborg.HolderInstance, card)
	b.Open(812, "pipewire", "/dev/snd/controlC1")
	before := passthroughtest.Snapshot(t, b.Root())
	err := b.partition(t.Context(), 2)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, audio+" is in use")
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

	b.End(812)
	require.NoError(t, b.partition(t.Context(), 2))
}

// TestPartitionOfABackendThatDoesNot: without the option nothing is divided, also not on the
// word of an earlier report.
func TestPartitionOfABackendThatDoesNot(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.QAT(t, qat)), qat)
	driver, err := generic.NewWithKernel(b.Simulator, environment(t, b.Host), map[string]any{"device_spec": "*"})
	require.NoError(t, err)
	before := passthroughtest.Snapshot(t, b.Root())
	err = driver.Partition(t.Context(), drivers.PartitionRequest{Device: b.target.Device, Layout: vfs(2), Note: b.note, Progress: func(int, string) {}})
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, `backend "pci" does not divide devices`)
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestPartitionIsPutBack: where the kernel or the driver refuses, or makes fewer, the device is
// divided as before.
func TestPartitionIsPutBack(t *testing.T) {
	t.Parallel()
	few, fixed := sysfstest.QAT(t, qat), sysfstest.QAT(t, qat)
	few.FewerVFs, fixed.FixedVFs = 1, true

	for name, c := range map[string]struct {
		card       simulator.Function
		before     int    // virtual functions
		refused    string // of the writes
		number     syscall.Errno
		kind       cyborg.ErrorKind
		says, hint string
	}{
		"fewer": {
			few, 0, "", 0, cyborg.ErrHardware, "should have 4 virtual functions, and its driver c6xx says 3; 3 are there", "set to fewer",
		},
		"no way":      {fixed, 0, "", 0, cyborg.ErrHardware, "its driver has no way to make them", "pci-pf-stub"},
		"no memory":   {sysfstest.QAT(t, qat), 0, "sriov_numvfs=4", syscall.ENOMEM, cyborg.ErrHardware, "no memory", "pci=realloc"},
		"forbidden":   {sysfstest.QAT(t, qat), 0, "sriov_numvfs=4", syscall.EPERM, cyborg.ErrHardware, "forbids it", "dmesg"},
		"no IOMMU":    {sysfstest.QAT(t, qat), 0, "sriov_numvfs=4", syscall.EINVAL, cyborg.ErrHardware, "refuses it", "IOMMU"},
		"not so many": {sysfstest.QAT(t, qat), 0, "sriov_numvfs=4", syscall.ERANGE, cyborg.ErrHardware, "more than its driver can make", "fewer"},
		"busy":        {sysfstest.QAT(t, qat), 0, "sriov_numvfs=4", syscall.EBUSY, cyborg.ErrBusy, "failed", "try again"},
		"not removed": {sysfstest.QAT(t, qat), 3, "sriov_numvfs=0", syscall.EPERM, cyborg.ErrHardware, "cannot have 0", "dmesg"},
		"removed, and then no memory": {
			sysfstest.QAT(t, qat), 3, "sriov_numvfs=4", syscall.ENOMEM, cyborg.ErrHardware, "no memory", "pci=realloc",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := passthroughtest.NewHost(t, c.card)
			address := qat
			if c.before > 0 {
				require.NoError(t, host.Simulator.Write(qatAutoprobe, "0"))
				host.SetVFs(qat, fmt.Sprint(c.before))
				address = virtual(1)[0]
			}
			b := newBench(t, host, address)
			before := passthroughtest.Snapshot(t, host.Root())
			kernel := &writeKernel{Kernel: host.Simulator}
			if c.number != 0 {
				kernel.refuse = map[string]error{c.refused: c.number}
			}
			b.restart(t, kernel, "30s")

			err := b.partition(t.Context(), 4)
			require.Equal(t, c.kind, cyborg.ErrorKindOf(err), err)
			require.ErrorContains(t, err, c.says)
			require.Contains(t, cyborg.AsError(err).Hint, c.hint)
			require.Equal(t, before, passthroughtest.Snapshot(t, host.Root()))
			require.Len(t, b.notes, 1)
		})
	}
}

// TestPartitionNotesFirst: where the note cannot be stored, nothing changes.
func TestPartitionNotesFirst(t *testing.T) {
	t.Parallel()
	for from, to := range map[int]int{0: 4, 4: 2, 2: 0} {
		b := newDivided(t, from)
		before := passthroughtest.Snapshot(t, b.Root())
		err := b.driver.Partition(t.Context(), drivers.PartitionRequest{
			Device: b.target.Device, Layout: vfs(to), Prior: b.prior(), Progress: func(int, string) {},
			Note: func(json.RawMessage) error { return os.ErrPermission },
		})
		require.ErrorIs(t, err, os.ErrPermission)
		require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
	}

	b := newDivided(t, 2)
	b.notes = []json.RawMessage{json.RawMessage(`nonsense`)}
	require.Equal(t, cyborg.ErrInternal, cyborg.ErrorKindOf(b.partition(t.Context(), 0)))
}

// TestAgentDiesDuringPartition lets the agent die at each write of a partition. The next agent
// can go on with it, or with any other one, and at the end all is as before the first.
func TestAgentDiesDuringPartition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, writes int }{{0, 4, 2}, {4, 2, 2}, {4, 0, 2}} {
		for at := 1; at <= c.writes; at++ {
			for _, after := range []bool{false, true} {
				for _, then := range []int{0, 2, 4, 7} {
					t.Run(fmt.Sprintf("from %d to %d/write %d/after %v/then %d", c.from, c.to, at, after, then), func(t *testing.T) {
						t.Parallel()
						b := newBench(t, passthroughtest.NewHost(t, sysfstest.QAT(t, qat)), qat)
						whole := passthroughtest.Snapshot(t, b.Root())
						require.NoError(t, b.partition(t.Context(), c.from))

						b.restart(t, &sysfstest.DyingKernel{Kernel: b.Simulator, At: at, After: after, Dead: true}, "30s")
						require.ErrorIs(t, b.partition(t.Context(), c.to), sysfstest.ErrDied)

						b.restart(t, b.Simulator, "30s")
						require.NoError(t, b.partition(t.Context(), then))
						_, layout := b.offered(t)
						require.Equal(t, vfs(then), layout)
						if then > 0 {
							text, err := b.Simulator.Read(qatAutoprobe)
							require.NoError(t, err)
							require.Equal(t, "0", text)
						}
						require.NoError(t, b.partition(t.Context(), 0))
						require.Equal(t, whole, passthroughtest.Snapshot(t, b.Root()))
					})
				}
			}
		}
	}
}

// TestPartitionThatHangs: somebody opens a virtual function just before the kernel removes it.
// The call ends after its deadline, and the device is left alone until the kernel has come back.
func TestPartitionThatHangs(t *testing.T) {
	t.Parallel()
	b := newDivided(t, 3)
	const used = "0000:b1:01.2"
	passthroughtest.ToVFIO(t, b.Host, used)
	kernel := &writeKernel{Kernel: b.Simulator}
	kernel.before = func(attribute, text string) {
		if attribute == qatNumVFs && text == "0" {
			b.Open(4711, "qemu-kvm", passthroughtest.VFIONode(t, b.Host, used))
			kernel.before = nil
		}
	}
	b.restart(t, kernel, "10s") // also for the accesses before the one that hangs

	err := b.partition(t.Context(), 1)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "sriov_numvfs for "+qat+" has not come back for 10s")
	for _, count := range []int{0, 1, 3} {
		again := b.partition(t.Context(), count)
		require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(again), again)
	}
	require.Equal(t, virtual(3), unwell(t, b.driver, "hangs in the kernel since"), "nobody gets any of it")

	b.End(4711)
	require.Eventually(t, func() bool { return b.partition(t.Context(), 1) == nil }, 5*time.Minute, 20*time.Millisecond)
	names, _ := b.offered(t)
	require.Equal(t, virtual(1), names)
	require.Empty(t, unwell(t, b.driver, ""))
}

// TestPartitionIsInterrupted ends the context while virtual functions are being made. As soon as
// the kernel has come back, the device can be made whole.
func TestPartitionIsInterrupted(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.QAT(t, qat)), qat)
	whole := passthroughtest.Snapshot(t, b.Root())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.restart(t, &writeKernel{Kernel: b.Simulator, before: func(attribute, _ string) {
		if attribute == qatNumVFs {
			cancel()
		}
	}}, "30s")
	b.Fault(simulator.Fault{On: "sriov_numvfs", Hang: true})
	err := b.partition(ctx, 4)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(b.partition(ctx, 4)), "not begun")

	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(b.partition(t.Context(), 0)), "it is under way")
	b.ClearFaults()
	require.Eventually(t, func() bool { return b.partition(t.Context(), 0) == nil }, 5*time.Minute, 20*time.Millisecond)
	require.Equal(t, whole, passthroughtest.Snapshot(t, b.Root()))
}

// TestPartsAreGivenOut attaches virtual functions that Partition has made. What was attached of
// one that is gone is gone with it.
func TestPartsAreGivenOut(t *testing.T) {
	t.Parallel()
	b := newDivided(t, 2)
	part := newBench(t, b.Host, "0000:b1:01.1")
	before := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, part.attach(t))
	require.Equal(t, "vfio-pci", part.has(t))
	require.NoError(t, part.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()), "it has no driver again")

	require.NoError(t, part.attach(t))
	b.Reboot()
	require.NoError(t, b.partition(t.Context(), 2))
	require.Empty(t, part.has(t))
	require.NoError(t, part.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

	require.NoError(t, part.attach(t))
	require.NoError(t, b.partition(t.Context(), 0))
	require.NoError(t, part.detach(t, false))
	names, _ := b.offered(t)
	require.Equal(t, []string{qat}, names)
	whole := newBench(t, b.Host, qat)
	require.NoError(t, whole.attach(t))
	require.NoError(t, whole.detach(t, false))
}

// TestPartitionOnKernel divides a card of fakebus on the kernel of this machine.
func TestPartitionOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	card := fakebus.Plug(t, fakebus.QAT())
	pf, used := card.At("00.0"), card.At("01.2")
	driver := live(t, card)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	require.Len(t, devices, 1)
	require.Equal(t, 16, devices[0].Partitioning.Parts[0].Most)

	var prior json.RawMessage
	partition := func(count int) error {
		return driver.Partition(t.Context(), drivers.PartitionRequest{
			Device: devices[0], Layout: vfs(count), Prior: prior, Progress: func(int, string) {},
			Note: func(note json.RawMessage) error { prior = note; return nil },
		})
	}
	autoprobe := func() string {
		text, err := os.ReadFile("/sys/bus/pci/devices/" + pf + "/sriov_drivers_autoprobe")
		require.NoError(t, err)
		return strings.TrimSpace(string(text))
	}

	whole := card.Snapshot()
	for _, count := range []int{3, 5} {
		require.NoError(t, partition(count))
		now, err := driver.Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, now[0].Deployables, count)
		require.Equal(t, vfs(count), now[0].Partitioning.Layout)
		require.Equal(t, "0", autoprobe())
		require.Empty(t, fakebus.DriverOf(t, used))
	}

	now, err := driver.Discover(t.Context())
	require.NoError(t, err)
	target, handle := passthroughtest.Choose(used)(t, now)
	require.NoError(t, driver.Attach(t.Context(), drivers.AttachRequest{
		Target: target, Handle: handle, Holder: cyborg.Holder{Kind: cyborg.HolderHost}, Note: func(json.RawMessage) error { return nil },
	}))
	release := fakebus.Hold(t, used, fakebus.Device)
	err = partition(0)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	release()

	require.NoError(t, partition(0))
	require.Equal(t, "1", autoprobe())
	require.Equal(t, whole, card.Snapshot())
	err = partition(17)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
}
