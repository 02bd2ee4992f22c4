package cyborg

import "github.com/google/uuid"

// OperationWhitelist sets which PCI devices of a host its Nova gives out by
// itself.
const OperationWhitelist OperationKind = "whitelist"

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

// Kind returns OperationWhitelist.
func (WhitelistRequest) Kind() OperationKind { return OperationWhitelist }

// WhitelistDevice is one accelerator of a WhitelistRequest.
type WhitelistDevice struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Spec        NovaSpec  `json:"spec,omitzero"`
}
