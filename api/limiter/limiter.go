// Package limiter keeps one kind of request from using all connections of the
// store. It divides the connections among requests that read, requests that
// change something, and event streams, and lets requests wait for their turn in
// order. It knows neither the store nor any request, and must not import them.
package limiter

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// Class is a kind of request that may use only a part of the store's
// connections at once. The store serves requests in the order of their arrival,
// so a flood of one kind would make everything else wait behind it: health
// checks, the agents' heartbeats, and the ends of operations. Those belong to
// no class, and use the connections that the classes leave free.
type Class int

// The classes. Of 16 connections they may use 8, 4 and 2 at once.
const (
	Read    Class = iota // requests that read
	Change               // requests that change something, with all that they read for it
	Stream               // event streams, which read again whenever something happened
	classes              // how many classes there are
)

// ClassOf returns the class of requests with that HTTP method.
func ClassOf(method string) Class {
	if method == http.MethodGet {
		return Read
	}

	return Change
}

// connections returns how many of the store's connections the class may use at
// once: a half, a quarter, or an eighth, but at least one.
func (c Class) connections(connections int) int { return max(1, connections>>(1+c)) }

// String returns the name of the class for metrics and messages.
func (c Class) String() string { return [...]string{"read", "change", "stream"}[c] }

// admission says how the calls of a context are admitted: in which class, and
// how long they may wait.
type admission struct {
	class Class
	// neverRefused lets a call wait until the given time, instead of the limiter's
	// usual wait. The zero time means: as long as the context lasts.
	neverRefused bool
	until        time.Time
}

type admissionKey struct{}

// WithClass returns a context whose calls count against the class. It replaces
// an earlier NeverRefuse.
func WithClass(ctx context.Context, class Class) context.Context {
	return context.WithValue(ctx, admissionKey{}, admission{class: class})
}

// NeverRefuse returns a context whose calls are not refused for overload: they
// wait for their turn as long as the context lasts. It is for calls whose
// refusal would lose work that is already done.
func NeverRefuse(ctx context.Context) context.Context { return NeverRefuseBefore(ctx, time.Time{}) }

// NeverRefuseBefore returns a context whose calls are not refused for overload
// before the given time.
func NeverRefuseBefore(ctx context.Context, until time.Time) context.Context {
	a := admissionOf(ctx)
	a.neverRefused, a.until = true, until

	return context.WithValue(ctx, admissionKey{}, a)
}

// admissionOf returns what ctx says about admission. A context that says
// nothing counts as Read.
func admissionOf(ctx context.Context) admission {
	a, _ := ctx.Value(admissionKey{}).(admission)
	return a
}

// Limiter has one queue for each class, for the connections of one store.
type Limiter struct {
	queues [classes]*Queue
}

// New divides the given number of connections among the classes. A call waits
// for its turn for the given time; if there is none by then, it is refused, and
// counted in shed under its class.
func New(connections int, wait time.Duration, shed *prometheus.CounterVec) *Limiter {
	l := &Limiter{}
	for i := range classes {
		count := i.connections(connections)

		// full makes the error for a call that got no turn.
		full := func(waited time.Duration) *cyborg.Error {
			return cyborg.Errorf(cyborg.ErrOverloaded, "%d requests to %s are served here at once, and none of them was over within %s", count, i, waited).
				WithHint("Try again after the time in Retry-After, ask another replica, or raise database.max_conns.")
		}

		l.queues[i] = NewQueue(count, wait, shed.WithLabelValues(i.String()), full)
	}

	return l
}

// Do makes the call when a connection is free for the class of ctx. The
// connection counts as used only during the call, so a client that reads its
// answer slowly keeps nobody waiting. The error is that of the call, of kind
// ErrOverloaded if there was no turn, or that of ctx.
func Do[T any](ctx context.Context, limiter *Limiter, call func() (T, error)) (T, error) {
	release, err := limiter.queues[admissionOf(ctx).class].Acquire(ctx)
	if err != nil {
		var nothing T
		return nothing, err
	}

	defer release()
	return call()
}
