// Package limiter keeps one kind of request, and one caller, from using all
// connections of the store. It divides the connections among requests that read,
// requests that change something, and event streams, and lets the callers that
// wait take turns. It knows neither the store nor HTTP, and must not import them:
// package api gives Limiter.Acquire to the store as the turn of each request
// (db.WithTurn).
package limiter

import (
	"cmp"
	"context"
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

// connections returns how many of the store's connections the class may use at
// once: a half, a quarter, or an eighth, but at least one.
func (c Class) connections(connections int) int { return max(1, connections>>(1+c)) }

// String returns the name of the class for metrics and messages.
func (c Class) String() string { return [...]string{"read", "change", "stream"}[c] }

// admission says how the calls of a context are admitted: in which class, and
// how long they may wait.
type admission struct {
	class Class
	// neverRefused lets a call wait longer than the limiter's usual wait.
	neverRefused bool
	// until is when a call is refused at the latest. The zero time means that the
	// usual wait applies, or for neverRefused that only the context ends the wait.
	until time.Time
}

type admissionKey struct{}

type callerKey struct{}

// WithCaller returns a context whose calls wait in the line of this caller: of a
// project, or of whoever has none. Calls without a caller have a line together.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns in whose line the calls of ctx wait.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}

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

// RefuseAfter returns a context whose calls are refused for overload at the
// given time at the latest, even if they may wait longer by NeverRefuse or by
// the limiter's usual wait.
func RefuseAfter(ctx context.Context, until time.Time) context.Context {
	a := admissionOf(ctx)
	if a.until.IsZero() || a.until.After(until) {
		a.until = until
	}

	return context.WithValue(ctx, admissionKey{}, a)
}

// admissionOf returns what ctx says about admission. A context that says
// nothing counts as Read.
func admissionOf(ctx context.Context) admission {
	a, _ := ctx.Value(admissionKey{}).(admission)
	return a
}

// Config bounds what requests may use. The zero value of a field means its
// default.
type Config struct {
	// Connections is how many connections the store has; default 16. At once,
	// requests that read may use half of them, requests that change something a
	// quarter, and event streams an eighth.
	Connections int

	// QueueWait is how long a request waits for its turn before it is answered 429;
	// default 2 s.
	QueueWait time.Duration

	// WaitingEach is how many requests of one caller, or of its project, may wait in
	// one queue; default 500. WaitingAll is how many of all callers may; default
	// 2000. Beyond it, one of the caller that has the most is answered 429. Requests
	// that are never refused do not count.
	WaitingEach, WaitingAll int
}

// Limiter has one queue for each class, for the connections of one store, and
// makes the queues for whatever else there can be too much of.
type Limiter struct {
	queues  [classes]*Queue
	config  Config
	shed    *prometheus.CounterVec // requests answered 429
	waiting *prometheus.GaugeVec
}

// New divides the connections among the classes. The error says that a metric
// is already registered.
func New(config Config, registry prometheus.Registerer) (*Limiter, error) {
	config.Connections = cmp.Or(config.Connections, 16)
	config.QueueWait = cmp.Or(config.QueueWait, 2*time.Second)
	config.WaitingEach = cmp.Or(config.WaitingEach, 500)
	config.WaitingAll = cmp.Or(config.WaitingAll, 2000)

	labels := []string{"of"}
	l := &Limiter{
		config: config,
		shed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cyborg_requests_shed_total",
			Help: "Refusals for overload, by the limit that was reached: read, change, stream, operation. A bind tries again by itself, others get 429.",
		}, labels),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cyborg_requests_waiting",
			Help: "Requests that wait for their turn, by what they wait for: a connection for read, change or stream, or a place for an operation.",
		}, labels),
	}

	for i := range classes {
		count := i.connections(config.Connections)

		// full makes the error for a call that got no turn.
		full := func(waited time.Duration) *cyborg.Error {
			return cyborg.Errorf(cyborg.ErrOverloaded, "%d requests to %s are served here at once, and none of them was over within %s", count, i, waited).
				WithHint("Try again after the time in Retry-After, ask another replica, or raise database.max_conns.")
		}

		l.queues[i] = l.Queue(i.String(), count, full)
	}

	if err := registry.Register(l.waiting); err != nil {
		return nil, err
	}
	return l, registry.Register(l.shed)
}

// Queue returns a further queue with count places, in which callers wait as
// those of the classes do. What it refuses, and what waits, is counted under the
// name of what there was too much of; full makes the error for a call that is
// refused, see newQueue.
func (l *Limiter) Queue(of string, count int, full func(waited time.Duration) *cyborg.Error) *Queue {
	return newQueue(count, l.config, l.shed.WithLabelValues(of), l.waiting.WithLabelValues(of), full)
}

// CountShed counts a request of the class that was refused without a queue.
func (l *Limiter) CountShed(class Class) { l.shed.WithLabelValues(class.String()).Inc() }

// Acquire waits until a connection is free for the class of ctx. The caller
// must call release exactly once, when it no longer uses the connection. The
// error is of kind ErrOverloaded if there was no turn, or that of ctx.
func (l *Limiter) Acquire(ctx context.Context) (release func(), err error) {
	return l.queues[admissionOf(ctx).class].Acquire(ctx)
}
