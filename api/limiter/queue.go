package limiter

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg"
)

// maxRetryAfter is the longest time that Retry-After asks a caller to stay
// away. Estimates from one slow moment must not send callers away for minutes.
const maxRetryAfter = 30 * time.Second

// Queue admits a limited number of holders at once. Others wait in order for a
// limited time. A newcomer is refused at once if, by the present pace, its turn
// would not come within that time: waiting would only delay the refusal.
type Queue struct {
	// places has count places; each holder has one.
	places *semaphore.Weighted // admits in the order of arrival
	count  int
	wait   time.Duration
	full   func(waited time.Duration) *cyborg.Error // makes the error for a caller that is refused
	shed   prometheus.Counter

	// waiting is how many callers wait for a place now.
	waiting atomic.Int64

	// meanHold is how long a place was held lately on average, in nanoseconds. It
	// is a moving average, for estimates only.
	meanHold atomic.Int64
}

// NewQueue returns a queue with count places in which callers wait for at most
// the given time. full makes the error for a caller that is refused, from how
// long it has waited; 0 means that it did not wait.
func NewQueue(count int, wait time.Duration, shed prometheus.Counter, full func(waited time.Duration) *cyborg.Error) *Queue {
	return &Queue{places: semaphore.NewWeighted(int64(count)), count: count, wait: wait, shed: shed, full: full}
}

// Acquire waits for a place: for the queue's own time, unless ctx says
// otherwise; see NeverRefuse. The caller must call release exactly once to give
// the place back. The error is of kind ErrOverloaded, with the time after which
// there is probably a free place, or that of ctx.
func (q *Queue) Acquire(ctx context.Context) (release func(), err error) {
	if !q.places.TryAcquire(1) {
		if err := q.waitForPlace(ctx); err != nil {
			return nil, err
		}
	}

	entered := time.Now()

	return func() {
		// The last hold time counts for an eighth of the average. Load and Store are
		// not atomic together: a hold time that is lost to a concurrent release changes
		// an estimate, and nothing else.
		const weight = 8
		before := q.meanHold.Load()
		q.meanHold.Store(before + (int64(time.Since(entered))-before)/weight)

		q.places.Release(1)
	}, nil
}

// waitForPlace waits in the queue until a place is acquired, the wait of ctx is
// over, or the place cannot come in time.
func (q *Queue) waitForPlace(ctx context.Context) error {
	a, began := admissionOf(ctx), time.Now()

	ahead := q.waiting.Add(1)
	defer q.waiting.Add(-1)
	if !a.neverRefused && q.estimatedWait(ahead) > q.wait {
		return q.refuse(0)
	}

	waiting, until := ctx, a.until
	if usual := began.Add(q.wait); !a.neverRefused && (until.IsZero() || until.After(usual)) {
		until = usual
	}

	if !until.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}

	if err := q.places.Acquire(waiting, 1); err != nil {
		// If ctx itself has ended, the caller is gone or out of time; that is no
		// overload.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return q.refuse(time.Since(began).Round(time.Millisecond))
	}

	return nil
}

// estimatedWait returns how long it takes until that many callers have had
// their turn, at the present pace.
func (q *Queue) estimatedWait(ahead int64) time.Duration {
	took := float64(q.meanHold.Load()) * float64(ahead) / float64(q.count)
	return time.Duration(min(took, math.MaxInt64/2))
}

// refuse counts a refusal, and returns its error with the time after which a
// new attempt makes sense.
func (q *Queue) refuse(waited time.Duration) error {
	q.shed.Inc()
	return &refusal{q.full(waited), min(q.estimatedWait(q.waiting.Load()), maxRetryAfter)}
}

// refusal is the error of a caller that got no place.
type refusal struct {
	error

	retryAfter time.Duration
}

func (r *refusal) Unwrap() error { return r.error }

// RetryAfter returns the time after which the same request may succeed.
func (r *refusal) RetryAfter() time.Duration { return r.retryAfter }
