package cyborg

import "github.com/google/uuid"

// OperationRetire is the opposite of OperationProvision.
const OperationRetire OperationKind = "retire"

// RetireRequest takes an accelerator that nobody holds out of service. It is
// inactive then, and keeps its name.
type RetireRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
}

// Kind returns OperationRetire.
func (RetireRequest) Kind() OperationKind { return OperationRetire }
