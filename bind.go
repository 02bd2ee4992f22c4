package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// OperationBind gives accelerator requests of OpenStack their handles.
const OperationBind OperationKind = "bind"

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

// Kind returns OperationBind.
func (BindRequest) Kind() OperationKind { return OperationBind }

// BindARQ says which resource provider serves a request, as Placement chose it.
type BindARQ struct {
	UUID     uuid.UUID `json:"uuid"`
	Provider uuid.UUID `json:"provider"`
}
