// Package drivers is what a driver of accelerators must and may do, and the registry of those compiled in.
//
// A driver looks after one kind of hardware on one host. It is asked by the agent, and it may be used alone, as a
// library, to attach and detach accelerators on a host. This package and the drivers below it import the root package,
// ghw and the standard library; never Temporal, the database or HTTP.
package drivers

import (
	"context"
	"encoding/json"

	"github.com/cyborg-project/cyborg"
)

// Driver is the part every driver has. Methods of a driver are called from several goroutines; the agent lets no two
// calls that change the same device overlap.
//
// Every call that changes hardware must be idempotent: it may be repeated after the agent died at any point of it. An
// error should be a *cyborg.Error; any other counts as kind ErrHardware.
type Driver interface {
	// Discover lists what is there now, in a stable order. It changes nothing. Devices of a driver whose Discover
	// fails stay recorded as they were.
	Discover(ctx context.Context) ([]cyborg.DeviceReport, error)
}

// Inspector looks at one device, for much less than a Discover where a host has many.
type Inspector interface {
	// Inspect tells of the device what Discover would tell of it now. The error is of kind ErrNotFound where Discover would
	// not show it.
	Inspect(ctx context.Context, identity string) (cyborg.DeviceReport, error)
}

// Target is the deployable that a call is about. Device and Deployable are the last discovery's view of it.
type Target struct {
	Device     cyborg.DeviceReport
	Deployable cyborg.DeployableReport
}

// Installer takes a deployable into service and out of it.
type Installer interface {
	// Install makes the deployable able to serve and verifies that it is. Repeating it does no harm.
	Install(ctx context.Context, target Target) error
	// Uninstall undoes Install, also a half-done one.
	Uninstall(ctx context.Context, target Target) error
}

// Note keeps what the driver must know to undo what it is about to do. It is on disk when the call returns nil; a
// driver calls it before it touches the hardware. Later notes replace earlier ones.
type Note func(note json.RawMessage) error

// AttachRequest asks to hand a handle to its host.
type AttachRequest struct {
	Target Target
	Handle cyborg.HandleReport
	Holder cyborg.Holder
	// Prior is the note of an earlier try of the same attach, or nil.
	Prior json.RawMessage
	Note  Note
}

// DetachRequest asks to take a handle back.
type DetachRequest struct {
	Target Target
	Handle cyborg.HandleReport
	// Prior is the last note of the attach, or nil where there was none.
	Prior json.RawMessage
	// Undo is set where a failed attach is undone.
	Undo bool
}

// Attacher attaches handles to the host and detaches them. Without it, an attach only hands out the handle.
type Attacher interface {
	// Attach makes the handle usable on its host. An attach of what is attached already succeeds.
	Attach(ctx context.Context, request AttachRequest) error
	// Detach brings back the state before Attach. It fails with kind ErrInUse, having changed nothing, while something
	// really uses the handle. A detach of what is not attached succeeds.
	Detach(ctx context.Context, request DetachRequest) error
	// Attached says whether the hardware is in the state that Attach leaves.
	Attached(ctx context.Context, target Target, handle cyborg.HandleReport) (bool, error)
}

// ProgramRequest asks to load an image.
type ProgramRequest struct {
	Target Target
	// Path is the staged image on this host; its checksum has been verified.
	Path  string
	Image cyborg.Image
	// Progress tells how far it is, 0–100, with a short note; it never blocks for long.
	Progress func(percent int, note string)
}

// Programmer loads images (bitstreams, firmware) into a deployable.
type Programmer interface {
	// CheckImage reads the staged file's header and says with kind ErrImageRejected why it cannot go into the target.
	// It changes nothing.
	CheckImage(ctx context.Context, target Target, path string, image cyborg.Image) error
	// Program loads the image and verifies it by reading back. Discover tells the new state afterwards.
	Program(ctx context.Context, request ProgramRequest) error
}

// Users says who really uses a handle.
type Users interface {
	// ErrInUse returns who uses the handle ("" for nobody), as far as the host can tell.
	InUse(ctx context.Context, target Target, handle cyborg.HandleReport) (string, error)
}

// Meter measures.
type Meter interface {
	// Metrics returns figures by name with unit, such as "temperature_celsius".
	Metrics(ctx context.Context, target Target) (map[string]float64, error)
}

// Watcher notices changes that kernel uevents do not tell.
type Watcher interface {
	// Watch calls changed, from any goroutine, until ctx ends: once it has begun to look, since what has changed before that
	// it does not know, and then whenever a new Discover is worth it.
	Watch(ctx context.Context, changed func()) error
}

// Services lists what a driver can do, by the names that operators see.
func Services(d Driver) []string {
	services := []string{"discover"}
	if _, ok := d.(Installer); ok {
		services = append(services, "install")
	}
	if _, ok := d.(Attacher); ok {
		services = append(services, "attach")
	}
	if _, ok := d.(Programmer); ok {
		services = append(services, "program")
	}
	if _, ok := d.(Users); ok {
		services = append(services, "in_use")
	}
	if _, ok := d.(Meter); ok {
		services = append(services, "usage")
	}
	if _, ok := d.(Watcher); ok {
		services = append(services, "watch")
	}
	return services
}
