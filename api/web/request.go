// Package web is what all HTTP listeners of Cyborg share: request IDs, the
// access log, recovery from panics, limits on bodies, strict JSON, and the one
// writer of errors. It knows nothing of what is served, and must not import it.
package web

import (
	"context"
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// RequestIDHeader carries the request ID in requests and answers, as in
// OpenStack's services.
const RequestIDHeader = "X-Openstack-Request-Id"

// OperationHeader is the response header that names the operation which a
// request became.
const OperationHeader = "Cyborg-Operation"

// requestIDPattern is OpenStack's form of a request ID. Others are replaced,
// because a caller could put anything into the log through them.
var requestIDPattern = regexp.MustCompile(`^req-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// exchange collects what is known of a request and its answer while the request
// is served.
type exchange struct {
	requestID string
	identity  Identity
	route     string // the pattern that matched; the label in metrics
	target    string // what the request is about, if the path does not say so

	routine bool // happens all the time, and is of interest only if it fails
	stream  bool // does not end by itself, so its duration says nothing

	err       error // what WriteError answered
	errorBody ErrorBody
}

// ErrorBody returns the body of an error answer, sent as application/json, for
// an interface with a form of errors of its own. It may show only what is in
// the problem, because the error can have internal details; an error that the
// interface itself made it may show.
type ErrorBody func(err error, problem Problem) any

type exchangeKey struct{}

// exchangeOf returns the exchange that ctx belongs to. Outside Observe it
// returns a new one, which nobody reads.
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}

	return &exchange{}
}

// RequestID returns the ID of the request that ctx belongs to: the caller's ID
// if it sent a well-formed one, else one made by this server.
func RequestID(ctx context.Context) string { return exchangeOf(ctx).requestID }

// SetRoute names the pattern that the request matched, for the log and the
// metrics.
func SetRoute(ctx context.Context, pattern string) { exchangeOf(ctx).route = pattern }

// SetTarget names what the request is about, for the audit trail, if its path
// does not say so.
func SetTarget(ctx context.Context, ids ...string) { exchangeOf(ctx).target = strings.Join(ids, ",") }

// Identity is who makes a request, for the log and the audit trail. ID and
// Project are Keystone's.
type Identity struct {
	Name, ID, Project string
	Roles             []string
}

// SetIdentity says who makes the request.
func SetIdentity(ctx context.Context, identity Identity) { exchangeOf(ctx).identity = identity }

// SetRoutine says that requests like this one come all the time. They are
// logged at debug while they succeed.
func SetRoutine(ctx context.Context) { exchangeOf(ctx).routine = true }

// SetErrorBody gives the errors of this exchange another body than a Problem.
func SetErrorBody(ctx context.Context, shape ErrorBody) { exchangeOf(ctx).errorBody = shape }

// SetStream says that the answer does not end by itself. Its duration is not
// measured.
func SetStream(ctx context.Context) { exchangeOf(ctx).stream = true }

// requestIDOf returns the ID that the caller sent, or a new one.
func requestIDOf(r *http.Request) string {
	if id := r.Header.Get(RequestIDHeader); requestIDPattern.MatchString(id) {
		return id
	}
	return "req-" + uuid.NewString()
}

// Identified gives each request its ID, for a listener without Observe.
func Identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{requestID: requestIDOf(r)}
		w.Header().Set(RequestIDHeader, x.requestID)
		next.ServeHTTP(w, r.WithContext(cyborg.WithRequestID(context.WithValue(r.Context(), exchangeKey{}, x), x.requestID)))
	})
}

// LimiterClass returns the class of requests with that HTTP method.
func LimiterClass(method string) limiter.Class {
	if method == http.MethodGet {
		return limiter.Read
	}

	return limiter.Change
}
