// Package drivers defines what a driver of accelerators must and may do, and
// holds the registry of the drivers that are compiled in.
//
// A driver looks after one kind of hardware on one host. The agent calls it,
// and any other Go program can use it as a library, to find, attach and detach
// accelerators on a host without a server. This package and the drivers below
// it import the root package, ghw and the standard library; never Temporal, the
// database or HTTP.
package drivers

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Driver is the part that every driver has. The methods of a driver are called
// from several goroutines. The agent never lets two calls that change the same
// device overlap.
//
// Every call that changes hardware must be idempotent, because it is repeated
// when the agent died at any point of it. An error should be a *cyborg.Error;
// an error of any other type counts as kind ErrHardware.
//
// A driver may also be an io.Closer. When its backend gets another driver, or none, the
// agent ends the contexts of its calls of Discover, Inspect, Health, Metrics and Watch,
// and closes it once they have returned: never, where one does not return. The new driver
// has discovered its devices before, so two of a backend must get along. No call that
// changes a device runs then, but Attached, InUse and CheckImage may run while a driver is
// closed, and also come after that: they return an error where they have no answer.
//
// What else a driver can do is said by the interfaces that it implements
// besides this one: Installer, Attacher, Programmer, Cleaner, Partitioner, Users, Meter,
// HealthChecker, Watcher and Inspector. All of them are optional.
type Driver interface {
	// Discover lists the devices that are there now, in a stable order. It changes
	// nothing. A device that it cannot read is listed all the same, with an unready
	// condition that says why; where it cannot even list it, Discover fails. After a
	// failed Discover the records stay as they were, but a device that is left out is
	// recorded as missing.
	Discover(ctx context.Context) ([]cyborg.DeviceReport, error)
}

// Inspector reads one device. On a host with many devices that costs much less
// than Discover.
type Inspector interface {
	// Inspect returns the report that Discover would return for the device with
	// this identity now. The error is of kind ErrNotFound where Discover would not
	// list the device.
	Inspect(ctx context.Context, identity string) (cyborg.DeviceReport, error)
}

// Target is the deployable that a call is about. Device and Deployable are what
// the last discovery reported, so the hardware may have changed since. Where another
// card is in the device's place now (cyborg.Fingerprint.Other), Install, Attach, Program
// and Clean fail with kind ErrChanged, and Uninstall and Detach have nothing to do.
type Target struct {
	Device     cyborg.DeviceReport
	Deployable cyborg.DeployableReport
}

// Installer takes a deployable into service and out of it.
type Installer interface {
	// Install makes the deployable able to serve and verifies that it can. It may
	// be called again for a deployable that is installed already.
	Install(ctx context.Context, target Target) error

	// Uninstall undoes Install, also an Install that was interrupted.
	Uninstall(ctx context.Context, target Target) error
}

// Note stores what the driver must know to undo what it is about to do. The
// note is on disk when the call returns nil, so a driver calls Note before it
// touches the hardware. A later note replaces an earlier one. Where Note fails,
// the driver returns its error and leaves the hardware alone.
type Note func(note json.RawMessage) error

// AttachRequest asks to attach a handle for its holder.
type AttachRequest struct {
	Target Target
	Handle cyborg.HandleReport
	// Holder is the host itself or, where the deployable has a Preparation, whoever
	// else gets the handle.
	Holder cyborg.Holder
	// HandleUUID is the handle's UUID in the records, which stays the same as long as the
	// handle is known. What the driver makes for the handle has it, such as a mediated
	// device.
	HandleUUID uuid.UUID
	// Parameters are what was chosen for the handle, of those of the deployable's
	// Preparation, with values that they take. The driver chooses each that is left
	// out, in the same way every time.
	Parameters map[string]string

	// Prior is the last note of this handle since the host has booted, if it is still
	// in force: of an earlier try of the same attach, of an attach that is repeated, or
	// of one for another holder. It is nil on the first try. What it says of the state
	// before the first attach stays true, so a later note keeps it.
	Prior json.RawMessage
	// Note stores a note before the hardware is changed.
	Note Note
}

// DetachRequest asks to detach a handle from its holder.
type DetachRequest struct {
	Target Target
	Handle cyborg.HandleReport
	// Holder is who has it; its kind is that of the attach.
	Holder cyborg.Holder
	// HandleUUID is as in the attach. What has another UUID is somebody else's, and stays. It
	// is zero where nobody knows it, such as of what an agent of an earlier release has
	// attached: then it is that of whatever is attached.
	HandleUUID uuid.UUID

	// Prior is the last note of the attach, or nil where the attach stored none or it
	// was lost.
	Prior json.RawMessage
	// Undo is set where the call undoes an attach that failed.
	Undo bool
}

// AttachedRequest asks whether a handle is attached.
type AttachedRequest struct {
	Target Target
	Handle cyborg.HandleReport
	// Holder is the kind of the holder.
	Holder cyborg.HolderKind
	// HandleUUID is as in the detach: what has another UUID is not attached.
	HandleUUID uuid.UUID
}

// Attacher attaches handles and detaches them. For a driver without it, an attach
// only records who has the handle and touches no hardware.
//
// It is asked to attach to the host. For an instance or a service it is asked only
// where the deployable has a Preparation: it then does what the hypervisor does not do
// by itself, such as setting the MAC address of a virtual function. The handle is
// attached for one holder at a time.
type Attacher interface {
	// Attach makes the handle usable for its holder, with the parameters that were
	// chosen. It succeeds where the handle is attached like that already. A parameter
	// that the deployable does not have, or a value that it does not take, is an error of
	// kind ErrInvalid, and changes nothing (Preparation.Check).
	//
	// It is also asked to attach what is attached with other parameters, for a holder of
	// another kind, or, where it makes something of this UUID, under another one: the request
	// is right then. Afterwards the hardware is as if it had
	// been attached like this at once. Its holder may use it meanwhile; where the
	// change would take it away, Attach fails with kind ErrInUse and changes nothing.
	Attach(ctx context.Context, request AttachRequest) error

	// Detach restores the state before the first Attach, for whomever it was. Nothing
	// stays of what was chosen for the holder, also where no note was kept. While something
	// really uses the handle, it fails with kind ErrInUse and changes nothing. It succeeds
	// where the handle is not attached. With Undo it undoes as much of an attach as
	// was done; without a note that is nothing, because the note comes first.
	Detach(ctx context.Context, request DetachRequest) error

	// Attached says whether the hardware is in the state that Attach leaves behind for
	// a holder of this kind, with whatever parameters. The agent asks this after a crash,
	// when its journal cannot tell how far an attach came, and after a boot.
	Attached(ctx context.Context, request AttachedRequest) (bool, error)
}

// ProgramRequest asks to load an image into a deployable.
type ProgramRequest struct {
	Target Target

	// Path is the file with the image on this host. The agent has verified its
	// checksum.
	Path  string
	Image cyborg.Image

	// Progress reports how much is done, from 0 to 100 percent, with a short note.
	// It never blocks for long.
	Progress func(percent int, note string)
}

// Programmer loads images (bitstreams, firmware) into a deployable.
type Programmer interface {
	// CheckImage reads the header of the staged file. It returns an error of kind
	// ErrImageRejected that says why the image cannot go into the target. It
	// changes nothing.
	CheckImage(ctx context.Context, target Target, path string, image cyborg.Image) error

	// Program loads the image and verifies it by reading it back. The next Discover reports
	// the new image: as BitstreamID or, where it takes effect later, as PendingImage. Until
	// then, what is in effect stays as it was. An image that is loaded already, also one that
	// is pending, is not loaded again; one that is in effect already takes the place of what
	// is pending. Where an interrupted load has left something that will not take effect as
	// an image, Discover reports another image than before.
	Program(ctx context.Context, request ProgramRequest) error
}

// CleanRequest asks to clean a handle after its last holder.
type CleanRequest struct {
	Target Target
	Handle cyborg.HandleReport
	// Method is one of the deployable's Cleaning.
	Method cyborg.CleanMethod

	// Prior is the last note of a clean of this handle that has not ended, also one of
	// before the last boot of the host; nil on the first try. The methods of the two may
	// differ.
	Prior json.RawMessage
	// Note stores a note before the hardware is changed.
	Note Note
	// Progress reports how much is done, from 0 to 100 percent, or -1 where that is
	// unknown, with a short note. It never blocks for long.
	Progress func(percent int, note string)
}

// Cleaner removes what the last holder left on a handle. Its deployables have a Cleaning.
type Cleaner interface {
	// Clean cleans the handle, verifies that by reading back, and returns what was done as
	// evidence (Method, Tool, ReadBack). Where it could not make sure that the handle is
	// clean, it fails. Nobody has the handle meanwhile, and nobody gets it before Clean has
	// succeeded. It may be called again at any time, also after it was interrupted anywhere,
	// and then goes on or begins anew. While something really uses the handle, it fails
	// with kind ErrInUse and changes nothing. What other holders have of the same device
	// is left alone.
	Clean(ctx context.Context, request CleanRequest) (cyborg.Evidence, error)
}

// PartitionRequest asks to divide a device.
type PartitionRequest struct {
	// Device is what the last discovery reported. The hardware may have changed since. Where
	// another card is in its place now, Partition fails with kind ErrChanged.
	Device cyborg.DeviceReport
	// Layout is what is wanted, in the device's Partitioning; the empty one is the whole
	// device.
	Layout cyborg.Layout

	// Prior is the last note of a Partition of this device since the host has booted, also
	// of one that has ended; nil where there was none.
	Prior json.RawMessage
	// Note stores a note before the hardware is changed.
	Note Note
	// Progress reports how much is done, from 0 to 100 percent, or -1 where that is
	// unknown, with a short note. It never blocks for long.
	Progress func(percent int, note string)
}

// Partitioner divides devices into parts, and makes them whole again. Its devices have a
// Partitioning. The next Discover reports what is there then: the parts, or the whole
// device, never both as if somebody could have each (DeployableReport.Excludes). A part
// that a later layout makes again has its former name and handles, and a name never stands
// for parts of two kinds.
type Partitioner interface {
	// CheckLayout returns an error of kind ErrInvalid that says why the device cannot be
	// divided like that. It changes nothing.
	CheckLayout(ctx context.Context, device cyborg.DeviceReport, layout cyborg.Layout) error

	// Partition divides the device, and verifies that by reading back: it fails where the
	// device has fewer or other parts than wanted. It succeeds where the device is divided
	// like that already, and then changes nothing. It may be called again at any time, also
	// after it was interrupted anywhere, with the same layout or another. Nobody has anything
	// of the device meanwhile; while something really uses any of it, it fails with kind
	// ErrInUse and changes nothing. What was installed or attached of parts that go is gone
	// with them.
	Partition(ctx context.Context, request PartitionRequest) error
}

// Users finds out who really uses a handle.
type Users interface {
	// InUse returns who uses the handle, or what goes with it (HandleReport.With), as a
	// phrase for people, or "" where nobody does, as far as the host can tell. It is asked before the handle is given to
	// anybody and before it is taken back. An error refuses that. It is of kind
	// ErrChanged where another card is in the target's place now: that one must not be
	// given away in the place of the target, and there is nothing to take back.
	InUse(ctx context.Context, target Target, handle cyborg.HandleReport) (string, error)
}

// Meter measures devices.
type Meter interface {
	// Metrics returns what the device and its deployables measure now. It changes
	// nothing, and does not wake up a device that sleeps.
	Metrics(ctx context.Context, device cyborg.DeviceReport) ([]Sample, error)
}

// Sample is one measurement.
type Sample struct {
	Deployable string // its name, as in reports
	// Name says what was measured. It is in lower case, with the unit at its end, such
	// as "temperature_celsius", and with "_total" behind that where it only grows.
	Name string
	// Sensor tells it from others of this name and deployable, such as "memory"; empty
	// where it is the only one, or the main one.
	Sensor string
	Value  float64
}

// HealthChecker finds conditions that a discovery does not see, such as errors that
// the device counts. The agent asks it by itself, so that a device that answers slowly
// holds up nothing else.
type HealthChecker interface {
	// Health returns the conditions of deployables, by their names. It changes nothing.
	// Whoever is not mentioned is well. A device that does not say how it is has a
	// condition that says so. An error means that nobody knows of any: what was said
	// before holds, and all are degraded.
	Health(ctx context.Context) (map[string][]cyborg.Condition, error)
}

// Watcher notices changes for which the kernel sends no uevent.
type Watcher interface {
	// Watch calls changed, from any goroutine, until ctx ends: once as soon as it
	// observes the hardware, because changes before that go unnoticed, and then
	// whenever a new Discover is worthwhile.
	Watch(ctx context.Context, changed func()) error
}

// Services lists what a driver can do, under the names that operators see.
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
	if _, ok := d.(Cleaner); ok {
		services = append(services, "clean")
	}
	if _, ok := d.(Partitioner); ok {
		services = append(services, "partition")
	}
	if _, ok := d.(Users); ok {
		services = append(services, "in_use")
	}
	if _, ok := d.(Meter); ok {
		services = append(services, "usage")
	}
	if _, ok := d.(HealthChecker); ok {
		services = append(services, "health")
	}
	if _, ok := d.(Watcher); ok {
		services = append(services, "watch")
	}

	return services
}
