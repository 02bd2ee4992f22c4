package cyborg

import "github.com/google/uuid"

// OperationUnbind takes the handles of accelerator requests back, once the host
// says that they are not in use.
const OperationUnbind OperationKind = "unbind"

// UnbindRequest takes back the handles of accelerator requests on one host,
// unless they are in use there.
type UnbindRequest struct {
	ARQs []uuid.UUID `json:"arqs"`
}

// Kind returns OperationUnbind.
func (UnbindRequest) Kind() OperationKind { return OperationUnbind }
