package cyborg

import "github.com/google/uuid"

// OperationDetach takes handles back from their holders.
const OperationDetach OperationKind = "detach"

// DetachRequest takes back the handles of an accelerator that a holder has.
type DetachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      *Holder   `json:"holder,omitempty"` // nil for all holders
	// Force takes the handles back in the records alone, where their host does not
	// answer or fails. The accelerator stays fenced until the host has settled the
	// handles.
	Force bool `json:"force,omitempty"`
}

// Kind returns OperationDetach.
func (DetachRequest) Kind() OperationKind { return OperationDetach }
