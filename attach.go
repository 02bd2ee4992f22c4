package cyborg

import "github.com/google/uuid"

// OperationAttach gives a handle to a holder.
const OperationAttach OperationKind = "attach"

// AttachRequest gives a free handle of an accelerator to a holder.
type AttachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      Holder    `json:"holder"`
}

// Kind returns OperationAttach.
func (AttachRequest) Kind() OperationKind { return OperationAttach }
