package limiter

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// maxRetryAfter is the longest time that a caller is asked to stay away.
const maxRetryAfter = 30 * time.Second

// Gate lets so many in at once. Others wait in order, for a while, and no more than can have their turn in that while.
type Queue struct {
	places *semaphore.Weighted // first come, first served
	count  int
	wait   time.Duration
	full   func(waited time.Duration) *cyborg.Error // what a caller is told that does not get in
	shed   prometheus.Counter

	waiting atomic.Int64
	hold    atomic.Int64 // how long a place is held, on average of late, in nanoseconds
}

// NewQueue makes a gate with so many places; full says what a caller is told that waited so long and does not get in.
func NewQueue(count int, wait time.Duration, shed prometheus.Counter, full func(waited time.Duration) *cyborg.Error) *Queue {
	return &Queue{places: semaphore.NewWeighted(int64(count)), count: count, wait: wait, shed: shed, full: full}
}

// Enter waits for a place, which must be given back with leave, once; for how long, ctx says (NeverRefuse). The error is of
// kind ErrOverloaded, with the time after which there is probably room, or that of ctx.
func (g *Queue) Acquire(ctx context.Context) (leave func(), err error) {
	if !g.places.TryAcquire(1) {
		if err := g.queue(ctx); err != nil {
			return nil, err
		}
	}
	entered := time.Now()
	return func() {
		const weight = 8 // of what was before, to one of this
		before := g.hold.Load()
		g.hold.Store(before + (int64(time.Since(entered))-before)/weight) // one that is lost to another does no harm
		g.places.Release(1)
	}, nil
}

func (g *Queue) queue(ctx context.Context) error {
	t, began := admissionOf(ctx), time.Now()
	defer g.waiting.Add(-1)
	if ahead := g.waiting.Add(1); !t.neverRefused && g.after(ahead) > g.wait {
		return g.refuse(0)
	}
	waiting, until := ctx, t.until
	if !t.neverRefused {
		until = began.Add(g.wait)
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	if err := g.places.Acquire(waiting, 1); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return g.refuse(time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// after is how long it takes until so many have had their turn, as things are.
func (g *Queue) after(ahead int64) time.Duration {
	took := float64(g.hold.Load()) * float64(ahead) / float64(g.count)
	return time.Duration(min(took, math.MaxInt64/2))
}

func (g *Queue) refuse(waited time.Duration) error {
	g.shed.Inc()
	return web.RetryAfter(g.full(waited), min(g.after(g.waiting.Load()), maxRetryAfter))
}
