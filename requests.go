package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// What each kind of operation asks for; it is recorded as the operation's input.

// ProvisionRequest takes an inactive accelerator into service: the given one, or else the one of that name, or else the
// best that satisfies Specs and Host, which then gets the name.
type ProvisionRequest struct {
	Accelerator uuid.UUID  `json:"accelerator,omitzero"`
	Name        string     `json:"name,omitempty"` // empty keeps the present name
	Specs       SpecsPatch `json:"acc_specs,omitzero"`
	Host        string     `json:"host,omitempty"`
}

// ProgramRequest loads an image into an accelerator. Where it has lost its image when its host booted, instances may hold it: none of
// them can use what is not there. The host makes sure that none does.
type ProgramRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
	// Reload loads again what was lost when the host booted, and only while it is lost.
	Reload bool `json:"reload,omitempty"`
}

// AttachRequest gives a free handle of an accelerator to a holder.
type AttachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      Holder    `json:"holder"`
}

// DetachRequest takes back the handles that a holder has of an accelerator; those of all holders where Holder is nil.
type DetachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      *Holder   `json:"holder,omitempty"`
	// Force takes them back in the records alone, where their host cannot; the accelerator is fenced until it has.
	Force bool `json:"force,omitempty"`
}

// RetireRequest takes an accelerator that nobody holds out of service: it is inactive then, and keeps its name.
type RetireRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
}

// BindRequest gives accelerator requests of one holder their handles on one host, all of them or none.
type BindRequest struct {
	Host    string    `json:"host"`
	Holder  Holder    `json:"holder"` // an instance or a service
	ARQs    []BindARQ `json:"arqs"`
	Project string    `json:"project,omitempty"` // to whom they shall belong; empty: as before
	// Within is how long after its admission it may still succeed; later it is undone, and has failed.
	Within time.Duration `json:"within"`
	// LookFirst has it refused with ErrNoFit, and not recorded, where all handles are held: whoever asks looks first whether the
	// holders still exist.
	LookFirst bool `json:"-"`
}

// BindARQ says which provider a request shall be served by, as Placement chose it.
type BindARQ struct {
	UUID     uuid.UUID `json:"uuid"`
	Provider uuid.UUID `json:"provider"`
}

// UnbindRequest takes the handles of accelerator requests on one host back, unless they are in use there.
type UnbindRequest struct {
	ARQs []uuid.UUID `json:"arqs"`
}

// WhitelistRequest makes these accelerators all that the whitelist of a host's Nova has through us; none removes it.
type WhitelistRequest struct {
	Host    string            `json:"host"`
	Devices []WhitelistDevice `json:"devices"`
	// Force replaces a file that somebody else wrote or changed.
	Force bool `json:"force,omitempty"`
}

// WhitelistDevice is one of them.
type WhitelistDevice struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Spec        NovaSpec  `json:"spec,omitzero"`
}

// RescueRequest has Nova reboot the instances on a host that may be without their accelerators since the host booted.
type RescueRequest struct {
	Host string `json:"host"`
	// Once leaves out those for which an operation had Nova do so before.
	Once bool `json:"once,omitempty"`
	// Within bounds all of it, a Nova that is away included.
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

// ConfigureRequest enables, disables or reconfigures a backend of a compiled-in driver on a host.
type ConfigureRequest struct {
	Host    string          `json:"host"`
	Backend string          `json:"backend"`
	Action  ConfigureAction `json:"action"`
	Driver  string          `json:"driver,omitempty"` // needed by install where the host has no such backend yet
	Options JSONObject      `json:"options,omitempty"`
}
