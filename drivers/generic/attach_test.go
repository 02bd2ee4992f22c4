package generic_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
)

// bench is a host with a driver on it and the function that a test works on.
type bench struct {
	*sysfstest.Host
	spec   any // the functions that the driver looks after
	driver *generic.Driver
	target drivers.Target
	holder cyborg.HolderKind
	notes  []json.RawMessage
}

// newBench discovers the function at the address.
func newBench(t *testing.T, host *sysfstest.Host, address string) *bench {
	t.Helper()
	b := &bench{Host: host, spec: "*", holder: cyborg.HolderHost}
	b.restart(t, host.Simulator, "30s")
	devices, err := b.driver.Discover(t.Context())
	require.NoError(t, err)
	b.target, _ = passthroughtest.Choose(address)(t, devices)
	return b
}

// restart makes a new driver on this kernel, as a restarted agent does.
func (b *bench) restart(t *testing.T, kernel sysfs.Kernel, deadline string) {
	t.Helper()
	driver, err := generic.NewWithKernel(kernel, environment(t, b.Host), map[string]any{
		"device_spec": b.spec, "deadline": deadline, "partition": true,
	})
	require.NoError(t, err)
	b.driver = driver.WithAnswerLimit(passthroughtest.Patience)
}

// note stores a note, as the agent's journal does.
func (b *bench) note(note json.RawMessage) error {
	b.notes = append(b.notes, note)
	return nil
}

// prior returns the last note, or nothing.
func (b *bench) prior() json.RawMessage {
	if len(b.notes) == 0 {
		return nil
	}
	return b.notes[len(b.notes)-1]
}

// attach attaches the target's handle with the last note.
func (b *bench) attach(t *testing.T) error {
	t.Helper()
	return b.driver.Attach(t.Context(), drivers.AttachRequest{
		Target: b.target, Handle: b.target.Deployable.Handles[0], Holder: cyborg.Holder{Kind: b.holder}, Prior: b.prior(), Note: b.note,
	})
}

// detach detaches the target's handle with the last note.
func (b *bench) detach(t *testing.T, undo bool) error {
	t.Helper()
	return b.driver.Detach(t.Context(), drivers.DetachRequest{
		Target: b.target, Handle: b.target.Deployable.Handles[0], Holder: cyborg.Holder{Kind: b.holder}, Prior: b.prior(), Undo: undo,
	})
}

// attached tells whether the hardware has the handle attached.
func (b *bench) attached(t *testing.T) bool {
	t.Helper()
	attached, err := b.driver.Attached(t.Context(), drivers.AttachedRequest{Target: b.target, Handle: b.target.Deployable.Handles[0], Holder: b.holder})
	require.NoError(t, err)
	return attached
}

// has returns the kernel driver that has the function.
func (b *bench) has(t *testing.T) string {
	t.Helper()
	return passthroughtest.DriverOf(t, b.Host, b.target.Deployable.Name)
}

// TestAttachRefusedAfterTheHostChanged discovers a GPU that could be attached,
// changes the host so that it no longer can, and then asks for it. The call
// must be rejected, because what was true at discovery does not count.
func TestAttachRefusedAfterTheHostChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address  string
		change   func(t *testing.T, host *sysfstest.Host)
		install  cyborg.ErrorKind // "" where only an attach is refused
		attach   cyborg.ErrorKind
		messages []string
	}{
		"the host's disk": {
			passthroughtest.Disk, func(*testing.T, *sysfstest.Host) {}, cyborg.ErrProtected, cyborg.ErrProtected,
			[]string{passthroughtest.Disk, "the host lives on it", "its disk nvme0n1 is mounted on /"},
		},
		"a port that was set up since": {
			nic, func(_ *testing.T, h *sysfstest.Host) { h.Up("ens1") }, cyborg.ErrProtected, cyborg.ErrProtected, []string{"ens1 is up"},
		},
		"a display that the host boots on since": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Set("sys/bus/pci/devices/"+gpu+"/boot_vga", "1\n") },
			cyborg.ErrProtected, cyborg.ErrProtected,
			[]string{"boots on"},
		},
		"in one group with the disk": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				h.Add(sysfstest.In("7", sysfstest.GPU(t, gpu)), sysfstest.In("7", sysfstest.SSD(t, passthroughtest.Disk, "nvme0n1", "259:0")))
			},
			cyborg.ErrProtected, cyborg.ErrProtected,
			[]string{"IOMMU group 7", passthroughtest.Disk},
		},
		"in one group with another's": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				sound := sysfstest.In("7", sysfstest.GPU(t, "0000:3b:00.1"))
				sound.Class, sound.Driver, sound.Children = 0x040300, "snd_hda_intel", nil
				h.Add(sysfstest.In("7", sysfstest.GPU(t, gpu)), sound)
			},
			cyborg.ErrUnsupported, cyborg.ErrUnsupported,
			[]string{"IOMMU group 7", "0000:3b:00.1 has the driver snd_hda_intel"},
		},
		"without an IOMMU": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				require.NoError(t, os.Remove(filepath.Join(h.Root(), "sys/bus/pci/devices", gpu, "iommu_group")))
			},
			cyborg.ErrUnsupported, cyborg.ErrUnsupported,
			[]string{"IOMMU group"},
		},
		"without VFIO": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				require.NoError(t, os.RemoveAll(filepath.Join(h.Root(), "sys/bus/pci/drivers/vfio-pci")))
			},
			cyborg.ErrUnsupported, cyborg.ErrUnsupported,
			[]string{"no driver vfio-pci"},
		},
		"with virtual functions": {
			qat, func(_ *testing.T, h *sysfstest.Host) { h.SetVFs(qat, "2") }, cyborg.ErrInUse, cyborg.ErrInUse, []string{"2 virtual functions"},
		},
		"gone": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Unplug(gpu) }, cyborg.ErrNotFound, cyborg.ErrNotFound, []string{gpu},
		},
		"another card in its place": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				other := sysfstest.GPU(t, gpu)
				other.Product = "2330"
				passthroughtest.Exchange(h, other)
			},
			cyborg.ErrChanged, cyborg.ErrChanged,
			[]string{"10de:2330", "10de:20b0"},
		},
		"another card of the maker in its place": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				other := sysfstest.GPU(t, gpu)
				other.SubsystemProduct, other.Serial = "1533", serial
				passthroughtest.Exchange(h, other)
			},
			cyborg.ErrChanged, cyborg.ErrChanged,
			[]string{"another card (10de:20b0 10de:1533)", "it was 10de:20b0 10de:0000, serial " + serial},
		},
		"another card of the model in its place": {
			gpu, func(t *testing.T, h *sysfstest.Host) {
				t.Helper()
				other := sysfstest.GPU(t, gpu)
				other.Serial = otherSerial
				passthroughtest.Exchange(h, other)
			},
			cyborg.ErrChanged, cyborg.ErrChanged,
			[]string{"another card (serial " + otherSerial + ")", "it was 10de:20b0 10de:0000, serial " + serial},
		},
		"in use through its driver": {
			gpu, func(_ *testing.T, h *sysfstest.Host) { h.Open(812, "Xorg", "/dev/dri/card1") },
			"", cyborg.ErrInUse,
			[]string{"driver nvidia", "process 812 (Xorg)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := sysfstest.GPU(t, gpu)
			card.Serial = serial
			b := newBench(t, passthroughtest.NewHost(t, card, sysfstest.NIC(t, nic, "ens1"), sysfstest.QAT(t, qat)), c.address)
			c.change(t, b.Host)
			before := passthroughtest.Snapshot(t, b.Root())

			err := b.driver.Install(t.Context(), b.target)
			require.Equal(t, c.install, cyborg.ErrorKindOf(err), err)

			err = b.attach(t)
			require.Equal(t, c.attach, cyborg.ErrorKindOf(err), err)
			for _, message := range c.messages {
				require.ErrorContains(t, err, message)
			}
			require.Empty(t, b.notes, "nothing was to be undone")
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()), "nothing was touched")
		})
	}
}

func TestDevicesOutsideTheSpecAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	driver, err := generic.NewWithKernel(b.Simulator, environment(t, b.Host), map[string]any{"device_spec": `{"vendor_id": "8086"}`})
	require.NoError(t, err)
	b.driver = driver.WithAnswerLimit(passthroughtest.Patience)

	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(b.driver.Install(t.Context(), b.target)))
	err = b.attach(t)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `backend "pci" does not look after `+gpu)
}

// TestDetachAfterTheSpecChanged checks that a changed device_spec does not
// prevent a detach.
func TestDetachAfterTheSpecChanged(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	require.NoError(t, b.attach(t))

	driver, err := generic.NewWithKernel(b.Simulator, environment(t, b.Host), nil)
	require.NoError(t, err)
	b.driver = driver.WithAnswerLimit(passthroughtest.Patience)

	require.True(t, b.attached(t))
	require.NoError(t, b.detach(t, false))
	require.Equal(t, "nvidia", b.has(t))
}

// TestVFIOByHand checks that a function that an operator gave to VFIO stays
// with VFIO after a detach.
func TestVFIOByHand(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	require.NoError(t, b.Simulator.Write("sys/bus/pci/devices/"+gpu+"/driver_override", "vfio-pci"))
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/nvidia/unbind", gpu))
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers_probe", gpu))

	before := passthroughtest.Snapshot(t, b.Root())
	require.True(t, b.attached(t), "the hardware shows it as attached")

	b.Open(4711, "qemu-kvm", passthroughtest.VFIONode(t, b.Host, gpu))
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.attach(t)), "somebody else has it")
	b.End(4711)

	require.NoError(t, b.attach(t))
	b.Open(4712, "qemu-kvm", passthroughtest.VFIONode(t, b.Host, gpu))
	require.NoError(t, b.attach(t), "its holder has it already")
	b.End(4712)

	require.JSONEq(t, `{"driver": "vfio-pci", "override": "vfio-pci"}`, string(b.prior()))
	require.NoError(t, b.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestDetachWithoutNote checks that the kernel chooses the driver where the
// note was lost. An undo without a note has nothing to undo, because the note
// is stored before the first change.
func TestDetachWithoutNote(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	require.NoError(t, b.attach(t))
	b.notes = nil

	require.NoError(t, b.detach(t, true))
	require.Equal(t, "vfio-pci", b.has(t))

	b.Open(4711, "qemu-kvm", passthroughtest.VFIONode(t, b.Host, gpu))
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.detach(t, false)))
	b.End(4711)
	require.NoError(t, b.detach(t, false))
	require.Equal(t, "nvidia", b.has(t))
}

// A boot undoes an attachment, and the handle can be attached again.
func TestRebootDetaches(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	before := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, b.attach(t))
	require.True(t, b.attached(t))

	b.Reboot()
	require.False(t, b.attached(t))
	require.NoError(t, b.detach(t, false), "nothing is left to detach")
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
	require.NoError(t, b.attach(t), "and it can be attached again")
	require.True(t, b.attached(t))
}

// TestDetachLeavesAReplacedCardAlone checks that a card which replaced the
// attached one is not touched.
func TestDetachLeavesAReplacedCardAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	require.NoError(t, b.attach(t))

	other := sysfstest.FPGA(t, gpu)
	b.Unplug(gpu)
	b.Add(other)
	require.NoError(t, b.Simulator.Write("sys/bus/pci/devices/"+gpu+"/driver_override", "vfio-pci"))
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers_probe", gpu))
	before := passthroughtest.Snapshot(t, b.Root())

	require.False(t, b.attached(t))
	require.NoError(t, b.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// An attach loads the VFIO driver's module, and an install does not.
func TestAttachLoadsVFIO(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu))
	require.NoError(t, host.Simulator.AddModule("vfio-pci"))
	b := newBench(t, host, gpu)
	require.NoError(t, b.driver.Install(t.Context(), b.target))
	require.NoDirExists(t, filepath.Join(b.Root(), "sys/bus/pci/drivers/vfio-pci"), "an install only checks")

	require.NoError(t, b.attach(t))
	require.True(t, b.attached(t))
}

// A backend can name the VFIO driver of a vendor.
func TestAnotherVFIODriver(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.NIC(t, nic, "ens1"))
	require.NoError(t, host.Simulator.AddDriver("mlx5-vfio-pci"))
	b := newBench(t, host, nic)

	driver, err := generic.NewWithKernel(host.Simulator, environment(t, host), map[string]any{"device_spec": "*", "vfio_driver": "mlx5-vfio-pci"})
	require.NoError(t, err)
	b.driver = driver.WithAnswerLimit(passthroughtest.Patience)

	require.NoError(t, b.attach(t))
	require.Equal(t, "mlx5-vfio-pci", b.has(t))
	require.True(t, b.attached(t))
	require.NoError(t, b.detach(t, false))
	require.Equal(t, "i40e", b.has(t))
}

// TestHangingAttach checks an attach while a driver does not let go. It fails
// after the deadline and names the driver, and repeating or undoing it starts
// no further access. Once the driver lets go, the undo restores everything.
func TestHangingAttach(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu)), gpu)
	before := passthroughtest.Snapshot(t, b.Root())
	b.restart(t, b.Simulator, "10s") // also for the accesses before the one that hangs
	b.Fault(simulator.Fault{On: "unbind", Subject: gpu, Hang: true})

	err := b.attach(t)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "drivers/nvidia/unbind for "+gpu)
	for _, again := range []error{b.attach(t), b.detach(t, true), b.detach(t, false)} {
		require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(again), again)
		require.ErrorContains(t, again, "drivers/nvidia/unbind for "+gpu+" hangs in the kernel since")
	}

	require.Len(t, b.notes, 1)
	_, err = b.driver.Discover(t.Context())
	require.NoError(t, err, "a discovery does not hang with it")
	require.Equal(t, []string{gpu}, unwell(t, b.driver, "drivers/nvidia/unbind for "+gpu+" hangs in the kernel since"))

	b.ClearFaults()
	require.Eventually(t, func() bool { return b.detach(t, true) == nil }, 5*time.Minute, 20*time.Millisecond)
	require.Empty(t, unwell(t, b.driver, ""))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestAgentDiesAtEachWrite lets the agent die at each write of an attach and of
// a detach. The next agent can complete the step or undo it, and the original
// state is restored.
func TestAgentDiesAtEachWrite(t *testing.T) {
	t.Parallel()
	for address, writes := range map[string]int{gpu: 3, fpga: 2} { // the FPGA has no driver that could be unbound
		for at := 1; at <= writes; at++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/write %d/after %v", address, at, after), func(t *testing.T) {
					t.Parallel()
					newBench(t, passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.FPGA(t, fpga)), address).dieAtWrite(t, at, after)
				})
			}
		}
	}
}

// dieAtWrite lets the agent die at a write of an attach and of a detach, before or
// after the kernel has it.
func (b *bench) dieAtWrite(t *testing.T, at int, after bool) {
	t.Helper()
	before := passthroughtest.Snapshot(t, b.Root())
	die := func(do func() error) {
		t.Helper()
		b.restart(t, &sysfstest.DyingKernel{Kernel: b.Simulator, At: at, After: after}, "30s")
		require.ErrorIs(t, do(), sysfstest.ErrDied)
		b.restart(t, b.Simulator, "30s")
	}
	attach := func() error { return b.attach(t) }
	detach := func() error { return b.detach(t, false) }

	die(attach)
	require.NoError(t, b.detach(t, true))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()), "an undone attach")

	b.notes = nil
	die(attach)
	require.NoError(t, attach())
	require.True(t, b.attached(t))
	require.Len(t, b.notes, 1, "the first note stays: it tells what was there before")

	die(detach)
	require.NoError(t, detach())
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()), "a repeated detach")
}
