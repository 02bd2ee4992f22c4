// Package conformance is the test suite that every driver must pass. It checks
// with real calls what the interfaces in package drivers promise in words.
//
// The test of a driver describes how to reach its hardware, or a stand-in for
// it, and runs the suite:
//
//	func TestConformance(t *testing.T) {
//		t.Parallel()
//		conformance.Run(t, conformance.Subject{
//			Services: []string{"discover", "install", "attach"},
//			New:      newRig,
//		})
//	}
//
// Each check gets a rig of its own, and the checks run in parallel. What a
// driver does not offer is not checked. Subject's Services says what it must
// offer, so that a capability cannot get lost unnoticed. The hooks of a Rig do
// to the hardware what a driver cannot do itself. A check whose hook is nil is
// left out, except where a capability cannot be tested without its hook.
//
// This package imports the root package, drivers, testify and the standard
// library. Only tests import it.
package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// ReturnTimeout is how long a call may continue after its context has ended. It
// is generous, because the machine that runs the tests may be busy.
const ReturnTimeout = time.Minute

// Subject is a driver under test.
type Subject struct {
	// Services is what the driver must offer, in the form of drivers.Services.
	Services []string

	// New makes hardware like that of a machine that was just set up, with nothing
	// attached or divided, and a driver on it. It is called for each check, from several
	// goroutines. It removes what it makes with the cleanup of the test.
	New func(t *testing.T) *Rig
}

// Rig is hardware with a driver on it, and hooks that do to the hardware what a
// driver cannot do. The hooks after Restart may be nil.
type Rig struct {
	// Driver is the driver under test. Required.
	Driver drivers.Driver
	// Restart makes another driver on the same hardware with the same options, as a
	// restarted agent does. Required.
	Restart func(t *testing.T) drivers.Driver

	// Choose picks the deployable and the handle for the checks. Where it is nil,
	// the checks use the first handle of the first deployable that has one and is
	// not protected.
	Choose func(t *testing.T, devices []cyborg.DeviceReport) (drivers.Target, cyborg.HandleReport)

	// Snapshot returns the whole state of the hardware as text, so that equal texts
	// mean an equal state. Where it is nil, only the answers of Discover and
	// Attached are compared.
	Snapshot func(t *testing.T) string

	// Use makes somebody really use a handle, which for the checks of a Cleaner is not
	// attached, until release is called. Required of drivers with Users.
	Use func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) (release func())

	// GoodImage stages an image that fits the target. Two calls return two
	// different images. Required of drivers with Programmer.
	GoodImage func(t *testing.T, target drivers.Target) (path string, image cyborg.Image)

	// BadImage stages an image that does not fit the target. Required of drivers
	// with Programmer.
	BadImage func(t *testing.T, target drivers.Target) (path string, image cyborg.Image)

	// Leave has somebody leave something on a handle for each method of its deployable's
	// Cleaning to remove. Required of drivers with Cleaner.
	Leave func(t *testing.T, target drivers.Target, handle cyborg.HandleReport)
	// Left returns the methods for which something is left on a handle: with CleanReset,
	// something that is volatile; with CleanScrub, something that is stored. Required of
	// drivers with Cleaner.
	Left func(t *testing.T, target drivers.Target, handle cyborg.HandleReport) []cyborg.CleanMethod
	// Stick lets nothing be removed any more from a handle.
	Stick func(t *testing.T, target drivers.Target, handle cyborg.HandleReport)

	// Fewer lets a device have fewer parts than are asked for whenever it is divided.
	Fewer func(t *testing.T, device cyborg.DeviceReport)

	// FallIll makes a health check say something else of the target than before, until
	// well is called.
	FallIll func(t *testing.T, target drivers.Target) (well func())

	// Slow makes installing, attaching, detaching, programming, cleaning and dividing take
	// longer than ReturnTimeout until quick is called.
	Slow func(t *testing.T) (quick func())

	// Vanish takes a card off the bus until restore is called. Nothing is attached
	// to a card that was put back.
	Vanish func(t *testing.T, device cyborg.DeviceReport) (restore func())
	// Exchange puts another card into the place of a card, where it has the same
	// identity.
	Exchange func(t *testing.T, device cyborg.DeviceReport)
	// GroupsChange says that a card that was put back may be in another IOMMU group:
	// a kernel numbers groups as they come.
	GroupsChange bool
}

// check is one test of the suite. It is left out where needs is false for the
// rig and its target.
type check struct {
	name  string
	needs func(b *bench) bool
	run   func(t *testing.T, b *bench)
}

// group is the checks of one service.
type group struct {
	service string
	// offered says whether the driver has the service. It does not use
	// drivers.Services, so that the two are compared.
	offered func(d drivers.Driver) bool
	checks  []check
}

// groups lists the services in the order of drivers.Services.
func groups() []group {
	return []group{
		{"discover", func(drivers.Driver) bool { return true }, discoverChecks()},
		{"install", offers[drivers.Installer], installChecks()},
		{"attach", offers[drivers.Attacher], attachChecks()},
		{"program", offers[drivers.Programmer], programChecks()},
		{"clean", offers[drivers.Cleaner], cleanChecks()},
		{"partition", offers[drivers.Partitioner], partitionChecks()},
		{"in_use", offers[drivers.Users], inUseChecks()},
		{"usage", offers[drivers.Meter], usageChecks()},
		{"health", offers[drivers.HealthChecker], healthChecks()},
		{"watch", offers[drivers.Watcher], watchChecks()},
	}
}

// offers says whether the driver implements the interface T.
func offers[T any](d drivers.Driver) bool {
	_, ok := d.(T)
	return ok
}

// Run runs the suite on the driver.
func Run(t *testing.T, subject Subject) {
	t.Helper()

	rig := subject.New(t)
	require.NotNil(t, rig.Driver, "the rig needs a driver")
	require.NotNil(t, rig.Restart, "the rig needs a way to restart the driver")

	services := drivers.Services(rig.Driver)
	require.Equal(t, subject.Services, services, "what the driver must offer, and what drivers.Services says it does")
	require.Equal(t, services, drivers.Services(rig.Restart(t)), "a restarted driver offers the same")

	require.True(t, rig.Use != nil || !offers[drivers.Users](rig.Driver), "a driver with Users is checked with Rig.Use")
	require.True(t, rig.GoodImage != nil && rig.BadImage != nil || !offers[drivers.Programmer](rig.Driver),
		"a driver with Programmer is checked with Rig.GoodImage and Rig.BadImage")

	require.True(t, rig.Leave != nil && rig.Left != nil || !offers[drivers.Cleaner](rig.Driver),
		"a driver with Cleaner is checked with Rig.Leave and Rig.Left")

	checked, b := []string{}, newBench(t, rig)
	for _, group := range groups() {
		if !group.offered(rig.Driver) {
			continue
		}
		checked = append(checked, group.service)
		for _, check := range group.checks {
			if check.needs != nil && !check.needs(b) {
				continue
			}
			t.Run(group.service+"/"+check.name, func(t *testing.T) {
				t.Parallel()
				check.run(t, newBench(t, subject.New(t)))
			})
		}
	}
	require.Equal(t, services, checked, "every service that the driver offers is checked")
}

// bench is what a check works on: a rig, and the target that was chosen on it.
type bench struct {
	*Rig
	target drivers.Target
	handle cyborg.HandleReport
	// divisible is the device that the checks of a Partitioner divide, as it was reported
	// first; nil where none can be divided.
	divisible *cyborg.DeviceReport

	// records stands for the records that know the handles, by UUIDs of their own.
	records uuid.UUID
	// holder gets the handle, and parameters are what is chosen for it.
	holder     cyborg.Holder
	parameters map[string]string
}

// newBench chooses a target on a new rig. Its host gets the handle.
func newBench(t *testing.T, rig *Rig) *bench {
	t.Helper()
	b := &bench{Rig: rig, records: uuid.New(), holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "conformance"}}

	choose := b.Choose
	if choose == nil {
		choose = first
	}

	devices := b.discover(t)
	b.target, b.handle = choose(t, devices)
	b.divisible = divisible(devices, b.target)
	return b
}

// first picks the first handle that is not protected.
func first(t *testing.T, devices []cyborg.DeviceReport) (drivers.Target, cyborg.HandleReport) {
	t.Helper()
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			if deployable.Protected == "" && len(deployable.Handles) > 0 {
				return drivers.Target{Device: device, Deployable: deployable}, deployable.Handles[0]
			}
		}
	}

	require.Fail(t, "the hardware has no handle that may be touched")
	return drivers.Target{}, cyborg.HandleReport{}
}

// discover returns what the driver reports now.
func (b *bench) discover(t *testing.T) []cyborg.DeviceReport {
	t.Helper()
	devices, err := b.Driver.Discover(t.Context())
	require.NoError(t, err)
	return devices
}

// device returns what Discover reports of the target's device now.
func (b *bench) device(t *testing.T) cyborg.DeviceReport {
	t.Helper()
	for _, device := range b.discover(t) {
		if device.Identity == b.target.Device.Identity {
			return device
		}
	}

	require.Failf(t, "the target is gone", "Discover no longer shows %s", b.target.Device.Identity)
	return cyborg.DeviceReport{}
}

// deployable returns what Discover reports of the target now.
func (b *bench) deployable(t *testing.T) cyborg.DeployableReport {
	t.Helper()
	for _, deployable := range b.device(t).Deployables {
		if deployable.Name == b.target.Deployable.Name {
			return deployable
		}
	}

	require.Failf(t, "the target is gone", "Discover no longer shows %s", b.target.Deployable.Name)
	return cyborg.DeployableReport{}
}

// state is everything that the suite can find out about the hardware. Equal
// values mean that nothing was changed.
type state struct {
	Devices  []cyborg.DeviceReport
	Attached map[string]bool
	Snapshot string
}

// state reads the state of the hardware.
func (b *bench) state(t *testing.T) state {
	t.Helper()
	now := state{Devices: b.discover(t), Attached: map[string]bool{}}

	if attacher, ok := b.Driver.(drivers.Attacher); ok {
		for _, handle := range b.target.Deployable.Handles {
			attached, err := attacher.Attached(t.Context(), b.asks(handle))
			require.NoError(t, err)
			now.Attached[handle.Identity] = attached
		}
	}

	if b.Snapshot != nil {
		now.Snapshot = b.Snapshot(t)
	}

	return now
}

// requireStopped requires the error of a call whose context has ended: the
// context's own error, or an error of kind ErrCancelled or ErrTimeout.
func requireStopped(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err, "a call under an ended context fails")

	kind := cyborg.ErrorKindOf(err)
	stopped := kind == cyborg.ErrCancelled || kind == cyborg.ErrTimeout ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	require.Truef(t, stopped, "a call under an ended context says so; it said %q of kind %s", err, kind)
}

// promptly runs the call and requires it to return within ReturnTimeout. It is
// for calls whose context has ended or that have nothing to wait for.
func promptly(t *testing.T, what string, call func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- call() }()

	select {
	case err := <-done:
		return err
	case <-time.After(ReturnTimeout):
		require.Failf(t, "a call hangs", "%s has not returned within %v", what, ReturnTimeout)
		return nil
	}
}

// ended returns a context that has ended already.
func ended(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
