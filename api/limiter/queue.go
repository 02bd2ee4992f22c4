package limiter

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// maxRetryAfter is the longest time that Retry-After asks a caller to stay
// away. Estimates from one slow moment must not send callers away for minutes.
const maxRetryAfter = 30 * time.Second

// Queue admits a limited number of holders at once. Others wait for a limited
// time, each caller's in a line of their own, and the lines take turns. So a
// caller with a thousand requests delays the one request of another by one turn
// at most. A newcomer is refused at once if, by the present pace, its turn would
// not come within that time: waiting would only delay the refusal.
type Queue struct {
	count   int
	config  Config
	full    func(waited time.Duration) *cyborg.Error // makes the error for a call that is refused
	shed    prometheus.Counter
	waiting prometheus.Gauge

	// mu guards what follows.
	mu   sync.Mutex
	free int // places that nobody holds; above 0 only while nobody waits

	// lines has the callers that wait, in the order of their turns.
	lines []*line

	// meanHold is how long a place was held lately on average. It is a moving
	// average, for estimates only.
	meanHold time.Duration
}

// line has the calls of one caller that wait, in the order of their arrival.
type line struct {
	caller  string
	waiters []*waiter
}

// waiter is one call that waits.
type waiter struct {
	neverRefused bool
	over         chan struct{} // closed when it has a place or is refused
	refused      error
}

// newQueue returns a queue with count places. full makes the error for a call
// that is refused, from how long it has waited; 0 means that it did not wait.
func newQueue(count int, config Config, shed prometheus.Counter, waiting prometheus.Gauge, full func(waited time.Duration) *cyborg.Error) *Queue {
	return &Queue{count: count, free: count, config: config, shed: shed, waiting: waiting, full: full}
}

// Acquire waits for a place in the line of the caller of ctx: for the queue's
// own time, unless ctx says otherwise; see WithCaller and NeverRefuse. Whoever
// calls it must call release exactly once to give the place back. The error is
// of kind ErrOverloaded, with the time after which there is probably a free
// place, or that of ctx.
func (q *Queue) Acquire(ctx context.Context) (release func(), err error) {
	began, a, caller := time.Now(), admissionOf(ctx), CallerOf(ctx)

	one, err := q.enter(caller, a.neverRefused)
	if err == nil && one != nil {
		err = q.await(ctx, a, caller, one, began)
	}
	if err != nil {
		return nil, err
	}

	entered := time.Now()
	return func() { q.release(time.Since(entered)) }, nil
}

// enter takes a free place, or begins to wait for one; then it returns the
// waiter.
func (q *Queue) enter(caller string, neverRefused bool) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.free > 0 {
		q.free--
		return nil, nil //nolint:nilnil // nobody waits
	}

	if !neverRefused {
		if q.estimatedWait(caller) > q.config.QueueWait {
			return nil, q.refuse(caller, q.full(0))
		}
		if err := q.makeRoom(caller); err != nil {
			return nil, err
		}
	}

	own := q.lineOf(caller)
	if own == nil {
		own = &line{caller: caller}
		q.lines = append(q.lines, own)
	}

	one := &waiter{neverRefused: neverRefused, over: make(chan struct{})}
	own.waiters = append(own.waiters, one)
	q.waiting.Inc()
	return one, nil
}

// makeRoom sees to it that one more call of the caller may wait. If too many
// wait, the refusal is for the caller that has the most: this one, or another
// one, whose newest call then waits no longer. Calls that must not be refused
// count for nobody.
func (q *Queue) makeRoom(caller string) error {
	own, all := 0, 0
	var longest *line

	for _, other := range q.lines {
		count := other.refusable()
		all += count
		if other.caller == caller {
			own = count
		}
		if longest == nil || count > longest.refusable() {
			longest = other
		}
	}

	switch {
	case own >= q.config.WaitingEach:
		return q.refuse(caller, crowded(own))
	case all < q.config.WaitingAll:
		return nil
	case longest == nil || own+1 >= longest.refusable():
		return q.refuse(caller, crowded(own))
	}

	for _, newest := range slices.Backward(longest.waiters) {
		if !newest.neverRefused {
			newest.refused = q.refuse(longest.caller, crowded(longest.refusable()))
			q.leave(longest.caller, newest)
			return nil
		}
	}

	return nil
}

// refusable returns how many of the line's calls may be refused.
func (l *line) refusable() (count int) {
	for _, one := range l.waiters {
		if !one.neverRefused {
			count++
		}
	}

	return count
}

// crowded returns the error of a caller that has too many calls waiting.
func crowded(waiting int) *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrOverloaded, "%d requests of this caller, or of its project, wait here already", waiting).
		WithHint("Send fewer at once, and the next ones after the time in Retry-After.")
}

// await waits until the call has a place, or is refused, or the wait of ctx is
// over.
func (q *Queue) await(ctx context.Context, a admission, caller string, one *waiter, began time.Time) error {
	waiting, until := ctx, a.until
	if usual := began.Add(q.config.QueueWait); !a.neverRefused && (until.IsZero() || until.After(usual)) {
		until = usual
	}

	if !until.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}

	select {
	case <-one.over:
	case <-waiting.Done():
	}

	q.mu.Lock()
	defer q.mu.Unlock()

	if q.leave(caller, one) {
		// If ctx itself has ended, the caller is gone or out of time; that is no
		// overload.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return q.refuse(caller, q.full(time.Since(began).Round(time.Millisecond)))
	}

	// A place that came at the last moment is taken, and given back by release.
	return one.refused
}

// leave takes a call out of its caller's line, and reports whether it was still
// there.
func (q *Queue) leave(caller string, one *waiter) bool {
	own := q.lineOf(caller)
	if own == nil {
		return false
	}

	at := slices.Index(own.waiters, one)
	if at < 0 {
		return false
	}

	own.waiters = slices.Delete(own.waiters, at, at+1)
	if len(own.waiters) == 0 {
		q.lines = slices.DeleteFunc(q.lines, func(l *line) bool { return l == own })
	}

	close(one.over)
	q.waiting.Dec()
	return true
}

// release gives a place to the first call of the line whose turn it is, which
// then is the last one to have another turn.
func (q *Queue) release(held time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()

	const weight = 8 // the last hold time counts for an eighth of the average
	q.meanHold += (held - q.meanHold) / weight

	if len(q.lines) == 0 {
		q.free++
		return
	}

	next := q.lines[0]
	q.lines = append(slices.Delete(q.lines, 0, 1), next)
	q.leave(next.caller, next.waiters[0])
}

// lineOf returns the line of the caller; nil if none of its calls waits.
func (q *Queue) lineOf(caller string) *line {
	for _, one := range q.lines {
		if one.caller == caller {
			return one
		}
	}

	return nil
}

// estimatedWait returns how long one more call of the caller would wait for its
// turn, at the present pace: the other callers get as many turns as this one
// needs, if so many of their calls wait.
func (q *Queue) estimatedWait(caller string) time.Duration {
	turns := 1
	if own := q.lineOf(caller); own != nil {
		turns += len(own.waiters)
	}

	ahead := 0
	for _, other := range q.lines {
		if other.caller != caller {
			ahead += min(len(other.waiters), turns)
		}
	}

	took := float64(q.meanHold) * float64(ahead+turns) / float64(q.count)
	return time.Duration(min(took, math.MaxInt64/2))
}

// refuse counts a refusal, and returns its error with the time after which a
// new attempt of the caller makes sense.
func (q *Queue) refuse(caller string, err *cyborg.Error) error {
	q.shed.Inc()
	return &refusal{err, min(q.estimatedWait(caller), maxRetryAfter)}
}

// refusal is the error of a caller that got no place.
type refusal struct {
	error

	retryAfter time.Duration
}

func (r *refusal) Unwrap() error { return r.error }

// RetryAfter returns the time after which the same request may succeed.
func (r *refusal) RetryAfter() time.Duration { return r.retryAfter }
