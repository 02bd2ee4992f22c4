// Package limiter keeps any kind of request from taking everything there is: it divides the store's connections among those
// that read, those that change something, and event streams, and lets them wait in order. It knows neither the store nor
// any request, and must not import them.
package limiter

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// Share is the part of the store's connections that one kind of request may take at once. The store serves whoever comes
// first, so a flood of one kind would make all others wait behind it: health checks, agents' heartbeats, and the ends of
// operations among them. What no kind of request may take is theirs.
type Class int

// The shares, of 16 connections: 8, 4 and 2.
const (
	Read   Class = iota // requests that read
	Change              // requests that change something, with all that they read for it
	Stream              // event streams, which read again whenever something happened
	classes
)

// Of is the share of a request of that method.
func ClassOf(method string) Class {
	if method == http.MethodGet {
		return Read
	}
	return Change
}

// places is how many of the connections the share is.
func (s Class) connections(connections int) int { return max(1, connections>>(1+s)) }

// String is the word for the share in metrics and messages.
func (s Class) String() string { return [...]string{"read", "change", "stream"}[s] }

// turn says of a request which share it belongs to, and whether it waits as long as it must, or until a time.
type admission struct {
	class        Class
	neverRefused bool
	until        time.Time // zero for no end but the context's
}

type admissionKey struct{}

// With makes what is done in the context keep to the share.
func WithClass(ctx context.Context, share Class) context.Context {
	return context.WithValue(ctx, admissionKey{}, admission{class: share})
}

// NeverRefuse is for what must not be refused: it waits for its turn as long as the context lasts.
func NeverRefuse(ctx context.Context) context.Context { return NeverRefuseBefore(ctx, time.Time{}) }

// NeverRefuseBefore is for what must not be refused before that time.
func NeverRefuseBefore(ctx context.Context, until time.Time) context.Context {
	t := admissionOf(ctx)
	t.neverRefused, t.until = true, until
	return context.WithValue(ctx, admissionKey{}, t)
}

func admissionOf(ctx context.Context) admission {
	t, _ := ctx.Value(admissionKey{}).(admission)
	return t
}

// Turns are the gates of all shares of one store.
type Limiter struct {
	queues [classes]*Queue
}

// New divides so many connections. Who is not patient waits so long for a turn, and is then counted in shed, by share.
func New(connections int, wait time.Duration, shed *prometheus.CounterVec) *Limiter {
	t := &Limiter{}
	for i := range classes {
		count := i.connections(connections)
		full := func(waited time.Duration) *cyborg.Error {
			return cyborg.Errorf(cyborg.ErrOverloaded, "%d requests to %s are served here at once, and none of them was over within %s", count, i, waited).
				WithHint("Try again after the time in Retry-After, ask another replica, or raise database.max_conns.")
		}
		t.queues[i] = NewQueue(count, wait, shed.WithLabelValues(i.String()), full)
	}
	return t
}

// Through makes the call when it is the turn of its context's share. A request holds its place only while the store works
// for it, however slowly its caller takes the answer. The error is the call's, of kind ErrOverloaded, or that of ctx.
func Do[T any](ctx context.Context, limiter *Limiter, call func() (T, error)) (T, error) {
	leave, err := limiter.queues[admissionOf(ctx).class].Acquire(ctx)
	if err != nil {
		var nothing T
		return nothing, err
	}
	defer leave()
	return call()
}
