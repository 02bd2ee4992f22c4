package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// This file has the request of each kind of operation. It is recorded as the
// operation's input.

// ProvisionRequest takes an inactive accelerator into service. That is
// Accelerator where it is set, or else the one called Name, or else the best
// one that satisfies Specs and Host, which then gets the name.
type ProvisionRequest struct {
	Accelerator uuid.UUID  `json:"accelerator,omitzero"`
	Name        string     `json:"name,omitempty"` // empty keeps the present name
	Specs       SpecsPatch `json:"acc_specs,omitzero"`
	Host        string     `json:"host,omitempty"`
}

// ProgramRequest loads an image into an accelerator. Only an accelerator that
// lost its image when its host booted may be held by instances then: they
// cannot use an image that is not there, and the host checks that none does.
type ProgramRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
	// Reload restricts the program to an accelerator that has lost its image and
	// lacks it still.
	Reload bool `json:"reload,omitempty"`
}

// AttachRequest gives a free handle of an accelerator to a holder.
type AttachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      Holder    `json:"holder"`
}

// DetachRequest takes back the handles of an accelerator that a holder has.
type DetachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      *Holder   `json:"holder,omitempty"` // nil for all holders
	// Force takes the handles back in the records alone, where their host does not
	// answer or fails. The accelerator stays fenced until the host has settled the
	// handles.
	Force bool `json:"force,omitempty"`
}

// RetireRequest takes an accelerator that nobody holds out of service. It is
// inactive then, and keeps its name.
type RetireRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
}

// BindRequest gives accelerator requests of one holder their handles on one
// host, all of them or none.
type BindRequest struct {
	Host    string    `json:"host"`
	Holder  Holder    `json:"holder"` // an instance or a service
	ARQs    []BindARQ `json:"arqs"`
	Project string    `json:"project,omitempty"` // the new owner of the requests; empty leaves the owner
	// Within is how long after its admission the bind may succeed. After that it
	// fails and is undone.
	Within time.Duration `json:"within"`
	// RefuseIfHeld makes the admission fail with ErrNoFit, and record nothing,
	// where all handles are held: the caller then first checks whether the holders
	// still exist.
	RefuseIfHeld bool `json:"-"`
}

// BindARQ says which resource provider serves a request, as Placement chose it.
type BindARQ struct {
	UUID     uuid.UUID `json:"uuid"`
	Provider uuid.UUID `json:"provider"`
}

// UnbindRequest takes back the handles of accelerator requests on one host,
// unless they are in use there.
type UnbindRequest struct {
	ARQs []uuid.UUID `json:"arqs"`
}

// WhitelistRequest replaces the file of the whitelist that this system writes
// for a host's Nova.
type WhitelistRequest struct {
	Host string `json:"host"`
	// Devices are all that the file contains afterwards. Without devices the file
	// is removed.
	Devices []WhitelistDevice `json:"devices"`
	// Force replaces a file that somebody else wrote or changed.
	Force bool `json:"force,omitempty"`
}

// WhitelistDevice is one accelerator of a WhitelistRequest.
type WhitelistDevice struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Spec        NovaSpec  `json:"spec,omitzero"`
}

// RescueRequest has Nova reboot the instances on a host that may have lost
// their accelerators when the host booted.
type RescueRequest struct {
	Host string `json:"host"`
	// Once leaves out the instances that an earlier rescue has handled since the
	// same boot.
	Once bool `json:"once,omitempty"`
	// Within bounds the whole rescue, including the time for which Nova is away.
	Within time.Duration `json:"within"`
}

// ConfigureAction is what a ConfigureRequest does.
type ConfigureAction string

// The configure actions.
const (
	ConfigureInstall   ConfigureAction = "install"
	ConfigureUninstall ConfigureAction = "uninstall" // refused while one of its devices is in use
	ConfigureUpdate    ConfigureAction = "update"
)

// ConfigureRequest enables, disables or reconfigures a backend of a compiled-in
// driver on a host.
type ConfigureRequest struct {
	Host    string          `json:"host"`
	Backend string          `json:"backend"`
	Action  ConfigureAction `json:"action"`
	Driver  string          `json:"driver,omitempty"` // needed by install where the host has no such backend yet
	Options JSONObject      `json:"options,omitempty"`
}
