package generic_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// What a graphics card has besides the graphics.
const (
	audio = "0000:3b:00.1"
	usb   = "0000:3b:00.2"
	ucsi  = "0000:3b:00.3"
)

// graphics chooses the functions with graphics, and not what goes with them.
const graphics = `{"class": "03"}`

// graphicsCard returns the four functions of a graphics card with a USB-C connector,
// which are in one IOMMU group. The last one has no driver.
func graphicsCard(t *testing.T) []simulator.Function {
	t.Helper()
	xhci, control := sysfstest.Audio(t, usb), sysfstest.Audio(t, ucsi)
	xhci.Product, xhci.Class, xhci.Driver, xhci.Children = "1ad6", 0x0c0330, "xhci_hcd", nil
	control.Product, control.Class, control.Driver, control.Children = "1ad7", 0x0c8000, "", nil

	card := []simulator.Function{sysfstest.GPU(t, gpu), sysfstest.Audio(t, audio), xhci, control}
	for i := range card {
		card[i] = sysfstest.In("7", card[i])
	}
	return card
}

// newCard discovers the graphics of a graphics card, which the holder gets.
func newCard(t *testing.T, holder cyborg.HolderKind, more ...simulator.Function) *bench {
	t.Helper()
	return newCardOf(t, holder, append(graphicsCard(t), more...))
}

// newCardOf does the same on a host with these functions.
func newCardOf(t *testing.T, holder cyborg.HolderKind, functions []simulator.Function) *bench {
	t.Helper()
	b := &bench{Host: passthroughtest.NewHost(t, functions...), spec: graphics, holder: holder}
	b.restart(t, b.Simulator, "30s")
	b.rediscover(t)
	return b
}

// rediscover finds the graphics again.
func (b *bench) rediscover(t *testing.T) {
	t.Helper()
	devices, err := b.driver.Discover(t.Context())
	require.NoError(t, err)
	b.target, _ = passthroughtest.Choose(gpu)(t, devices)
}

// bound returns the drivers that the functions of the card have.
func (b *bench) bound(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, address := range []string{gpu, audio, usb, ucsi} {
		if target, err := os.Readlink(filepath.Join(b.Root(), "sys/bus/pci/devices", address, "driver")); err == nil {
			all[address] = filepath.Base(target)
		}
	}
	return all
}

// The drivers of the card's functions: before an attach, and attached.
var (
	unattached   = map[string]string{gpu: "nvidia", audio: "snd_hda_intel", usb: "xhci_hcd"}
	withHost     = map[string]string{gpu: "vfio-pci", audio: "vfio-pci", usb: "vfio-pci", ucsi: "vfio-pci"}
	withInstance = map[string]string{gpu: "nvidia", audio: "vfio-pci", usb: "vfio-pci", ucsi: "vfio-pci"}
)

// with lists what goes with each handle of the devices that have such.
func with(devices []cyborg.DeviceReport) map[string][]string {
	all := map[string][]string{}
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			for _, handle := range deployable.Handles {
				for _, function := range handle.With {
					all[handle.Identity] = append(all[handle.Identity], function.String())
				}
			}
			if (deployable.Preparation != nil) != (all[deployable.Name] != nil) {
				all[deployable.Name] = []string{fmt.Sprint(deployable.Preparation)}
			}
		}
	}
	return all
}

// TestDiscoverReportsCompanions: what goes with a function is what a graphics card
// brings along, of the same card and the same group, and what nobody else gets.
func TestDiscoverReportsCompanions(t *testing.T) {
	t.Parallel()
	change := func(at int, edit func(f *simulator.Function)) func(card []simulator.Function) []simulator.Function {
		return func(card []simulator.Function) []simulator.Function {
			edit(&card[at])
			return card
		}
	}
	all := map[string][]string{gpu: {audio, usb, ucsi}}

	for name, c := range map[string]struct {
		spec string
		card func(card []simulator.Function) []simulator.Function
		want map[string][]string
	}{
		"a card":                        {graphics, nil, all},
		"what the backend offers":       {`[{"class": "03"}, {"class": "0403"}]`, nil, map[string][]string{gpu: {usb, ucsi}}},
		"everything is offered":         {"*", nil, map[string][]string{}},
		"only the audio is offered":     {`{"class": "0403"}`, nil, map[string][]string{}},
		"in another group":              {graphics, change(1, func(f *simulator.Function) { f.IOMMUGroup = "8" }), map[string][]string{gpu: {usb, ucsi}}},
		"of another kind":               {graphics, change(1, func(f *simulator.Function) { f.Class = 0x020000 }), map[string][]string{gpu: {usb, ucsi}}},
		"without an IOMMU":              {graphics, ungrouped, map[string][]string{}},
		"of a network card":             {`{"class": "02"}`, change(0, func(f *simulator.Function) { f.Class = 0x020000 }), map[string][]string{}},
		"beside a network card":         {`[{"class": "02"}, {"class": "03"}]`, beside(0x020000), map[string][]string{usb: {audio, ucsi}}},
		"of a card that only computes":  {`{"class": "12"}`, change(0, func(f *simulator.Function) { f.Class = 0x120000 }), all},
		"of another card":               {graphics, change(1, func(f *simulator.Function) { f.Address.Device = 1 }), map[string][]string{gpu: {usb, ucsi}}},
		"with the first of two":         {graphics, change(3, func(f *simulator.Function) { f.Class = 0x030000 }), map[string][]string{gpu: {audio, usb}}},
		"with one of two in its group":  {graphics, change(3, func(f *simulator.Function) { f.Class, f.IOMMUGroup = 0x030000, "8" }), map[string][]string{gpu: {audio, usb}}},
		"with the only one that counts": {`{"address": "0000:3b:00.3"}`, change(3, func(f *simulator.Function) { f.Class = 0x030000 }), map[string][]string{ucsi: {audio, usb}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := graphicsCard(t)
			if c.card != nil {
				card = c.card(card)
			}
			require.Equal(t, c.want, with(discover(t, passthroughtest.NewHost(t, card...), c.spec)))
		})
	}
}

// beside has a function of this class first on the card, and the graphics in the place of USB.
func beside(class uint32) func(card []simulator.Function) []simulator.Function {
	return func(card []simulator.Function) []simulator.Function {
		card[0].Class, card[2].Class = class, 0x030000
		return card
	}
}

// ungrouped returns the functions of a machine without an IOMMU.
func ungrouped(card []simulator.Function) []simulator.Function {
	for i := range card {
		card[i].IOMMUGroup = ""
	}
	return card
}

// TestDiscoverLeavesProtectedCompanions: what the host lives on goes with nothing.
// Nothing of the card can be had then, because VFIO takes whole groups.
func TestDiscoverLeavesProtectedCompanions(t *testing.T) {
	t.Parallel()
	card := graphicsCard(t)
	card[2].Children = []simulator.Child{{Class: "block", Name: "sda", Number: "8:0", Node: "/dev/sda"}}
	host := passthroughtest.NewHost(t, card...)
	host.Mount("8:0", "/dev/sda", "/srv")

	devices := discover(t, host, graphics)
	require.Empty(t, with(devices))
	require.Contains(t, devices[0].Deployables[0].Protected, "0000:3b:00.2, which is protected: its disk sda is mounted on /srv")
}

// TestCompanionsGoAlong: for the host all functions of the card go to VFIO, for
// anybody else only those that the hypervisor does not bind. Each gets back what it had.
func TestCompanionsGoAlong(t *testing.T) {
	t.Parallel()
	for holder, want := range map[cyborg.HolderKind]map[string]string{
		cyborg.HolderHost: withHost, cyborg.HolderInstance: withInstance, cyborg.HolderService: withInstance,
	} {
		t.Run(string(holder), func(t *testing.T) {
			t.Parallel()
			b := newCard(t, holder)
			before, reported := passthroughtest.Snapshot(t, b.Root()), b.target
			require.False(t, b.attached(t))

			require.NoError(t, b.attach(t))
			require.Equal(t, want, b.bound(t))
			require.True(t, b.attached(t))
			b.rediscover(t)
			require.Equal(t, reported, b.target, "an attach does not look like another card")

			require.NoError(t, b.attach(t))
			require.Len(t, b.notes, 1)
			require.NoError(t, b.detach(t, false))
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

			require.NoError(t, b.attach(t))
			b.Reboot()
			require.False(t, b.attached(t))
			require.NoError(t, b.detach(t, false))
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
		})
	}
}

// TestCompanionsStayWithTheHolder: while a virtual machine has the card, nothing of it is
// taken, whoever binds the graphics.
func TestCompanionsStayWithTheHolder(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.HolderKind{cyborg.HolderHost, cyborg.HolderInstance} {
		for _, device := range []string{"", gpu, audio} {
			t.Run(string(holder)+" "+device, func(t *testing.T) {
				t.Parallel()
				b := newCard(t, holder)
				require.NoError(t, b.attach(t))
				if holder == cyborg.HolderInstance { // as libvirt does
					b.giveToVFIO(t, gpu, "nvidia")
				}

				b.Open(4711, "qemu-kvm", b.vfioDevice(t, device))
				held := passthroughtest.Snapshot(t, b.Root())
				for _, undo := range []bool{false, true} {
					require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.detach(t, undo)))
				}
				require.NoError(t, b.attach(t), "its holder has it already")
				require.Contains(t, b.user(t), "process 4711 (qemu-kvm)")
				require.Equal(t, held, passthroughtest.Snapshot(t, b.Root()))

				b.End(4711)
				require.NoError(t, b.detach(t, false))
				require.Equal(t, "snd_hda_intel", b.bound(t)[audio])
			})
		}
	}
}

// giveToVFIO has somebody else give a function to vfio-pci.
func (b *bench) giveToVFIO(t *testing.T, address, driver string) {
	t.Helper()
	require.NoError(t, b.Simulator.Write("sys/bus/pci/devices/"+address+"/driver_override", "vfio-pci"))
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/"+driver+"/unbind", address))
	require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers_probe", address))
}

// TestGuestHasTheCardAlready: after a boot, somebody else has given the card to a guest in
// the state that an attach leaves behind, or in one that VFIO can use as well. The notes
// are of before the boot.
func TestGuestHasTheCardAlready(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(b *bench){
		"on VFIO": func(b *bench) { b.giveToVFIO(t, audio, "snd_hda_intel") },
		"without a driver": func(b *bench) {
			require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/snd_hda_intel/unbind", audio))
		},
		"on pci-stub": func(b *bench) {
			require.NoError(t, b.Simulator.AddDriver("pci-stub"))
			require.NoError(t, b.Simulator.Write("sys/bus/pci/devices/"+audio+"/driver_override", "pci-stub"))
			require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/snd_hda_intel/unbind", audio))
			require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers_probe", audio))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCardOf(t, cyborg.HolderInstance, graphicsCard(t)[:2])
			b.giveToVFIO(t, gpu, "nvidia")
			edit(b)
			b.Open(4711, "qemu-kvm", b.vfioDevice(t, ""))
			held := passthroughtest.Snapshot(t, b.Root())
			require.True(t, b.attached(t))
			require.NoError(t, b.attach(t))
			require.Equal(t, held, passthroughtest.Snapshot(t, b.Root()))
			require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.detach(t, false)))

			b.End(4711)
			require.NoError(t, b.attach(t))
			require.Equal(t, "vfio-pci", b.bound(t)[audio])
		})
	}
}

// TestGuestHasAPartOfTheCard: what VFIO cannot use as it is, and what somebody else uses,
// is not taken from anybody.
func TestGuestHasAPartOfTheCard(t *testing.T) {
	t.Parallel()
	for given, driver := range map[string]string{gpu: "nvidia", audio: "snd_hda_intel"} {
		b := newCardOf(t, cyborg.HolderInstance, graphicsCard(t)[:2])
		b.giveToVFIO(t, given, driver)
		b.Open(4711, "qemu-kvm", b.vfioDevice(t, ""))
		b.Open(812, "pipewire", "/dev/snd/controlC1")
		held := passthroughtest.Snapshot(t, b.Root())
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.attach(t)))
		require.Equal(t, held, passthroughtest.Snapshot(t, b.Root()))
	}
}

// TestAttachedWithoutDriversOfCompanions: companions without a driver are no obstacle to
// VFIO, so nothing is missing of the card that an earlier release has attached to its host.
func TestAttachedWithoutDriversOfCompanions(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.HolderKind{cyborg.HolderHost, cyborg.HolderInstance} {
		card := graphicsCard(t)
		b := newCardOf(t, holder, []simulator.Function{card[0], card[3]})
		b.giveToVFIO(t, gpu, "nvidia")
		require.True(t, b.attached(t))
		require.NoError(t, b.attach(t))
		require.Equal(t, map[string]string{gpu: "vfio-pci", ucsi: "vfio-pci"}, b.bound(t), "no driver takes it later")
	}
}

// TestKeyboardAtTheCard: who types at the connector of a graphics card uses it, although no
// process has to have the keyboard open.
func TestKeyboardAtTheCard(t *testing.T) {
	t.Parallel()
	card := graphicsCard(t)
	card[2].Children = []simulator.Child{{Class: "input", Name: "input5"}}
	b := newCard(t, cyborg.HolderInstance)
	require.Empty(t, b.user(t))
	b = newCardOf(t, cyborg.HolderInstance, card)
	before := passthroughtest.Snapshot(t, b.Root())
	require.Equal(t, usb+", which goes with it: the input device input5 is connected to it", b.user(t))
	err := b.attach(t)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "through its driver xhci_hcd: the input device input5")
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// vfioDevice returns the node of VFIO of a function, or of the card's group.
func (b *bench) vfioDevice(t *testing.T, address string) string {
	t.Helper()
	if address == "" {
		return "/dev/vfio/7"
	}
	nodes, err := filepath.Glob(filepath.Join(b.Root(), "sys/bus/pci/devices", address, "vfio-dev/*"))
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	return "/dev/vfio/devices/" + filepath.Base(nodes[0])
}

// user says who uses the card.
func (b *bench) user(t *testing.T) string {
	t.Helper()
	user, err := b.driver.InUse(t.Context(), b.target, b.target.Deployable.Handles[0])
	require.NoError(t, err)
	return user
}

// TestCompanionInUse: who uses a companion uses the card.
func TestCompanionInUse(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.HolderKind{cyborg.HolderHost, cyborg.HolderInstance} {
		b := newCard(t, holder)
		b.Open(812, "pipewire", "/dev/snd/controlC1")
		before := passthroughtest.Snapshot(t, b.Root())
		require.Equal(t, audio+", which goes with it: process 812 (pipewire) has /dev/snd/controlC1 open", b.user(t))

		err := b.attach(t)
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), err)
		require.ErrorContains(t, err, audio+", which goes with "+gpu+", is in use through its driver snd_hda_intel: process 812 (pipewire)")
		require.Empty(t, b.notes)
		require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

		b.End(812)
		require.Empty(t, b.user(t))
		require.NoError(t, b.attach(t))
	}
}

// TestTwoCardsOfOneGroup: two graphics cards behind a switch that does not isolate them. What
// goes with the one is no obstacle to the other, as far as the backend offers both.
func TestTwoCardsOfOneGroup(t *testing.T) {
	t.Parallel()
	const second = "0000:3c:00.1"
	b := newCardOf(t, cyborg.HolderInstance, append(graphicsCard(t)[:2],
		sysfstest.In("7", withoutDriver(sysfstest.GPU(t, "0000:3c:00.0"))), sysfstest.In("7", withoutChildren(sysfstest.Audio(t, second)))))
	require.NoError(t, b.attach(t))
	require.Equal(t, map[string]string{gpu: "nvidia", audio: "vfio-pci"}, b.bound(t))

	b.spec = `{"address": "` + gpu + `"}`
	b.restart(t, b.Simulator, "30s")
	err := b.attach(t)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, second+" has the driver snd_hda_intel; VFIO")
}

// withoutDriver returns the function as one that no driver has.
func withoutDriver(f simulator.Function) simulator.Function {
	f.Driver = ""
	return withoutChildren(f)
}

// withoutChildren returns the function without the devices that its driver makes, whose
// names another one of its kind has.
func withoutChildren(f simulator.Function) simulator.Function {
	f.Children = nil
	return f
}

// TestOtherSiblingsAreRefused: what is no companion must have no driver.
func TestOtherSiblingsAreRefused(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.HolderKind{cyborg.HolderHost, cyborg.HolderInstance} {
		b := newCard(t, holder, sysfstest.In("7", sysfstest.QAT(t, qat)))
		err := b.attach(t)
		require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
		require.ErrorContains(t, err, "functions that the host uses: "+qat+" has the driver c6xx; VFIO")
		require.Empty(t, b.notes)
	}
}

// TestHangingCompanion: the kernel hangs with a companion, which counts for the card.
func TestHangingCompanion(t *testing.T) {
	t.Parallel()
	b := newCard(t, cyborg.HolderInstance)
	before := passthroughtest.Snapshot(t, b.Root())
	b.restart(t, b.Simulator, "10s")
	b.Fault(simulator.Fault{On: "unbind", Subject: audio, Hang: true})
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(b.attach(t)))

	_, inUse := b.driver.InUse(t.Context(), b.target, b.target.Deployable.Handles[0])
	for _, again := range []error{b.attach(t), b.detach(t, true), b.detach(t, false), inUse} {
		require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(again), again)
		require.ErrorContains(t, again, "drivers/snd_hda_intel/unbind for "+audio+" hangs in the kernel since")
	}
	_, err := b.driver.Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{gpu}, unwell(t, b.driver, "drivers/snd_hda_intel/unbind for "+audio+" hangs in the kernel since"))

	b.ClearFaults()
	require.Eventually(t, func() bool { return b.detach(t, true) == nil }, 5*time.Minute, 20*time.Millisecond)
	require.Empty(t, unwell(t, b.driver, ""))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestAgentDiesAtEachWriteOfCompanions lets the agent die at each write for a card with
// two companions, one of which has no driver.
func TestAgentDiesAtEachWriteOfCompanions(t *testing.T) {
	t.Parallel()
	for holder, writes := range map[cyborg.HolderKind]int{cyborg.HolderHost: 8, cyborg.HolderInstance: 5} {
		for at := 1; at <= writes; at++ {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/write %d/after %v", holder, at, after), func(t *testing.T) {
					t.Parallel()
					newCardOf(t, holder, slices.Delete(graphicsCard(t), 2, 3)).dieAtWrite(t, at, after)
				})
			}
		}
	}
}

// TestNoteOfEarlierRelease: an earlier release has attached the card, whose companions
// had no driver then, and its note has the function only. The function gets back what it
// had, and the companions stay as they are, until an attach takes them and notes that.
func TestNoteOfEarlierRelease(t *testing.T) {
	t.Parallel()
	b := newCard(t, cyborg.HolderHost)
	for address, driver := range map[string]string{audio: "snd_hda_intel", usb: "xhci_hcd"} {
		require.NoError(t, b.Simulator.Write("sys/bus/pci/drivers/"+driver+"/unbind", address))
	}
	before := passthroughtest.Snapshot(t, b.Root())
	earlier := func() {
		t.Helper()
		b.notes = nil
		require.NoError(t, b.note([]byte(`{"driver": "nvidia", "override": ""}`)))
		b.giveToVFIO(t, gpu, "nvidia")
	}

	earlier()
	require.NoError(t, b.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

	earlier()
	require.True(t, b.attached(t), "VFIO can use the group")
	b.Open(4711, "qemu-kvm", b.vfioDevice(t, gpu))
	held := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, b.attach(t))
	require.Equal(t, held, passthroughtest.Snapshot(t, b.Root()), "somebody has the group")
	b.End(4711)

	require.NoError(t, b.attach(t))
	require.Equal(t, withHost, b.bound(t))
	require.JSONEq(t, `{"driver": "nvidia", "override": "", "companions": {
		"`+audio+`": {"driver": "", "override": ""}, "`+usb+`": {"driver": "", "override": ""}, "`+ucsi+`": {"driver": "", "override": ""}}}`, string(b.prior()))
	b.Open(4711, "qemu-kvm", b.vfioDevice(t, gpu))
	require.NoError(t, b.attach(t))
	b.End(4711)
	require.NoError(t, b.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestDetachCompanionsWithoutNote: without a note the kernel chooses the drivers, of
// what an attach for the holder had given to VFIO.
func TestDetachCompanionsWithoutNote(t *testing.T) {
	t.Parallel()
	for _, holder := range []cyborg.HolderKind{cyborg.HolderHost, cyborg.HolderInstance} {
		b := newCard(t, holder)
		before := passthroughtest.Snapshot(t, b.Root())
		require.NoError(t, b.attach(t))
		attached := b.bound(t)

		b.notes = nil
		require.NoError(t, b.detach(t, true))
		require.Equal(t, attached, b.bound(t), "an undo without a note has nothing to undo")
		require.NoError(t, b.detach(t, false))
		require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
	}
}

// TestDetachOfAPartOfTheCard: what was taken off the bus alone does not keep the rest.
func TestDetachOfAPartOfTheCard(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{gpu, audio} {
		b := newCard(t, cyborg.HolderHost)
		require.NoError(t, b.attach(t))
		b.Unplug(gone)
		b.Open(4711, "qemu-kvm", "/dev/vfio/7")
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(b.detach(t, false)))
		b.End(4711)
		require.NoError(t, b.detach(t, false))

		b.Plug(gone)
		require.Equal(t, unattached, b.bound(t))
		require.False(t, b.attached(t))
	}
}

// TestCompanionsNeedVFIO: a card with another driver of VFIO needs vfio-pci, too.
func TestCompanionsNeedVFIO(t *testing.T) {
	t.Parallel()
	b := newCard(t, cyborg.HolderHost)
	require.NoError(t, b.Simulator.AddDriver("nvgrace-gpu-vfio-pci"))
	driver, err := generic.NewWithKernel(b.Simulator, environment(t, b.Host), map[string]any{"device_spec": graphics, "vfio_driver": "nvgrace-gpu-vfio-pci"})
	require.NoError(t, err)
	b.driver = driver.WithAnswerLimit(passthroughtest.Patience)
	require.NoError(t, b.attach(t))
	require.Equal(t, map[string]string{gpu: "nvgrace-gpu-vfio-pci", audio: "vfio-pci", usb: "vfio-pci", ucsi: "vfio-pci"}, b.bound(t))
	require.NoError(t, b.detach(t, false))
	require.Equal(t, unattached, b.bound(t))

	require.NoError(t, os.RemoveAll(filepath.Join(b.Root(), "sys/bus/pci/drivers/vfio-pci")))
	err = b.driver.Install(t.Context(), b.target)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "no driver vfio-pci, which must have what goes with "+gpu)
}
