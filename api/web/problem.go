package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// statusClientGone is the status in the access log of requests whose caller
// left before the answer. It is nginx's convention; no caller receives it.
const statusClientGone = 499

// Problem is the body of every error answer (RFC 9457,
// application/problem+json).
type Problem struct {
	Type      string           `json:"type"`
	Title     string           `json:"title"`
	Status    int              `json:"status"`
	Detail    string           `json:"detail"`
	Kind      cyborg.ErrorKind `json:"kind"`
	RequestID string           `json:"request_id"`
	Operation uuid.UUID        `json:"operation_id,omitzero"`
	After     cyborg.Cursor    `json:"after,omitzero"`

	Hint string `json:"hint,omitempty"`
}

// titleTable holds the titles of the kinds: a few words that are the same for each
// problem of the kind, as the RFC demands.
var titleTable = map[cyborg.ErrorKind]string{
	cyborg.ErrInvalid:         "The request is not valid",
	cyborg.ErrUnauthenticated: "Who are you?",
	cyborg.ErrForbidden:       "You may not do this",
	cyborg.ErrNotFound:        "There is no such thing",
	cyborg.ErrGone:            "It is not there any more",
	cyborg.ErrChanged:         "It is not in the state that you expected",
	cyborg.ErrNameTaken:       "The name is taken",
	cyborg.ErrNoFit:           "No accelerator fits",
	cyborg.ErrClaimed:         "Another operation works on it",
	cyborg.ErrInUse:           "It is in use",
	cyborg.ErrNotGranted:      "The step has no valid grant",
	cyborg.ErrNotStaged:       "The host does not have the staged image",
	cyborg.ErrTooLarge:        "It is too large",
	cyborg.ErrUnsupported:     "Its driver cannot do this",
	cyborg.ErrImageRejected:   "The image does not fit",
	cyborg.ErrProtected:       "The host lives on it",
	cyborg.ErrOverloaded:      "Too much work in flight",
	cyborg.ErrCancelled:       "It was cancelled",
	cyborg.ErrSuperseded:      "Another run works on it",
	cyborg.ErrBusy:            "The device is busy",
	cyborg.ErrHostSilent:      "The host's agent does not answer",
	cyborg.ErrOtherAgent:      "The host has another agent",
	cyborg.ErrLate:            "Something later was decided",
	cyborg.ErrUnavailable:     "A service we need does not answer",
	cyborg.ErrTimeout:         "It took too long",
	cyborg.ErrHardware:        "The hardware failed",
	cyborg.ErrInternal:        "A defect of ours",
}

// title returns the title of a kind, which may be one of a newer release.
func title(kind cyborg.ErrorKind) string {
	return cmp.Or(titleTable[kind], titleTable[cyborg.ErrInternal])
}

// retryAfter returns how many seconds a caller should wait before a new
// attempt, by the kind of the error; 0 means that the answer does not say.
func retryAfter(kind cyborg.ErrorKind) int {
	switch kind {
	case cyborg.ErrOverloaded, cyborg.ErrBusy, cyborg.ErrLate:
		return 1
	case cyborg.ErrUnavailable, cyborg.ErrTimeout:
		return 5
	case cyborg.ErrHostSilent, cyborg.ErrOtherAgent, cyborg.ErrNotGranted, cyborg.ErrNotStaged:
		return 10
	default:
		return 0
	}
}

// statusError is an error with another HTTP status than that of its kind.
type statusError struct {
	err    *cyborg.Error
	status int
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// MethodNotAllowed returns the error for a path that exists, but not with the
// request's method.
func MethodNotAllowed(r *http.Request, allowed string) error {
	return &statusError{
		err: cyborg.Errorf(cyborg.ErrInvalid, "%s does not know %s", r.URL.Path, r.Method).
			WithHint("It knows %s.", allowed),
		status: http.StatusMethodNotAllowed,
	}
}

// WithStatus returns the error with another HTTP status than that of its kind,
// for where HTTP or an older interface demands one.
func WithStatus(err *cyborg.Error, status int) error { return &statusError{err: err, status: status} }

// RangeNotSatisfiable returns the error for a header Range that begins beyond
// the end.
func RangeNotSatisfiable(err error) error {
	return &statusError{err: cyborg.AsError(err), status: http.StatusRequestedRangeNotSatisfiable}
}

// retrier is an error that tells the caller when to try again.
type retrier interface {
	error
	// RetryAfter returns the time after which the same request may succeed.
	RetryAfter() time.Duration
}

// challenger is an error that tells the caller how to authenticate.
type challenger interface {
	error
	// Challenges returns the values of the header WWW-Authenticate.
	Challenges() []string
}

// WriteError answers with the error. The error's kind decides the status. An
// error that is no *cyborg.Error is of kind ErrInternal, and the text of such
// errors does not leave the process. Observe logs the error.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	exchangeOf(r.Context()).err = err
	given := err

	if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		exchangeOf(r.Context()).err = cyborg.Errorf(cyborg.ErrCancelled, "the caller went away: %w", err)
		w.WriteHeader(statusClientGone) // nobody reads it
		return
	}

	// An error of the deadline alone would be a defect of kind ErrInternal; it is a
	// timeout of the request.
	if errors.Is(err, context.DeadlineExceeded) && cyborg.ErrorKindOf(err) == cyborg.ErrInternal {
		err = cyborg.Errorf(cyborg.ErrTimeout, "the answer took longer than the request may last").
			WithHint("Try again; if that does not help, look at /readyz?verbose.")
	}

	e := cyborg.AsError(err)
	problem := Problem{
		Type:      "urn:cyborg:problem:" + string(e.Kind),
		Title:     title(e.Kind),
		Status:    e.Kind.HTTPStatus(),
		Detail:    cyborg.Sanitize(e.Message, longestText),
		Kind:      e.Kind,
		RequestID: RequestID(r.Context()),
		Operation: e.Operation,
		After:     e.After,
		Hint:      cyborg.Sanitize(e.Hint, longestText),
	}

	if s, ok := errors.AsType[*statusError](err); ok {
		problem.Status = s.status
	}

	if e.Kind == cyborg.ErrInternal {
		problem.Detail = "something went wrong inside; the log of this server has it under the request id"
		problem.Hint = "Give the request id " + problem.RequestID + " to the operator of this server."
	}

	header := w.Header()
	shown, contentType := any(problem), "application/problem+json"
	if shape := exchangeOf(r.Context()).errorBody; shape != nil {
		shown, contentType = shape(given, problem), "application/json"
	}

	body, err := json.Marshal(shown)
	if err != nil { // strings and numbers always marshal
		panic(err)
	}

	// The headers that a handler had set for its success do not describe the error.
	header.Set("Content-Type", contentType)
	header.Del("ETag")
	header.Del("Location")

	// A time that the error or the handler knows is better than the default of the
	// kind.
	seconds := retryAfter(e.Kind)
	if known, ok := errors.AsType[retrier](given); ok {
		seconds = max(1, int(math.Ceil(known.RetryAfter().Seconds())))
	}
	if seconds > 0 && header.Get("Retry-After") == "" {
		header.Set("Retry-After", strconv.Itoa(seconds))
	}

	if e.Kind == cyborg.ErrUnauthenticated {
		header.Set("WWW-Authenticate", `Bearer realm="cyborg"`)
	}
	if known, ok := errors.AsType[challenger](given); ok {
		header.Del("WWW-Authenticate")
		for _, challenge := range known.Challenges() {
			header.Add("WWW-Authenticate", challenge)
		}
	}

	w.WriteHeader(problem.Status)
	_, _ = w.Write(append(body, '\n')) // the caller may be gone; the access log has the status
}

// longestText is how many characters the texts of a problem have at most. They
// may quote what a caller sent.
const longestText = 1000

// Handler is an HTTP handler that returns its error instead of writing it.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP serves the request, and answers with the error if there is one.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		WriteError(w, r, err)
	}
}

// WriteJSON answers with the value as JSON. The error is that of marshalling;
// nothing is written then.
func WriteJSON(w http.ResponseWriter, status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the answer does not marshal: %w", err)
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the caller may be gone; the access log has the status
	return nil
}
