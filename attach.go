package cyborg

import "github.com/google/uuid"

// OperationAttach gives a handle to a holder.
const OperationAttach OperationKind = "attach"

// AttachRequest gives a free handle of an accelerator to a holder.
type AttachRequest struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Holder      Holder    `json:"holder"`
	// Parameters are what was chosen for the handle, of those that the accelerator has.
	Parameters map[string]string `json:"parameters,omitempty"`
}

// Kind returns OperationAttach.
func (AttachRequest) Kind() OperationKind { return OperationAttach }

// AttachmentState is the state of an attachment in the agent's journal.
type AttachmentState string

// The attachment states.
const (
	AttachmentDone    AttachmentState = "attached"
	AttachmentInDoubt AttachmentState = "in_doubt" // the agent stopped in the middle of attach or detach
	AttachmentLost    AttachmentState = "lost"     // attached before the host's last boot, which undid it
)
