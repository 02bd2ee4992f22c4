package cyborg

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/google/uuid"
)

// ErrorKind says what sort of failure an error is. HTTP status, retryability in
// Temporal, log level and metric label all derive from it; nothing else decides
// those.
type ErrorKind string

// The error kinds. Each has exactly one row in errorKindTable.
const (
	ErrInvalid         ErrorKind = "invalid"         // the request is malformed or contradicts itself
	ErrUnauthenticated ErrorKind = "unauthenticated" // no credential, or an unknown one
	ErrForbidden       ErrorKind = "forbidden"       // the credential does not allow this
	ErrNotFound        ErrorKind = "not_found"       // the subject does not exist
	ErrGone            ErrorKind = "gone"            // the event of a cursor is not in the records any more; Error.After is where to go on
	ErrChanged         ErrorKind = "changed"         // the record is not in the state or version the caller expected
	ErrNameTaken       ErrorKind = "name_taken"      // another accelerator has that name
	ErrNoFit           ErrorKind = "no_fit"          // no accelerator satisfies the request
	ErrClaimed         ErrorKind = "claimed"         // another operation works on it; Error.Operation names that operation
	ErrInUse           ErrorKind = "in_use"          // somebody holds or really uses the device
	ErrTooLarge        ErrorKind = "too_large"       // body or image exceeds its limit
	ErrUnsupported     ErrorKind = "unsupported"     // the driver of this device cannot do this, or its host does not allow it
	ErrImageRejected   ErrorKind = "image_rejected"  // checksum, header or target of the image do not match
	ErrProtected       ErrorKind = "protected"       // the host itself depends on this function
	ErrOverloaded      ErrorKind = "overloaded"      // too much work in flight
	ErrCancelled       ErrorKind = "cancelled"       // someone cancelled the operation
	ErrSuperseded      ErrorKind = "superseded"      // the operation has ended, or another run of it has taken over
	ErrBusy            ErrorKind = "busy"            // the device is busy for a moment
	ErrHostSilent      ErrorKind = "host_silent"     // the agent of the host does not answer
	ErrOtherAgent      ErrorKind = "other_agent"     // the step is for another agent of the host than the one that has it
	ErrNotStaged       ErrorKind = "not_staged"      // the host does not have the image that was staged for the operation
	ErrNotGranted      ErrorKind = "not_granted"     // the host may not take the step now: its grant is not valid, or its journal is an old copy
	ErrLate            ErrorKind = "late"            // the host has seen a later assignment number than the step's
	ErrUnavailable     ErrorKind = "unavailable"     // a service that is needed does not answer
	ErrTimeout         ErrorKind = "timeout"         // a step took longer than its limit
	ErrHardware        ErrorKind = "hardware"        // the device or its kernel driver failed
	ErrInternal        ErrorKind = "internal"        // a defect in this program
)

// errorKindRow is what an error kind means outside: the HTTP status, whether
// another attempt may succeed, the log level.
type errorKindRow struct {
	http  int
	retry bool
	level slog.Level
}

var errorKindTable = map[ErrorKind]errorKindRow{
	ErrInvalid:         {http.StatusBadRequest, false, slog.LevelInfo},
	ErrUnauthenticated: {http.StatusUnauthorized, false, slog.LevelInfo},
	ErrForbidden:       {http.StatusForbidden, false, slog.LevelWarn},
	ErrNotFound:        {http.StatusNotFound, false, slog.LevelInfo},
	ErrGone:            {http.StatusGone, false, slog.LevelInfo},
	ErrChanged:         {http.StatusConflict, false, slog.LevelInfo},
	ErrNameTaken:       {http.StatusConflict, false, slog.LevelInfo},
	ErrNoFit:           {http.StatusConflict, false, slog.LevelInfo},
	ErrClaimed:         {http.StatusConflict, false, slog.LevelInfo},
	ErrInUse:           {http.StatusConflict, false, slog.LevelWarn},
	ErrTooLarge:        {http.StatusRequestEntityTooLarge, false, slog.LevelInfo},
	ErrUnsupported:     {http.StatusUnprocessableEntity, false, slog.LevelInfo},
	ErrImageRejected:   {http.StatusUnprocessableEntity, false, slog.LevelWarn},
	ErrProtected:       {http.StatusConflict, false, slog.LevelWarn},
	ErrOverloaded:      {http.StatusTooManyRequests, true, slog.LevelInfo},
	ErrCancelled:       {http.StatusConflict, false, slog.LevelInfo},
	ErrSuperseded:      {http.StatusConflict, false, slog.LevelWarn},
	ErrBusy:            {http.StatusConflict, true, slog.LevelInfo},
	ErrHostSilent:      {http.StatusServiceUnavailable, false, slog.LevelWarn},
	ErrOtherAgent:      {http.StatusServiceUnavailable, true, slog.LevelWarn},
	ErrNotStaged:       {http.StatusServiceUnavailable, false, slog.LevelWarn},
	ErrNotGranted:      {http.StatusServiceUnavailable, true, slog.LevelWarn},
	ErrLate:            {http.StatusConflict, true, slog.LevelWarn},
	ErrUnavailable:     {http.StatusServiceUnavailable, true, slog.LevelWarn},
	ErrTimeout:         {http.StatusGatewayTimeout, true, slog.LevelWarn},
	ErrHardware:        {http.StatusBadGateway, false, slog.LevelError},
	ErrInternal:        {http.StatusInternalServerError, false, slog.LevelError},
}

// ErrorKinds returns every kind, sorted by name.
func ErrorKinds() []ErrorKind {
	kinds := make([]ErrorKind, 0, len(errorKindTable))
	for k := range errorKindTable {
		kinds = append(kinds, k)
	}

	slices.Sort(kinds)
	return kinds
}

// row returns that of ErrInternal for an unknown kind, such as one from a newer
// release.
func (k ErrorKind) row() errorKindRow {
	if row, ok := errorKindTable[k]; ok {
		return row
	}
	return errorKindTable[ErrInternal]
}

// HTTPStatus is the status code of an answer that carries this kind.
func (k ErrorKind) HTTPStatus() int { return k.row().http }

// Retryable says whether another attempt can succeed although nobody has
// changed anything.
func (k ErrorKind) Retryable() bool { return k.row().retry }

// Refusal says that a host's agent answers with this kind only when it has
// refused a step before it touched anything, so that there is nothing to undo.
// Agents must keep to it; see activities/agent.
func (k ErrorKind) Refusal() bool {
	switch k {
	case ErrInUse, ErrProtected, ErrUnsupported, ErrNotFound, ErrInvalid, ErrChanged, ErrImageRejected, ErrTooLarge, ErrOtherAgent, ErrSuperseded,
		ErrLate, ErrNotGranted, ErrNotStaged:
		return true
	default:
		return false
	}
}

// LogLevel is the level at which a failure of this kind is logged.
func (k ErrorKind) LogLevel() slog.Level { return k.row().level }

// Error is a failure with its kind, a message for the person who caused or
// meets it, and what to do next.
type Error struct {
	Kind    ErrorKind `json:"kind"`
	Message string    `json:"message"`
	// Hint says what to do next, as a full sentence; empty where the message
	// already does.
	Hint string `json:"hint,omitempty"`
	// Operation is the operation that failed, or the one that stands in the way: it
	// works on the accelerator (ErrClaimed), took the handle for its present holder
	// (ErrInUse), or caused the state that was not expected (ErrChanged,
	// ErrNameTaken, ErrNoFit). Zero where no operation did.
	Operation uuid.UUID `json:"operation_id,omitzero"`
	// After is the cursor after which a reader of events can go on (ErrGone); the
	// zero Cursor is before the oldest event that is kept.
	After Cursor `json:"after,omitzero"`
	cause error
}

// Errorf makes an Error; the format and its arguments are those of fmt.Errorf,
// and %w keeps the cause for errors.Is.
func Errorf(kind ErrorKind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithHint returns a copy of the error that also says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	out := *e
	out.Hint = fmt.Sprintf(format, args...)
	return &out
}

// WithOperation returns a copy of the error that also names an operation.
func (e *Error) WithOperation(id uuid.UUID) *Error {
	out := *e
	out.Operation = id
	return &out
}

// WithAfter returns a copy of the error that also says where to go on.
func (e *Error) WithAfter(after Cursor) *Error {
	out := *e
	out.After = after
	return &out
}

// Error returns the message, without the hint.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// ErrorKindOf returns the kind of the first *Error in err's chain: ErrInternal
// for any other error, "" for nil.
func ErrorKindOf(err error) ErrorKind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ErrInternal
}

// AsError returns err as an *Error: the first one in its chain, or a new one of
// kind ErrInternal. Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(ErrInternal, "%w", err)
}
