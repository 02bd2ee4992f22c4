package db

import (
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Page asks for a part of a list, in the list's own order. A list is read by
// key: Marker is the id (for hosts the name) of the last item of the page
// before. An unknown one is an error of kind ErrInvalid.
//
// Page is for /v1, whose lists come in pages. The lists of /v2 are whole, and
// ordered as the caller likes, as OpenStack's clients expect: they take a
// Listing.
type Page struct {
	Limit  int // 1–1000; 0 and more than that mean 1000
	Marker string
}

// UUIDRange chooses the UUIDs from First to Last, both included. All UUIDs with
// the same prefix lie in one range.
type UUIDRange struct{ First, Last uuid.UUID }

// AcceleratorFilter chooses accelerators; empty fields choose all. Fields are
// ANDed, values of one field ORed.
type AcceleratorFilter struct {
	UUIDs       []uuid.UUID
	UUIDRange   *UUIDRange
	Names       []string
	Hosts       []string
	Drivers     []string
	Backends    []string
	DeviceTypes []cyborg.DeviceType
	Statuses    []cyborg.Status
	Devices     []uuid.UUID
	Holder      *cyborg.Holder
}

// DeviceFilter chooses devices in the same way as AcceleratorFilter does.
type DeviceFilter struct {
	UUIDs     []uuid.UUID
	IDs       []int64
	UUIDRange *UUIDRange
	Hosts     []string
	Types     []cyborg.DeviceType
	Vendors   []string // vendor ids
}

// OperationFilter chooses operations; empty fields choose all. Fields are
// ANDed, values of one field ORed.
type OperationFilter struct {
	IDs       []uuid.UUID
	UUIDRange *UUIDRange
	Kinds     []cyborg.OperationKind
	States    []cyborg.OperationState
	Hosts     []string
	Subject   *cyborg.Subject
	Open      *bool // true chooses operations that have not ended, false those that have
}

// EventFilter chooses events that are about one of Subjects or about Operation,
// and on one of Hosts; empty fields choose all.
type EventFilter struct {
	Subjects  []cyborg.Subject
	Operation uuid.UUID
	Hosts     []string
}

// Admission is what Admit records: an operation and, with it, its claims.
type Admission struct {
	ID    uuid.UUID // chosen by the caller
	Actor cyborg.Actor

	// IdempotencyKey makes a repeat by the same actor return the operation that was
	// admitted first; empty for none. Fingerprint is that of the request: a repeat
	// of the key with another one is an error of kind ErrInvalid.
	IdempotencyKey string
	Fingerprint    string

	RetryOf uuid.UUID // the failed operation that this one repeats; zero for none

	Request cyborg.Request // what the operation has to do; it is recorded as its input
}

// Admitted is the answer of Admit.
type Admitted struct {
	Operation cyborg.Operation
	// Repeated is true where the operation had been admitted before with the same
	// idempotency key.
	Repeated bool
	// NothingToDo is true where there was nothing to do and no operation was
	// admitted, for example for a detach of an accelerator that nobody holds.
	NothingToDo bool
}

// Orphan is an operation that no workflow runs, as far as the records can tell.
type Orphan struct {
	Operation uuid.UUID
	Kind      cyborg.OperationKind
	State     cyborg.OperationState
	Since     time.Time // when it was admitted, started or ended, depending on the list
	Place     OperationPlace
}

// OperationPlace is a place in the order of admission. The zero value comes
// before all operations.
type OperationPlace struct {
	Admitted time.Time
	ID       uuid.UUID
}

// AttachmentPlace is a place in the order in which Disagreements lists: after a
// handle of a host or, with no handle, after all handles of the host. The zero
// value comes before all hosts.
type AttachmentPlace struct{ Host, Deployable, Handle string }

// Disagreement is an attachment about which the journal of a host and the
// records disagree, with the decision of the records.
type Disagreement struct {
	Host        string
	Backend     string
	Deployable  string
	Handle      cyborg.WorkHandle
	Operation   uuid.UUID
	Accelerator uuid.UUID

	Journal  cyborg.AttachmentState // "" where the journal has no such entry
	Recorded string                 // attached, in_doubt, left (unconfirmed), or "" for free

	// Unconfirmed is the operation that attached an unconfirmed handle; zero for
	// other handles.
	Unconfirmed uuid.UUID
	// Attach is the decision: whether the handle is to be attached.
	Attach bool
}
