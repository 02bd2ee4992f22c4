package cyborg

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"github.com/google/uuid"
)

// Kind says what sort of failure an error is. HTTP status, Temporal retryability, log level and metric label all
// derive from it; nothing else in the tree decides those.
type Kind string

// The kinds. Each has exactly one row in the table below.
const (
	Invalid         Kind = "invalid"         // the request is malformed or contradicts itself
	Unauthenticated Kind = "unauthenticated" // no credential, or an unknown one
	Forbidden       Kind = "forbidden"       // the credential does not allow this
	NotFound        Kind = "not_found"       // the subject does not exist
	Changed         Kind = "changed"         // the record is not in the state or version the caller expected
	NameTaken       Kind = "name_taken"      // another accelerator has that name
	NoFit           Kind = "no_fit"          // no accelerator satisfies the request
	Claimed         Kind = "claimed"         // another operation works on it; Error.Operation names that operation
	InUse           Kind = "in_use"          // someone really uses the device
	TooLarge        Kind = "too_large"       // body or image exceeds its limit
	Unsupported     Kind = "unsupported"     // the driver of this device cannot do this
	ImageRejected   Kind = "image_rejected"  // checksum, header or target of the image do not match
	Protected       Kind = "protected"       // the host itself lives on this function
	Overloaded      Kind = "overloaded"      // too much work in flight
	Cancelled       Kind = "cancelled"       // someone cancelled the operation
	Busy            Kind = "busy"            // the device is busy for a moment
	HostSilent      Kind = "host_silent"     // the agent of the host does not answer
	Unavailable     Kind = "unavailable"     // a service we need does not answer
	Timeout         Kind = "timeout"         // a step took longer than its limit
	Hardware        Kind = "hardware"        // the device or its kernel driver failed
	Internal        Kind = "internal"        // a defect of ours
)

type kindRow struct {
	http  int
	retry bool
	level slog.Level
}

var kindTable = map[Kind]kindRow{
	Invalid:         {http.StatusBadRequest, false, slog.LevelInfo},
	Unauthenticated: {http.StatusUnauthorized, false, slog.LevelInfo},
	Forbidden:       {http.StatusForbidden, false, slog.LevelWarn},
	NotFound:        {http.StatusNotFound, false, slog.LevelInfo},
	Changed:         {http.StatusConflict, false, slog.LevelInfo},
	NameTaken:       {http.StatusConflict, false, slog.LevelInfo},
	NoFit:           {http.StatusConflict, false, slog.LevelInfo},
	Claimed:         {http.StatusConflict, false, slog.LevelInfo},
	InUse:           {http.StatusConflict, false, slog.LevelWarn},
	TooLarge:        {http.StatusRequestEntityTooLarge, false, slog.LevelInfo},
	Unsupported:     {http.StatusUnprocessableEntity, false, slog.LevelInfo},
	ImageRejected:   {http.StatusUnprocessableEntity, false, slog.LevelWarn},
	Protected:       {http.StatusConflict, false, slog.LevelWarn},
	Overloaded:      {http.StatusTooManyRequests, true, slog.LevelInfo},
	Cancelled:       {http.StatusConflict, false, slog.LevelInfo},
	Busy:            {http.StatusConflict, true, slog.LevelInfo},
	HostSilent:      {http.StatusServiceUnavailable, false, slog.LevelWarn},
	Unavailable:     {http.StatusServiceUnavailable, true, slog.LevelWarn},
	Timeout:         {http.StatusGatewayTimeout, true, slog.LevelWarn},
	Hardware:        {http.StatusBadGateway, false, slog.LevelError},
	Internal:        {http.StatusInternalServerError, false, slog.LevelError},
}

// Kinds returns every kind, sorted by name.
func Kinds() []Kind {
	kinds := make([]Kind, 0, len(kindTable))
	for k := range kindTable {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	return kinds
}

func (k Kind) row() kindRow {
	if row, ok := kindTable[k]; ok {
		return row
	}
	return kindTable[Internal]
}

// HTTPStatus is the status code of an answer that carries this kind.
func (k Kind) HTTPStatus() int { return k.row().http }

// Retryable says whether trying the same again can succeed without anybody changing anything.
func (k Kind) Retryable() bool { return k.row().retry }

// Refusal says that a host's agent answers with this kind only where it refused a step before it touched anything, so
// that there is nothing to undo. Agents keep to it; see activities/agent.
func (k Kind) Refusal() bool {
	switch k {
	case InUse, Protected, Unsupported, NotFound, Invalid, Changed, ImageRejected, TooLarge:
		return true
	default:
		return false
	}
}

// LogLevel is the level at which a failure of this kind is logged.
func (k Kind) LogLevel() slog.Level { return k.row().level }

// Error is a failure with its kind, a message for the person who caused or meets it, and what to do next.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	// Hint says what to do next, as a full sentence; empty where the message already does.
	Hint string `json:"hint,omitempty"`
	// Operation is the operation that failed, or the one that was faster: it works on the accelerator (Claimed), took
	// its handle for the present holder (InUse), or brought it to the state that is not the expected one (Changed,
	// NameTaken, NoFit). The zero UUID where no operation did.
	Operation uuid.UUID `json:"operation_id,omitzero"`
	cause     error
}

// Errorf makes an Error; the format and its arguments are those of fmt.Errorf, and %w keeps the cause for errors.Is.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithHint returns the same error that also says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	out := *e
	out.Hint = fmt.Sprintf(format, args...)
	return &out
}

// WithOperation returns the same error that also names an operation.
func (e *Error) WithOperation(id uuid.UUID) *Error {
	out := *e
	out.Operation = id
	return &out
}

// Error is the message; the hint is not part of it.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause, if any.
func (e *Error) Unwrap() error { return e.cause }

// KindOf returns the kind of the first Error in err's chain: Internal for any other error, "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// AsError returns err as an *Error: the first one in its chain, or a new one of kind Internal. Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Errorf(Internal, "%w", err)
}
