package generic_test

import (
	"context"
	"encoding/json"
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
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// The serial numbers of two cards of one model.
const (
	serial      = "48-b0-2d-ff-ff-12-34-56"
	otherSerial = "48-b0-2d-ff-ff-65-43-21"
)

// withSerial returns the function with a serial number.
func withSerial(f simulator.Function, number string) simulator.Function {
	f.Serial = number
	return f
}

// fingerprints returns those of what a driver discovers, by identity.
func fingerprints(t *testing.T, driver drivers.Driver) map[string]cyborg.Fingerprint {
	t.Helper()
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	all := map[string]cyborg.Fingerprint{}
	for _, device := range devices {
		all[device.Identity] = device.Fingerprint
	}
	return all
}

// TestFingerprints discovers cards with and without a serial number, and virtual
// functions whose card is not chosen.
func TestFingerprints(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, withSerial(sysfstest.GPU(t, gpu), serial), withSerial(sysfstest.QAT(t, qat), otherSerial))
	host.SetVFs(qat, "2")
	require.Equal(t, map[string]cyborg.Fingerprint{
		gpu: {Model: "10de:20b0 10de:0000", Serial: serial}, qat: {Model: "8086:37c8 8086:0000", Serial: otherSerial},
		passthroughtest.Disk: {Model: "144d:a80a 144d:0000"},
	}, fingerprints(t, simulated(t, host)), "a device of virtual functions is their card")

	driver, err := generic.NewWithKernel(host.Simulator, environment(t, host), map[string]any{"device_spec": `{"product_id": "37c9"}`})
	require.NoError(t, err)
	of := cyborg.Fingerprint{Model: "8086:37c9 8086:0000", Serial: otherSerial}
	require.Equal(t, map[string]cyborg.Fingerprint{"0000:b1:01.0": of, "0000:b1:01.1": of}, fingerprints(t, driver.WithAnswerLimit(passthroughtest.Patience)))
}

// TestSerialOfFunction0: only function 0 of a card of several functions needs to
// have the serial number. The others are known by it, whether function 0 is chosen
// or not, and nothing is done to them on another card.
func TestSerialOfFunction0(t *testing.T) {
	t.Parallel()
	const audio, next = "0000:3b:00.1", "0000:3b:01.1"
	host := passthroughtest.NewHost(t, withSerial(sysfstest.GPU(t, gpu), serial), sysfstest.FPGA(t, audio), sysfstest.FPGA(t, next))
	want := cyborg.Fingerprint{Model: "10ee:5004 10ee:0000", Serial: serial}
	all := fingerprints(t, simulated(t, host))
	require.Equal(t, want, all[audio])
	require.Equal(t, cyborg.Fingerprint{Model: want.Model}, all[next], "its slot has no function 0")

	driver, err := generic.NewWithKernel(host.Simulator, environment(t, host), map[string]any{"device_spec": `{"vendor_id": "10ee"}`})
	require.NoError(t, err)
	require.Equal(t, want, fingerprints(t, driver.WithAnswerLimit(passthroughtest.Patience))[audio])

	b := newBench(t, host, audio)
	require.NoError(t, b.attach(t))
	passthroughtest.Exchange(host, withSerial(sysfstest.GPU(t, gpu), otherSerial))
	before := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, b.detach(t, false))
	err = b.attach(t)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestDetachLeavesAnotherCardOfTheModelAlone exchanges cards that are attached for
// others of the same model, of which somebody has given the same function to VFIO.
func TestDetachLeavesAnotherCardOfTheModelAlone(t *testing.T) {
	t.Parallel()
	for address, card := range map[string]simulator.Function{
		gpu: sysfstest.GPU(t, gpu), "0000:b1:01.1": sysfstest.QAT(t, qat),
	} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			host := passthroughtest.NewHost(t, withSerial(card, serial))
			plugged := func() {
				if card.TotalVFs > 0 {
					host.SetVFs(qat, "2")
				}
			}
			plugged()
			b := newBench(t, host, address)
			require.NoError(t, b.attach(t))

			passthroughtest.Exchange(host, withSerial(card, otherSerial))
			plugged()
			passthroughtest.ToVFIO(t, host, address)
			before := passthroughtest.Snapshot(t, b.Root())
			require.NoError(t, b.detach(t, false))
			require.NoError(t, b.detach(t, true))
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
			err := b.attach(t)
			require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
			require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))

			passthroughtest.Exchange(host, withSerial(card, serial))
			plugged()
			passthroughtest.ToVFIO(t, host, address)
			require.NoError(t, b.detach(t, false))
			require.NotEqual(t, "vfio-pci", b.has(t), "it is the card that was attached")
		})
	}
}

// TestInUseOfACardThatSleeps: a discovery does not wake a card, so it does not see
// that it is another one of the model. Before it is given away, it is asked.
func TestInUseOfACardThatSleeps(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, withSerial(sysfstest.GPU(t, gpu), serial))
	b := newBench(t, host, gpu)
	sleep := func() { host.Set("sys/bus/pci/devices/"+gpu+"/power/runtime_status", "suspended\n") }
	sleep()
	ask := func() error {
		who, err := b.driver.InUse(t.Context(), b.target, b.target.Deployable.Handles[0])
		require.Empty(t, who)
		return err
	}
	require.NoError(t, ask())

	passthroughtest.Exchange(host, withSerial(sysfstest.GPU(t, gpu), otherSerial))
	sleep()
	require.Empty(t, fingerprints(t, b.driver)[gpu].Serial)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(ask()))
	require.NoError(t, b.detach(t, false))
}

// TestFingerprintOfAnotherModel: a virtual function has the same ids as before, and
// its card has not. Nothing of it is attached.
func TestFingerprintOfAnotherModel(t *testing.T) {
	t.Parallel()
	const address = "0000:b1:01.1"
	host := passthroughtest.NewHost(t, sysfstest.QAT(t, qat))
	host.SetVFs(qat, "2")
	b := newBench(t, host, address)
	require.NoError(t, b.attach(t))

	other := sysfstest.QAT(t, qat)
	other.SubsystemProduct = "0001"
	passthroughtest.Exchange(host, other)
	host.SetVFs(qat, "2")
	passthroughtest.ToVFIO(t, host, address)
	require.False(t, b.attached(t))
	before := passthroughtest.Snapshot(t, b.Root())
	require.NoError(t, b.detach(t, false))
	require.Equal(t, before, passthroughtest.Snapshot(t, b.Root()))
}

// TestDetachWithoutSerial detaches a card whose serial number cannot be read any
// more, and one that was discovered by an agent that did not know fingerprints.
func TestDetachWithoutSerial(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bench){
		"unreadable": func(b *bench) { b.Set(configuration(gpu), strings.Repeat("\x01", 64)) },
		"pulled out": func(b *bench) { b.Set(configuration(gpu), strings.Repeat("\xff", 4096)) },
		"unknown":    func(b *bench) { b.target.Device.Fingerprint = cyborg.Fingerprint{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, passthroughtest.NewHost(t, withSerial(sysfstest.GPU(t, gpu), serial)), gpu)
			require.NoError(t, b.attach(t))
			change(b)
			require.True(t, b.attached(t))
			require.NoError(t, b.detach(t, false))
			require.Equal(t, "nvidia", b.has(t))
		})
	}
}

// TestDetachOfWhatDoesNotAnswerInTime: where the kernel does not answer for a card,
// nobody knows which one it is, and nothing is done to it.
func TestDetachOfWhatDoesNotAnswerInTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, passthroughtest.NewHost(t, withSerial(sysfstest.GPU(t, gpu), serial)), gpu)
	require.NoError(t, b.attach(t))
	pipe := filepath.Join(b.Root(), configuration(gpu))
	require.NoError(t, syscall.Unlink(pipe))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()

	err := b.driver.Detach(ctx, drivers.DetachRequest{Target: b.target, Handle: b.target.Deployable.Handles[0], Prior: b.prior()})
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.Equal(t, "vfio-pci", b.has(t))
	require.NoError(t, os.WriteFile(pipe, []byte("\xde\x10\xb5\x20"), 0)) // which ends the process that reads
}

// TestExchangeOnKernel exchanges a card that is attached for one of another maker,
// on the kernel of a machine of tests/hardware. Nobody touches the other card, and
// it is not taken for the one that was attached.
func TestExchangeOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	card := fakebus.Plug(t, fakebus.GPU())
	address := card.At("00.0")
	driver := live(t, card)
	require.Equal(t, map[string]cyborg.Fingerprint{address: {Model: "10de:20b5 10de:1533"}}, fingerprints(t, driver))
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	target, handle := passthroughtest.Choose(address)(t, devices)
	var note json.RawMessage
	attach := drivers.AttachRequest{Target: target, Handle: handle, Note: func(n json.RawMessage) error { note = n; return nil }}
	require.NoError(t, driver.Attach(t.Context(), attach))

	card.Exchange(fakebus.QAT())
	before := card.Snapshot()
	require.Equal(t, "4xxx", fakebus.DriverOf(t, address))
	require.Equal(t, map[string]cyborg.Fingerprint{address: {Model: "8086:4940 8086:0000"}}, fingerprints(t, driver))
	attached, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
	require.NoError(t, err)
	require.False(t, attached)
	_, err = driver.InUse(t.Context(), target, handle)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
	err = driver.Attach(t.Context(), attach)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
	require.NoError(t, driver.Detach(t.Context(), drivers.DetachRequest{Target: target, Handle: handle, Prior: note}))
	require.Equal(t, before, card.Snapshot())
}
