package fake_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// optionNames reads the options' names from the message about an unknown one.
func optionNames(t *testing.T, err error) []string {
	t.Helper()
	_, list, found := strings.Cut(err.Error(), "the options are ")
	require.True(t, found)
	return strings.Split(list, ", ")
}

// full is a driver with every capability.
type full interface {
	drivers.Driver
	drivers.Installer
	drivers.Attacher
	drivers.Programmer
	drivers.Cleaner
	drivers.Partitioner
	drivers.Users
	drivers.Meter
	drivers.HealthChecker
	drivers.Watcher
}

// target returns the park's first deployable and its first handle.
func (p *park) target(t *testing.T) (full, drivers.Target, cyborg.HandleReport) {
	t.Helper()
	device := p.discover(t)[0]
	target := drivers.Target{Device: device, Deployable: device.Deployables[0]}
	return p.driver.(full), target, target.Deployable.Handles[0]
}

// attach is a request without a journal.
func attach(target drivers.Target, handle cyborg.HandleReport) drivers.AttachRequest {
	return drivers.AttachRequest{Target: target, Handle: handle, Note: forget}
}

// detach is a request without a note.
func detach(target drivers.Target, handle cyborg.HandleReport) drivers.DetachRequest {
	return drivers.DetachRequest{Target: target, Handle: handle}
}

// attach attaches the park's first handle.
func (p *park) attach(t *testing.T) (full, drivers.Target, cyborg.HandleReport) {
	t.Helper()
	driver, target, handle := p.target(t)
	require.NoError(t, driver.Install(t.Context(), target))
	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
	return driver, target, handle
}

// edit replaces text in the first card's file, as someone with an editor does.
func (p *park) edit(t *testing.T, old, replacement string) {
	t.Helper()
	path := filepath.Join(p.dir, p.identities(t)[0]+".json")
	before, err := os.ReadFile(path)
	require.NoError(t, err)

	after := strings.Replace(string(before), old, replacement, 1)
	require.NotEqual(t, string(before), after)
	require.NoError(t, os.WriteFile(path, []byte(after), 0o600))
}

// A running driver follows what somebody writes into a card's file.
func TestStateIsEditedByHand(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	driver, target, handle := p.attach(t)

	p.edit(t, `"in_use_by": ""`, `"in_use_by": "qemu 4711"`)
	by, err := driver.InUse(t.Context(), target, handle)
	require.NoError(t, err)
	require.Equal(t, "qemu 4711", by)
	err = driver.Detach(t.Context(), detach(target, handle))
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "qemu 4711")
	p.edit(t, `"qemu 4711"`, `""`)

	p.edit(t, `"fail": {}`, `"fail": {"detach": 1}`)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(driver.Detach(t.Context(), detach(target, handle))))
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))

	p.edit(t, `"vanished": false`, `"vanished": true`)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	require.Empty(t, devices)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(driver.Attach(t.Context(), attach(target, handle))))
	_, err = driver.Metrics(t.Context(), target.Device)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
}

func TestStateMistakesAreReported(t *testing.T) {
	t.Parallel()

	for _, edit := range []struct{ old, replacement, message string }{
		{`"vanished"`, `"vanishd"`, "vanishd"},
		{`"vanished"`, `"product": "FA11", "vanished"`, `"FA11" is no product id`},
		{`"vanished"`, `"layout": {"third": 1}, "vanished"`, `1 parts of kind "third"`},
		{`"vanished"`, `"layout": {"half": 1, "quarter": 3}, "vanished"`, "takes 5 units"},
		{`"vanished"`, `"fewer": -1, "vanished"`, "-1 is not how often"},
		{`"fail": {}`, `"fail": {"atach": 1}`, `no step "atach"`},
		{`"fail": {}`, `"fail": {"attach": 0}`, "0 is not how often"},
		{`"fail": {}`, `"fail": {"attach": {"kind": "bad"}}`, `no error kind "bad"`},
		{`"latency": {}`, `"latency": {"explode": "1s"}`, `no step "explode"`},
		{`"latency": {}`, `"latency": {"attach": "long"}`, `"long" is not how long`},
		{`"latency": {}`, `"latency": {"attach": "-1s"}`, `"-1s" is not how long`},
	} {
		t.Run(edit.message, func(t *testing.T) {
			t.Parallel()
			p := newPark(t, nil)
			p.edit(t, edit.old, edit.replacement)

			_, err := p.driver.Discover(t.Context())
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, "00fa:01:00.0.json")
			require.ErrorContains(t, err, edit.message)
			require.NotEmpty(t, cyborg.AsError(err).Hint)

			p.edit(t, edit.replacement, edit.old)
			p.discover(t)
		})
	}
}

// TestIncompleteStateFile reads a file while somebody writes it in place. The
// driver waits for the rest, but not for ever.
func TestIncompleteStateFile(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	path := filepath.Join(p.dir, "00fa:01:00.0.json")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(path, whole[:len(whole)/2], 0o600))
	_, err = p.driver.Discover(t.Context())
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	answered := make(chan error, 1)
	go func() {
		_, err := p.driver.Discover(t.Context())
		for cyborg.ErrorKindOf(err) == cyborg.ErrInvalid { // the writer had no turn while the driver waited
			_, err = p.driver.Discover(t.Context())
		}
		answered <- err
	}()
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	require.NoError(t, <-answered)
}

func TestStateOfDeletedFileIsNew(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	driver, target, handle := p.attach(t)
	require.NoError(t, os.Remove(filepath.Join(p.dir, target.Device.Identity+".json")))

	held, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
	require.NoError(t, err)
	require.False(t, held)
	err = driver.Attach(t.Context(), attach(target, handle))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "it is not installed")
	require.Contains(t, cyborg.AsError(err).Hint, "Retire", "in the records it is ready, and making it ready is refused")
	p.attach(t)
}

// TestStateIsLostWithPower boots the host. An FPGA loses its image and its
// attachments; a GPU keeps its firmware.
func TestStateIsLostWithPower(t *testing.T) {
	t.Parallel()

	for kind, keeps := range map[cyborg.DeviceType]bool{cyborg.DeviceTypeFPGA: false, cyborg.DeviceTypeGPU: true} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			boot := filepath.Join(t.TempDir(), "boot_id")
			require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
			p := newPark(t, map[string]any{"park": "1x" + string(kind), "boot_id_file": boot})
			driver, target, handle := p.attach(t)
			path, image := stage(t, fake.MakeImage(kind, "aes", []byte("payload")))
			require.NoError(t, driver.Program(t.Context(), drivers.ProgramRequest{Target: target, Path: path, Image: image, Progress: quiet}))
			require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu"))

			require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
			for range 2 { // before the card is written and after
				held, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
				require.NoError(t, err)
				require.False(t, held)
				by, err := driver.InUse(t.Context(), target, handle)
				require.NoError(t, err)
				require.Empty(t, by)
				bitstream := p.discover(t)[0].Deployables[0].BitstreamID
				require.Equal(t, keeps, bitstream == image.SHA256, "image after the boot: %q", bitstream)
				require.NoError(t, driver.Uninstall(t.Context(), target), "and it is still installed")
				require.NoError(t, driver.Install(t.Context(), target))
			}

			require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
		})
	}
}

// A card that was pulled out and put back has nothing attached.
func TestReturnedCardIsDetached(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	driver, target, handle := p.attach(t)
	require.NoError(t, p.bench.Vanish(t.Context(), target.Device.Identity))
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(driver.Install(t.Context(), target)))
	require.NoError(t, p.bench.Return(t.Context(), target.Device.Identity))

	held, err := driver.Attached(t.Context(), drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost})
	require.NoError(t, err)
	require.False(t, held)
	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
}

// TestExchangedCards: another card in a card's place has its identity and nothing
// else of it, and there is nothing to undo on it. The former card may come back.
func TestExchangedCards(t *testing.T) {
	t.Parallel()
	p := newPark(t, nil)
	driver, target, handle := p.attach(t)
	was := target.Device.Fingerprint
	require.Equal(t, "abcd:fa01", was.Model)
	require.NotEmpty(t, was.Serial)

	require.NoError(t, p.bench.Exchange(t.Context(), target.Device.Identity, "fa11", "2"))
	now := p.discover(t)[0]
	require.Equal(t, cyborg.Fingerprint{Model: "abcd:fa11", Serial: "2"}, now.Fingerprint)
	require.Equal(t, target.Device.Identity, now.Identity)
	require.Equal(t, "fa11", now.Deployables[0].Specs.ProductID)

	require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu"))
	_, err := driver.InUse(t.Context(), target, handle)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
	path, image := stage(t, fake.MakeImage(cyborg.DeviceTypeFPGA, "aes", []byte("payload")))
	err = driver.Program(t.Context(), drivers.ProgramRequest{Target: target, Path: path, Image: image, Progress: quiet})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), err)
	require.Empty(t, p.card(t).Deployables["r0"].BitstreamID)

	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(p.bench.Exchange(t.Context(), target.Device.Identity, "fa1", "")))
	require.NoError(t, p.bench.Exchange(t.Context(), target.Device.Identity, "", ""))
	require.Equal(t, was, p.discover(t)[0].Fingerprint)
}

// TestExchangeOption: the options put another card in once. With other options, the
// park's card is back, and with the same ones nothing happens at a restart.
func TestExchangeOption(t *testing.T) {
	t.Parallel()
	options := map[string]any{"park": "2xfpga", "exchange": []any{map[string]any{"card": "00fa:01:00.0", "serial": "2"}}}
	p := newPark(t, options)
	_, target, _ := p.attach(t)
	require.Equal(t, cyborg.Fingerprint{Model: "abcd:fa01", Serial: "2"}, target.Device.Fingerprint)

	p.driver = p.restart(t)
	require.True(t, p.card(t).Deployables["r0"].Handles["00fa:01:00.0"].Attached)
	require.NotEqual(t, "2", p.discover(t)[1].Fingerprint.Serial)

	driver, err := fake.New(p.environment(), map[string]any{"park": "2xfpga"})
	require.NoError(t, err)
	p.driver = driver
	require.NotEqual(t, "2", p.discover(t)[0].Fingerprint.Serial)
	require.False(t, p.card(t).Deployables["r0"].Installed)
}

func TestBenchReadsAndChangesCards(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	_, _, handle := p.attach(t)
	card, err := p.bench.Card(t.Context(), "00fa:01:00.0")
	require.NoError(t, err)
	require.True(t, card.Deployables["r0"].Installed)
	require.True(t, card.Deployables["r0"].Handles[handle.Identity].Attached)
	require.Regexp(t, `^[0-9a-f-]{36}$`, card.BootID, "this machine's boot")

	_, err = p.bench.Card(t.Context(), "00fa:09:00.0")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	_, err = p.bench.Card(t.Context(), "../../etc/passwd")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(p.bench.Vanish(t.Context(), "a/b")))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(p.bench.Vanish(t.Context(), "00fa:09:00.0")))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(p.bench.Use(t.Context(), "00fa:01:00.0", "00fa:01:00.7", "qemu")))
}

func TestUnknownTargets(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	driver, target, handle := p.target(t)
	elsewhere, other := target, handle
	elsewhere.Deployable.Name = "fake_fpga_00fa_01_00_0_r9"
	other.Identity = "00fa:01:00.7"

	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(driver.Install(t.Context(), elsewhere)))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(driver.Attach(t.Context(), attach(target, other))))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(driver.Detach(t.Context(), detach(elsewhere, handle))))
	_, err := driver.InUse(t.Context(), target, other)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

func TestStepsAreRefusedOutOfOrder(t *testing.T) {
	t.Parallel()

	p := newPark(t, nil)
	driver, target, handle := p.target(t)
	err := driver.Attach(t.Context(), attach(target, handle))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "what is not installed cannot be attached")

	p.attach(t)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(driver.Uninstall(t.Context(), target)), "what is attached cannot be uninstalled")
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	require.NoError(t, driver.Uninstall(t.Context(), target))
}

// quiet drops the progress of a program.
func quiet(int, string) {}

// forget drops a note, as an agent without a journal does.
func forget(json.RawMessage) error { return nil }
