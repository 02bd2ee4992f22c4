package cyborg

import "github.com/google/uuid"

// What each kind of operation asks for; it is recorded as the operation's input.

// ProvisionRequest takes an inactive accelerator into service: the given one, or else the one of that name, or else the
// best that satisfies Specs and Host, which then gets the name.
type ProvisionRequest struct {
	Accelerator uuid.UUID  `json:"accelerator,omitzero"`
	Name        string     `json:"name,omitempty"` // empty keeps the present name
	Specs       SpecsPatch `json:"acc_specs,omitzero"`
	Host        string     `json:"host,omitempty"`
}

// ProgramRequest loads an image into an accelerator.
type ProgramRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Image       Image     `json:"image"`
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
}

// ConfigureAction is what a ConfigureRequest does.
type ConfigureAction string

// The configure actions.
const (
	InstallDriver   ConfigureAction = "install"
	UninstallDriver ConfigureAction = "uninstall" // refused while one of its devices is in use
	UpdateDriver    ConfigureAction = "update"
)

// ConfigureRequest enables, disables or reconfigures a backend of a compiled-in driver on a host.
type ConfigureRequest struct {
	Host    string          `json:"host"`
	Backend string          `json:"backend"`
	Action  ConfigureAction `json:"action"`
	Driver  string          `json:"driver,omitempty"` // needed by install where the host has no such backend yet
	Options JSONObject      `json:"options,omitempty"`
}
