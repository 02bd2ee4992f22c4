package cyborg

import "github.com/google/uuid"

// OperationProvision is the opposite of OperationRetire.
const OperationProvision OperationKind = "provision"

// ProvisionRequest takes an inactive accelerator into service. That is
// Accelerator where it is set, or else the one called Name, or else the best
// one that satisfies Specs and Host, which then gets the name.
type ProvisionRequest struct {
	Accelerator uuid.UUID  `json:"accelerator,omitzero"`
	Name        string     `json:"name,omitempty"` // empty keeps the present name
	Specs       SpecsPatch `json:"acc_specs,omitzero"`
	Host        string     `json:"host,omitempty"`
}

// Kind returns OperationProvision.
func (ProvisionRequest) Kind() OperationKind { return OperationProvision }
