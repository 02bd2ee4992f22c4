package db

import (
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Page asks for a part of a list. Lists are read by key: Marker is the id (for hosts the name) of the last item of the
// page before. One that the store does not know is an error of kind ErrInvalid.
type Page struct {
	Limit  int // 1–1000; 0 and more than that mean 1000
	Marker string
}

// UUIDRange chooses the UUIDs from First to Last, both included; those that begin alike lie in one.
type UUIDRange struct{ First, Last uuid.UUID }

// AcceleratorFilter chooses accelerators; empty fields choose all. Fields are ANDed, values of one field ORed.
type AcceleratorFilter struct {
	UUIDs       []uuid.UUID
	Among       *UUIDRange
	Names       []string
	Hosts       []string
	Drivers     []string
	Backends    []string
	DeviceTypes []cyborg.DeviceType
	Statuses    []cyborg.Status
	Devices     []uuid.UUID
	Holder      *cyborg.Holder
}

// DeviceFilter chooses devices.
type DeviceFilter struct {
	UUIDs   []uuid.UUID
	IDs     []int64
	Among   *UUIDRange
	Hosts   []string
	Types   []cyborg.DeviceType
	Vendors []string // vendor ids
}

// OperationFilter chooses operations.
type OperationFilter struct {
	IDs     []uuid.UUID
	Among   *UUIDRange
	Kinds   []cyborg.OperationKind
	States  []cyborg.OperationState
	Hosts   []string
	Subject *cyborg.Subject
	Open    *bool
}

// EventFilter chooses events: those about one of Subjects or of Operation, and on one of Hosts; empty fields choose all.
type EventFilter struct {
	Subjects  []cyborg.Subject
	Operation uuid.UUID
	Hosts     []string
}

// Admission is what Admit records: the operation and, with it, its claims.
type Admission struct {
	ID    uuid.UUID // minted by the caller
	Actor cyborg.Actor
	// IdempotencyKey, where given, makes a repeat by the same actor return the operation admitted first; Fingerprint
	// is of the request, and a repeat with another one is an error of kind ErrInvalid.
	IdempotencyKey string
	Fingerprint    string
	RetryOf        uuid.UUID
	// Exactly one request is set.
	Provision *cyborg.ProvisionRequest
	Program   *cyborg.ProgramRequest
	Attach    *cyborg.AttachRequest
	Detach    *cyborg.DetachRequest
	Configure *cyborg.ConfigureRequest
	Retire    *cyborg.RetireRequest
	Bind      *cyborg.BindRequest
	Unbind    *cyborg.UnbindRequest
	Whitelist *cyborg.WhitelistRequest
	Rescue    *cyborg.RescueRequest
}

// Admitted is the answer of Admit.
type Admitted struct {
	Operation cyborg.Operation
	// Repeated says that the operation had been admitted before under the same idempotency key.
	Repeated bool
	// Nothing says that there was nothing to do, and no operation was admitted: a detach of what nobody holds.
	Nothing bool
}

// Orphan is an operation that no workflow looks after, as far as the records can tell.
type Orphan struct {
	Operation uuid.UUID
	Kind      cyborg.OperationKind
	State     cyborg.OperationState
	Since     time.Time // admitted, started or ended
	Place     OperationPlace
}

// OperationPlace is a place in the order of admission; the zero value is before all operations.
type OperationPlace struct {
	Admitted time.Time
	ID       uuid.UUID
}

// AttachmentPlace is a place in the order in which Disagreements lists: after a handle of a host, or after all of that host
// where there is none; the zero value is before all hosts.
type AttachmentPlace struct{ Host, Deployable, Handle string }

// Disagreement is an attachment about which a host's journal and the records say different things, with the decision.
type Disagreement struct {
	Host        string
	Backend     string
	Deployable  string
	Handle      cyborg.WorkHandle
	Operation   uuid.UUID
	Accelerator uuid.UUID
	Journal     cyborg.AttachmentState // "" where the journal has no such entry
	Recorded    string                 // attached, in_doubt, left (taken back by force), or "" for free
	// Left is the operation that attached what is left; zero where nothing is.
	Unconfirmed uuid.UUID
	// Attach says what the records decide: the handle should be attached (true) or not (false).
	Attach bool
}
