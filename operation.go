package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// SubjectKind is the kind of thing that an operation or an event is about.
type SubjectKind string

// The subject kinds.
const (
	SubjectHost        SubjectKind = "host"              // id: its name
	SubjectDevice      SubjectKind = "device"            // id: UUID
	SubjectAccelerator SubjectKind = "accelerator"       // id: UUID of the deployable
	SubjectHandle      SubjectKind = "handle"            // id: UUID
	SubjectOperation   SubjectKind = "operation"         // id: UUID
	SubjectBackend     SubjectKind = "backend"           // id: host/name
	SubjectARQ         SubjectKind = "arq"               // id: UUID
	SubjectProfile     SubjectKind = "device_profile"    // id: UUID
	SubjectProvider    SubjectKind = "resource_provider" // id: UUID; one that belongs to no accelerator
)

// Subject is what an operation or an event is about.
type Subject struct {
	Kind SubjectKind `json:"kind"`
	ID   string      `json:"id"`
}

// Actor is somebody on whose behalf something is done.
type Actor struct {
	Name string `json:"name"` // user, token name, or "cyborg" for automatic repairs
	// ID identifies the actor where several have the same name: keystone/<user id>,
	// token/<name>, certificate/<name in its URI> or local. It is empty only where
	// nobody authenticated, as in automatic repairs.
	ID        string `json:"id,omitempty"`
	Project   string `json:"project,omitempty"` // tenant, where there is one
	RequestID string `json:"request_id,omitempty"`
}

// Same says that both are the same identified actor, for the same project.
func (a Actor) Same(b Actor) bool { return a.ID != "" && a.ID == b.ID && a.Project == b.Project }

// StepState says how far a step of an operation is.
type StepState string

// The step states.
const (
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
)

// Step is one step of an operation, as it is recorded and shown.
type Step struct {
	Name  string    `json:"name"`
	State StepState `json:"state"`
	At    time.Time `json:"at"`
	Note  string    `json:"note,omitempty"`
}

// Progress is how far a running step is. It is read from the step's heartbeats
// in Temporal and never stored.
type Progress struct {
	Step    string `json:"step"`
	Percent int    `json:"percent"` // 0–100; -1 where it is unknown
	Note    string `json:"note,omitempty"`
}

// Operation is one durable piece of work with a kind, subjects, steps, progress
// and a result.
type Operation struct {
	ID        uuid.UUID      `json:"id"`
	Kind      OperationKind  `json:"kind"`
	State     OperationState `json:"state"`
	Host      string         `json:"host,omitempty"`
	Subjects  []Subject      `json:"subjects"`
	Actor     Actor          `json:"actor"`
	Input     JSONObject     `json:"input"`
	Result    JSONObject     `json:"result,omitempty"`
	Error     *Error         `json:"error,omitempty"`
	Steps     []Step         `json:"steps"`
	Progress  *Progress      `json:"progress,omitempty"`
	RetryOf   uuid.UUID      `json:"retry_of,omitzero"`
	CancelAt  time.Time      `json:"cancel_requested_at,omitzero"`
	CreatedAt time.Time      `json:"admitted_at"`
	StartedAt time.Time      `json:"started_at,omitzero"`
	EndedAt   time.Time      `json:"ended_at,omitzero"`
	// Run is the id of the run of its workflow that has the operation; empty before
	// it has begun. It is for those who talk to Temporal.
	Run string `json:"-"`
}

// Accelerator returns the id of the first accelerator among the subjects, which
// is the one that the operation was requested for; "" where there is none.
func (o *Operation) Accelerator() string {
	for _, subject := range o.Subjects {
		if subject.Kind == SubjectAccelerator {
			return subject.ID
		}
	}
	return ""
}

// WorkflowID returns the id of the operation's workflow: <kind>/<operation id>.
func (o *Operation) WorkflowID() string { return string(o.Kind) + "/" + o.ID.String() }
