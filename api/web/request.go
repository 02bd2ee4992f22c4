// Package web is what every HTTP listener of Cyborg shares: request ids, the access log, recovery from panics, limits on
// bodies, strict JSON, and the one writer of errors. It knows nothing of what is served, and must not import it.
package web

import (
	"context"
	"net/http"
	"regexp"

	"github.com/google/uuid"
)

// RequestIDHeader carries the request id in both directions, as OpenStack's services do.
const RequestIDHeader = "X-Openstack-Request-Id"

var requestIDPattern = regexp.MustCompile(`^req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// exchange is what is known of one request and its answer while it is being served.
type exchange struct {
	requestID string
	route     string // the pattern that matched; the metric label
	actor     string
	routine   bool  // happens all the time: of interest only where it fails
	stream    bool  // an answer that does not end by itself: its duration says nothing
	err       error // what WriteError answered
}

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

// SetActor names who makes the request, for the log.
func SetActor(ctx context.Context, name string) { exchangeOf(ctx).actor = name }

// SetRoutine says that such requests come all the time and interest nobody while they succeed: they are logged at debug.
func SetRoutine(ctx context.Context) { exchangeOf(ctx).routine = true }

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
