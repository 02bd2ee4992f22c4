package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// gadget is a driver whose discovery and watcher are controlled by a test.
type gadget struct {
	mu       sync.Mutex
	devices  []cyborg.DeviceReport
	failure  error
	gate     chan struct{} // if set, a discovery waits for it after it has looked
	deaf     bool          // the discovery ignores its context while it waits
	looks    int
	watching int
	changed  func()
	watchErr error
}

// set changes the gadget under its lock.
func (g *gadget) set(change func(g *gadget)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g)
}

// count returns how many discoveries have begun.
func (g *gadget) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.looks
}

// watchers returns how many calls of Watch are running.
func (g *gadget) watchers() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.watching
}

// say reports a change to the watcher's callback.
func (g *gadget) say() {
	g.mu.Lock()
	changed := g.changed
	g.mu.Unlock()
	changed()
}

func (g *gadget) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	g.mu.Lock()
	g.looks++
	devices, failure, gate, deaf := g.devices, g.failure, g.gate, g.deaf
	g.mu.Unlock()

	if gate != nil {
		if deaf {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return devices, failure
}

func (g *gadget) Watch(ctx context.Context, changed func()) error {
	g.set(func(g *gadget) { g.watching++; g.changed = changed })
	defer g.set(func(g *gadget) { g.watching-- })

	g.mu.Lock()
	failure := g.watchErr
	g.mu.Unlock()
	if failure != nil {
		return failure
	}

	<-ctx.Done()
	return nil
}

// inspector is a gadget that can look at one device.
type inspector struct{ *gadget }

func (i inspector) Inspect(_ context.Context, identity string) (cyborg.DeviceReport, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, device := range i.devices {
		if device.Identity == identity {
			return device, nil
		}
	}
	return cyborg.DeviceReport{}, cyborg.Errorf(cyborg.ErrNotFound, "device %s is gone", identity)
}

// device is a card with one deployable and one handle, loaded with an image.
func device(identity, image string) cyborg.DeviceReport {
	return cyborg.DeviceReport{Identity: identity, Type: cyborg.DeviceTypeFPGA, Deployables: []cyborg.DeployableReport{{
		Name: "part_" + identity, BitstreamID: image,
		Handles: []cyborg.HandleReport{{Kind: cyborg.HandlePCI, Identity: identity}},
	}}}
}

// rig is an inventory over gadgets, one for each backend.
type rig struct {
	dir     string
	journal *journal.Journal
	gadgets map[string]*gadget
	made    func(name string) error // its error makes the construction of the backend's driver fail
	inspect bool                    // the drivers can look at one device
	// whitelist reads the file of Nova's whitelist; nil where the host has none.
	whitelist func() cyborg.WhitelistFile
	*inventory.Inventory
}

// newRig opens an inventory with one enabled backend for each gadget.
func newRig(t *testing.T, gadgets map[string]*gadget) *rig {
	t.Helper()
	r := &rig{dir: t.TempDir(), gadgets: gadgets, made: func(string) error { return nil }}
	r.open(t)
	return r
}

// open opens the inventory on the rig's directory, as a new process does.
func (r *rig) open(t *testing.T) {
	t.Helper()
	j, err := journal.Open(r.dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	r.journal = j

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("gadget", func(env drivers.Environment, _ map[string]any) (drivers.Driver, error) {
		if err := r.made(env.Backend); err != nil {
			return nil, err
		}
		if r.inspect {
			return inspector{r.gadgets[env.Backend]}, nil
		}
		return r.gadgets[env.Backend], nil
	}))

	config := inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: r.dir, ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Minute,
		Whitelist: r.whitelist,
	}
	for name := range r.gadgets {
		config.Backends = append(config.Backends, inventory.Setting{Name: name, Driver: "gadget", Enabled: true})
	}

	r.Inventory, err = inventory.Open(config, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
}

// states returns the state and the error of each backend.
func (r *rig) states() map[string]string {
	states := map[string]string{}
	for _, b := range r.Content().Backends {
		states[b.Name] = string(b.State) + " " + b.Error
	}
	return states
}

// image returns the image that the inventory reports for a device.
func (r *rig) image(identity string) string {
	for _, b := range r.Content().Backends {
		for _, d := range b.Devices {
			if d.Identity == identity {
				return d.Deployables[0].BitstreamID
			}
		}
	}
	return "nothing there"
}

// A scan that looked at the hardware before a change, and ends after it, must
// not overwrite what was observed after the change.
func TestScanDoesNotOverwriteAnObservation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gadget{devices: []cyborg.DeviceReport{device("a", "old"), device("b", "old")}}
		r := newRig(t, map[string]*gadget{"x": g})
		r.Scan(t.Context())

		gate := make(chan struct{})
		g.set(func(g *gadget) { g.gate = gate })
		scanned := make(chan struct{})
		go func() {
			r.Scan(t.Context())
			close(scanned)
		}()
		synctest.Wait() // the scan has looked and waits at the gate

		g.set(func(g *gadget) {
			g.devices, g.gate = []cyborg.DeviceReport{device("a", "new"), device("b", "old")}, nil
		})
		observation, err := r.Observe(t.Context(), "x", "a", nil)
		require.NoError(t, err)
		require.Equal(t, "new", observation.Device.Deployables[0].BitstreamID)

		close(gate)
		<-scanned
		require.Equal(t, "new", r.image("a"))

		report, err := r.Report(t.Context())
		require.NoError(t, err)
		require.Greater(t, report.Sequence, observation.Sequence)
		require.Equal(t, "new", report.Content.Backends[0].Devices[0].Deployables[0].BitstreamID)

		g.set(func(g *gadget) { g.devices = []cyborg.DeviceReport{device("a", "newer")} })
		r.Scan(t.Context())
		require.Equal(t, "newer", r.image("a"))
		require.Equal(t, "nothing there", r.image("b"))
	})
}

// A report waits for an observation that has begun. Otherwise its sequence
// number could be the later one while it shows the state before the change.
func TestAReportWaitsForAnObservation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, other := &gadget{devices: []cyborg.DeviceReport{device("a", "old")}}, &gadget{devices: []cyborg.DeviceReport{device("b", "")}}
		r := newRig(t, map[string]*gadget{"x": g, "y": other})
		r.Scan(t.Context())

		gate := make(chan struct{})
		g.set(func(g *gadget) { g.devices, g.gate = []cyborg.DeviceReport{device("a", "new")}, gate })
		observed := make(chan cyborg.Observation, 1)
		go func() {
			if observation, err := r.Observe(t.Context(), "x", "a", nil); err == nil {
				observed <- observation
			}
		}()
		synctest.Wait()

		reported := make(chan agentapi.Report, 1)
		go func() {
			if report, err := r.Report(t.Context()); err == nil {
				reported <- report
			}
		}()
		synctest.Wait()
		require.Empty(t, reported, "the report waits")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Report(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "but not for ever")
		later, err := r.Observe(t.Context(), "y", "b", nil)
		require.NoError(t, err, "and no other observation waits for it")

		close(gate)
		report := <-reported
		require.Less(t, (<-observed).Sequence, report.Sequence)
		require.Less(t, report.Sequence, later.Sequence)
		require.Equal(t, "new", report.Content.Backends[0].Devices[0].Deployables[0].BitstreamID)
	})
}

// Drivers list devices, attributes, handles and what excludes what in any order. The digest does
// not depend on it, because each new digest means a report.
func TestTheDigestDoesNotDependOnOrder(t *testing.T) {
	t.Parallel()
	both := device("b", "")
	both.Deployables[0].Attributes = []cyborg.Attribute{{Key: "trait1", Value: "B"}, {Key: "rc", Value: "FPGA"}}
	both.Deployables[0].Excludes = []string{"c", both.Deployables[0].Name, "a", "c"}
	both.Deployables[0].Handles = append(both.Deployables[0].Handles, cyborg.HandleReport{Kind: cyborg.HandlePCI, Identity: "a1"})

	turned := device("b", "")
	turned.Deployables[0].Attributes = []cyborg.Attribute{{Key: "rc", Value: "FPGA"}, {Key: "trait1", Value: "B"}}
	turned.Deployables[0].Excludes = []string{"a", "c"}
	turned.Deployables[0].Handles = append([]cyborg.HandleReport{{Kind: cyborg.HandlePCI, Identity: "a1"}}, turned.Deployables[0].Handles...)

	g := &gadget{devices: []cyborg.DeviceReport{both, device("a", "")}}
	r := newRig(t, map[string]*gadget{"x": g, "y": {}})
	r.Scan(t.Context())
	first, err := r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, "trait1", both.Deployables[0].Attributes[0].Key, "the driver's own slices stay as they are")
	require.Equal(t, "c", both.Deployables[0].Excludes[0])

	g.set(func(g *gadget) { g.devices = []cyborg.DeviceReport{device("a", ""), turned} })
	r.Scan(t.Context())
	second, err := r.Report(t.Context())
	require.NoError(t, err)

	require.Equal(t, first.Digest, second.Digest)
	require.Equal(t, first.Content.Digest(), first.Digest)
	require.Greater(t, second.Sequence, first.Sequence)

	require.Equal(t, "node", first.Host)
	require.Equal(t, "boot", first.BootID)
	require.Equal(t, "1", first.AgentVersion)
}

// A backend whose driver reports contradictory devices fails with a reason, and
// the other backends go on.
func TestContradictoryDriverReport(t *testing.T) {
	t.Parallel()
	for text, devices := range map[string][]cyborg.DeviceReport{
		"device a twice":        {device("a", ""), device("a", "")},
		"device without":        {{}},
		"deployable p twice":    {{Identity: "a", Deployables: []cyborg.DeployableReport{{Name: "p"}, {Name: "p"}}}},
		"of device a without":   {{Identity: "a", Deployables: []cyborg.DeployableReport{{}}}},
		"a handle of p without": {{Identity: "a", Deployables: []cyborg.DeployableReport{{Name: "p", Handles: []cyborg.HandleReport{{}}}}}},
	} {
		r := newRig(t, map[string]*gadget{"good": {devices: []cyborg.DeviceReport{device("g", "x")}}, "x": {devices: devices}})
		r.Scan(t.Context())
		require.Contains(t, r.states()["x"], text)
		require.Equal(t, "x", r.image("g"), "the others go on")
	}
}

// TestL16OneDriverFails has one driver fail in each way. The others are reported all the same,
// and the failed one says why.
func TestL16OneDriverFails(t *testing.T) {
	t.Parallel()
	good, broken := &gadget{devices: []cyborg.DeviceReport{device("g", "x")}}, &gadget{devices: []cyborg.DeviceReport{device("b", "y")}}
	r := newRig(t, map[string]*gadget{"broken": broken, "good": good})
	r.Scan(t.Context())
	require.Equal(t, map[string]string{"broken": "ok ", "good": "ok "}, r.states())

	good.set(func(g *gadget) { g.devices = []cyborg.DeviceReport{device("g", "x"), device("new", "z")} })
	broken.set(func(g *gadget) { g.failure = errors.New("what a day") })
	r.Scan(t.Context())
	require.Contains(t, r.states()["broken"], "what a day")
	require.Equal(t, "ok ", r.states()["good"])
	require.Equal(t, "z", r.image("new"))
}

// A device belongs to the first backend that sees it. The second backend fails
// until the device is no longer reported twice.
func TestDeviceSeenByTwoBackends(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{
		"a": {devices: []cyborg.DeviceReport{device("1", "")}}, "b": {devices: []cyborg.DeviceReport{device("2", ""), device("1", "")}},
		"c": {devices: []cyborg.DeviceReport{device("3", "")}},
	})

	r.Scan(t.Context())
	require.Equal(t, map[string]string{
		"a": "ok ", "b": "failed device 1 is also seen by backend a; leave it out in the options of one of them", "c": "ok ",
	}, r.states())

	_, err := r.Find(t.Context(), "b", "part_2", time.Minute)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	r.gadgets["a"].set(func(g *gadget) { g.devices = nil })
	r.Scan(t.Context())
	require.Equal(t, map[string]string{"a": "ok ", "b": "ok ", "c": "ok "}, r.states())
}

// A driver that hangs is given up, is not called again until its call has
// returned, and does not affect other drivers.
func TestHangingDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		slow := &gadget{devices: []cyborg.DeviceReport{device("s", "here")}, gate: gate, deaf: true}
		r := newRig(t, map[string]*gadget{"good": {devices: []cyborg.DeviceReport{device("g", "here")}}, "slow": slow})

		begin := time.Now()
		r.Scan(t.Context())
		require.Equal(t, 12*time.Second, time.Since(begin))
		require.Equal(t, "here", r.image("g"))
		require.Equal(t, "failed discovery did not end within 10s", r.states()["slow"])

		begin = time.Now()
		looks := r.Scan(t.Context())
		require.Zero(t, time.Since(begin))
		require.ErrorContains(t, looks[1].Err, "has not come to an end")
		require.Equal(t, 1, slow.count())

		close(gate)
		synctest.Wait()
		slow.set(func(g *gadget) { g.gate = nil })
		r.Scan(t.Context())
		require.Equal(t, "here", r.image("s"))
	})
}

// A scan that is cancelled leaves the states of its backends as they were.
func TestInterruptedScan(t *testing.T) {
	t.Parallel()
	g := &gadget{devices: []cyborg.DeviceReport{device("a", "here")}}
	r := newRig(t, map[string]*gadget{"x": g})
	r.Scan(t.Context())

	g.set(func(g *gadget) { g.gate = make(chan struct{}) })
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))

	looks := r.Scan(ctx)
	require.ErrorContains(t, looks[0].Err, "enough")
	require.Equal(t, "ok ", r.states()["x"])
	require.Equal(t, "here", r.image("a"))
}

// After a restart, a backend is reported as failed until it has been scanned,
// because an empty report would say that its devices are gone.
func TestUnscannedBackendIsNotReportedAsEmpty(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{"x": {devices: []cyborg.DeviceReport{device("a", "here")}}})
	require.Equal(t, "failed has not been looked at yet", r.states()["x"])

	r.Scan(t.Context())
	acked := inventory.Acknowledged{Digest: "d", Generation: 7, BootID: "boot", AgentVersion: "1"}
	r.Acknowledge(acked)
	require.NoError(t, r.Save())

	r.open(t)
	require.Equal(t, acked, r.Acknowledged(), "a restart need not report")
	require.Equal(t, "failed has not been looked at yet", r.states()["x"])

	known := r.Deployables()
	require.Len(t, known, 1, "it remembers what it saw before the restart")
	require.Equal(t, "part_a", known[0].Deployable.Name)
	require.NotEmpty(t, known[0].Failure)

	found, err := r.Find(t.Context(), "x", "part_a", time.Minute)
	require.NoError(t, err)
	require.NotNil(t, found.Driver)

	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "inventory.json"), []byte("{"), 0o600))
	r.open(t)
	require.Zero(t, r.Acknowledged(), "a file that cannot be read is dropped")
}

// Each scan tries again to create a driver whose constructor has failed or
// panicked.
func TestFailedBackendIsCreatedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{"x": {devices: []cyborg.DeviceReport{device("a", "here")}}, "y": {}})

	r.made = func(name string) error {
		if name == "x" {
			return cyborg.Errorf(cyborg.ErrHardware, "its firmware is missing").WithHint("Install it.")
		}
		return nil
	}
	r.Scan(t.Context())
	require.Equal(t, map[string]string{"x": "failed its firmware is missing. Install it.", "y": "ok "}, r.states())

	r.made = func(string) error { panic("no") }
	r.Scan(t.Context())
	require.Contains(t, r.states()["x"], "the driver panicked")

	r.made = func(string) error { return nil }
	r.Scan(t.Context())
	require.Equal(t, "here", r.image("a"))
}

// A driver whose constructor hangs is given up as well.
func TestHangingDriverConstructor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]*gadget{"x": {}, "y": {}})

		gate := make(chan struct{})
		r.made = func(name string) error {
			if name == "x" {
				<-gate
			}
			return nil
		}
		r.Scan(t.Context())
		require.Equal(t, map[string]string{"x": "failed making of driver gadget did not end within 10s", "y": "ok "}, r.states())

		close(gate)
		synctest.Wait()
		r.Scan(t.Context())
		require.Equal(t, "ok ", r.states()["x"])
	})
}

// Run joins changes that come close together into one scan of that backend. A
// stream of changes puts off neither this scan nor the full scan for ever.
func TestRunScansOnChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, quiet := &gadget{}, &gadget{}
		r := newRig(t, map[string]*gadget{"x": g, "quiet": quiet})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, inventory.Restore{}) })
		<-r.Ready()
		synctest.Wait()
		require.Equal(t, 1, g.count())
		require.Equal(t, 1, g.watchers())

		for range 20 { // a card that is plugged in causes many events
			g.say()
			r.Trigger()
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // in the bubble's time
		}
		time.Sleep(time.Second) //nolint:forbidigo // in the bubble's time
		require.Equal(t, 2, g.count(), "one look for all of them")
		require.Equal(t, 2, quiet.count())

		g.say()
		time.Sleep(time.Second) //nolint:forbidigo // in the bubble's time
		require.Equal(t, 3, g.count())
		require.Equal(t, 2, quiet.count(), "its driver said nothing")

		for range 100 { // a stream of events does not put off the scan for ever
			g.say()
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in the bubble's time
		}
		require.Greater(t, g.count(), 4)

		before := quiet.count()
		for range 6 { // nor does it put off the full scan
			g.say()
			time.Sleep(time.Minute) //nolint:forbidigo // in the bubble's time
		}
		require.Equal(t, before+1, quiet.count(), "the full scan comes even so")

		cancel()
		running.Wait()
		require.Zero(t, g.watchers())
	})
}

func TestFailedWatcherIsRestarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gadget{watchErr: errors.New("inotify is full")}
		r := newRig(t, map[string]*gadget{"x": g})

		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, inventory.Restore{}) })
		<-r.Ready()
		synctest.Wait()
		require.Zero(t, g.watchers())

		g.set(func(g *gadget) { g.watchErr = nil })
		time.Sleep(time.Minute) //nolint:forbidigo // in the bubble's time
		require.Equal(t, 1, g.watchers())

		_, err := r.Configure(ctx, cyborg.ConfigureRequest{Backend: "x", Action: cyborg.ConfigureUninstall}, anyway)
		require.NoError(t, err)
		synctest.Wait()
		require.Zero(t, g.watchers(), "a driver that is uninstalled does not watch")

		_, err = r.Configure(ctx, cyborg.ConfigureRequest{Backend: "x", Action: cyborg.ConfigureInstall}, anyway)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, g.watchers())

		cancel()
		running.Wait()
	})
}

// One change of a device runs at a time, changes of other devices do not wait
// for it, and a caller that is cancelled gets no lock.
func TestDeviceChangesAreSerialized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]*gadget{})
		unlock, err := r.Lock(t.Context(), "a", "the first")
		require.NoError(t, err)
		other, err := r.Lock(t.Context(), "b", "another device")
		require.NoError(t, err)
		other()

		_, err = r.Lock(t.Context(), "a", "the second")
		require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, "still busy with the first")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = r.Lock(ctx, "a", "the third")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		over, end := context.WithCancel(t.Context())
		end()
		for range 20 {
			_, err = r.Lock(over, "free", "nobody")
			require.ErrorIs(t, err, context.Canceled, "a cancelled caller gets no lock")
		}

		var inside, most int
		var all sync.WaitGroup
		for n := range 10 {
			all.Go(func() {
				unlock, err := r.Lock(t.Context(), "a", fmt.Sprint(n))
				require.NoError(t, err)
				inside++
				most = max(most, inside)
				time.Sleep(time.Second) //nolint:forbidigo // in the bubble's time
				inside--
				unlock()
			})
		}

		synctest.Wait()
		unlock()
		all.Wait()
		require.Equal(t, 1, most)
	})
}

// An agent that cannot read the configuration of its backends does not start
// with a different one.
func TestUnreadableBackendsFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", `{"format": 2}`, `{"format": 1, "backends": [{"name": "../x"}]}`, `{"format": 1, "colour": 1}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "backends.json"), []byte(text), 0o600))

		j, err := journal.Open(dir, journal.Options{})
		require.NoError(t, err)
		_, err = inventory.Open(inventory.Config{StateDir: dir}, drivers.NewRegistry(), j, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), text)
		require.NoError(t, j.Close())
	}
}

// The journal's attachments are reported in order, and those of an earlier boot
// as lost.
func TestAttachmentsAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{})
	op := uuid.New()
	require.NoError(t, r.journal.Write(journal.Change{Attachments: []journal.Attachment{
		{Backend: "x", Handle: "b", Deployable: "p", Operation: op, State: journal.InDoubt},
		{Backend: "x", Handle: "a", Deployable: "p", Operation: op, State: journal.Attached},
		{Backend: "x", Handle: "c", Deployable: "p", Operation: op, State: journal.Attached, BootID: "before"},
	}}))

	require.Equal(t, []agentapi.Attachment{
		{Backend: "x", Deployable: "p", Handle: "a", Operation: op, State: cyborg.AttachmentDone},
		{Backend: "x", Deployable: "p", Handle: "b", Operation: op, State: cyborg.AttachmentInDoubt},
		{Backend: "x", Deployable: "p", Handle: "c", Operation: op, State: cyborg.AttachmentLost},
	}, r.Content().Attachments)
}

// TestOperationAtWorkIsReported: while a step of an operation is at work on a device,
// reports say so of what is in doubt of its deployable, and of nothing else. A report is due when it
// has ended.
func TestOperationAtWorkIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{})
	require.NoError(t, r.journal.Write(journal.Change{Attachments: []journal.Attachment{
		{Backend: "x", Device: "1", Handle: "a", Deployable: "p", State: journal.InDoubt},
		{Backend: "x", Device: "1", Handle: "b", Deployable: "p", State: journal.Attached},
		{Backend: "x", Device: "1", Handle: "c", Deployable: "q", State: journal.InDoubt},
		{Backend: "x", Device: "2", Handle: "d", Deployable: "r", State: journal.InDoubt},
	}}))
	working := func() []uuid.UUID {
		var out []uuid.UUID
		for _, a := range r.Content().Attachments {
			out = append(out, a.Working)
		}
		return out
	}

	op := uuid.New()
	unlock, err := r.LockFor(t.Context(), "1", "p", "a step", op)
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{op, uuid.Nil, uuid.Nil, uuid.Nil}, working())
	require.Empty(t, r.Changes())
	unlock()
	require.Equal(t, make([]uuid.UUID, 4), working())
	require.NotEmpty(t, r.Changes())
}

// TestSettlingIsNoOperationAtWork: who waits for the end of an operation's step does not
// count for it.
func TestSettlingIsNoOperationAtWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]*gadget{})
		require.NoError(t, r.journal.Write(journal.Change{Attachments: []journal.Attachment{
			{Backend: "x", Device: "1", Handle: "a", Deployable: "p", State: journal.InDoubt},
		}}))
		unlock, err := r.LockFor(t.Context(), "1", "p", "a step", uuid.New())
		require.NoError(t, err)

		var settling sync.WaitGroup
		var waited error
		settling.Go(func() { unlock, waited = r.Lock(t.Context(), "1", "a settling") })
		synctest.Wait()
		unlock()
		settling.Wait()
		require.NoError(t, waited)
		require.Zero(t, r.Content().Attachments[0].Working)
		unlock()
	})
}

// TestTheLastLookAtTheWhitelistCounts: the file changes while it is looked at,
// and another look sees the change. What the first look saw is older, however
// late it ends, and is not reported.
func TestTheLastLookAtTheWhitelistCounts(t *testing.T) {
	t.Parallel()
	r := &rig{dir: t.TempDir(), made: func(string) error { return nil }}
	var looks atomic.Int32
	second := make(chan struct{})

	r.whitelist = func() cyborg.WhitelistFile {
		if looks.Add(1) > 1 {
			return cyborg.WhitelistFile{SHA256: "new"}
		}

		go func() {
			defer close(second)
			r.LookAtWhitelist()
		}()
		// The other look may read the file only after this one has ended. Where it does
		// not wait for that, it is given the time to be faster.
		for range 100_000 {
			if looks.Load() > 1 {
				<-second
				break
			}
			runtime.Gosched()
		}
		return cyborg.WhitelistFile{SHA256: "old"}
	}
	r.open(t)

	r.LookAtWhitelist()
	<-second
	require.Equal(t, "new", r.Content().Whitelist.SHA256)
}

// TestLookAt: a look at one device leaves the others alone, and is reported only
// where it differs from the last. What is gone is no longer known.
func TestLookAt(t *testing.T) {
	t.Parallel()
	g := &gadget{devices: []cyborg.DeviceReport{device("a", "old"), device("b", "old")}}
	r := &rig{dir: t.TempDir(), gadgets: map[string]*gadget{"g": g}, made: func(string) error { return nil }, inspect: true}
	r.open(t)
	r.Scan(t.Context())
	<-r.Changes()

	require.NoError(t, r.LookAt(t.Context(), "g", "a"))
	require.Empty(t, r.Changes())

	g.set(func(g *gadget) { g.devices = []cyborg.DeviceReport{device("a", "new"), device("b", "new")} })
	require.NoError(t, r.LookAt(t.Context(), "g", "a"))
	require.Len(t, r.Changes(), 1)
	<-r.Changes()
	require.Equal(t, "new", r.image("a"))
	require.Equal(t, "old", r.image("b"))
	require.Equal(t, 1, g.count(), "only the scan has looked at all of them")

	g.set(func(g *gadget) { g.devices = g.devices[1:] })
	require.NoError(t, r.LookAt(t.Context(), "g", "a"))
	_, err := r.Find(t.Context(), "g", "part_a", time.Hour)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	require.Error(t, r.LookAt(t.Context(), "other", "a"))
}
