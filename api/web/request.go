// Package web is what every HTTP listener of Cyborg shares: request ids, the access log, recovery from panics, limits on
// bodies, strict JSON, and the one writer of errors. It knows nothing of what is served, and must not import it.
package web

import (
	"context"
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// RequestIDHeader carries the request id in both directions, as OpenStack's services do.
const RequestIDHeader = "X-Openstack-Request-Id"

// OperationHeader names the operation that a request became, in every answer that had one.
const OperationHeader = "Cyborg-Operation"

var requestIDPattern = regexp.MustCompile(`^req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// exchange is what is known of one request and its answer while it is being served.
type exchange struct {
	requestID string
	route     string // the pattern that matched; the metric label
	target    string // what it is about, where the path does not say so
	identity  Identity
	routine   bool  // happens all the time: of interest only where it fails
	stream    bool  // an answer that does not end by itself: its duration says nothing
	err       error // what WriteError answered
	errorBody ErrorBody
}

// ErrorBody makes the body of an error answer, as application/json, where an interface has a shape of its own. Of the
// error it may show only what is in the problem, unless it made the error itself.
type ErrorBody func(err error, problem Problem) any

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{} // outside Observe nobody reads it
}

// RequestID is the id of the request that ctx belongs to: the caller's where it sent a well-formed one, else ours.
func RequestID(ctx context.Context) string { return exchangeOf(ctx).requestID }

// SetRoute names the pattern that the request matched, for log and metrics.
func SetRoute(ctx context.Context, pattern string) { exchangeOf(ctx).route = pattern }

// SetTarget says what the request is about, for the audit, where its path does not.
func SetTarget(ctx context.Context, ids ...string) { exchangeOf(ctx).target = strings.Join(ids, ",") }

// Identity is who makes a request, for log and audit. ID and Project are those of Keystone.
type Identity struct {
	Name, ID, Project string
	Roles             []string
}

// SetIdentity says who makes the request.
func SetIdentity(ctx context.Context, identity Identity) { exchangeOf(ctx).identity = identity }

// SetRoutine says that such requests come all the time and interest nobody while they succeed: they are logged at debug.
func SetRoutine(ctx context.Context) { exchangeOf(ctx).routine = true }

// SetErrorBody gives the errors of this exchange another body than a problem's.
func SetErrorBody(ctx context.Context, shape ErrorBody) { exchangeOf(ctx).errorBody = shape }

// SetStream says that the answer does not end by itself, so that its duration is not measured.
func SetStream(ctx context.Context) { exchangeOf(ctx).stream = true }

func requestIDOf(r *http.Request) string {
	if id := r.Header.Get(RequestIDHeader); requestIDPattern.MatchString(id) {
		return id
	}
	return "req-" + uuid.NewString()
}

type drainKey struct{}

// WithDraining returns a context for all requests of a server whose handlers can see, through Draining, that it stops.
func WithDraining(ctx context.Context, draining <-chan struct{}) context.Context {
	return context.WithValue(ctx, drainKey{}, draining)
}

// Draining is closed when the server that serves the request begins to stop: what waits or streams then ends soon.
func Draining(ctx context.Context) <-chan struct{} {
	draining, _ := ctx.Value(drainKey{}).(<-chan struct{})
	return draining // nil blocks for ever: no server, no stop
}
