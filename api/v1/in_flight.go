package v1

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// inFlightLimiter bounds the operations that this process has in flight for its
// callers. More of them at once would not end sooner; they would only make each
// other slower.
type inFlightLimiter struct {
	queue *limiter.Queue
	hold  time.Duration // longest time that one operation keeps its place
	gauge prometheus.Gauge
}

// newInFlightLimiter returns a limiter for config.MaxInFlight operations.
// Requests that find no place are counted in shed.
func newInFlightLimiter(config Config, gauge prometheus.Gauge, shed prometheus.Counter) *inFlightLimiter {
	full := func(waited time.Duration) *cyborg.Error {
		return cyborg.Errorf(cyborg.ErrOverloaded, "%d operations are in flight here, and none ended within %s", config.MaxInFlight, waited).
			WithHint("Try again after the time in Retry-After, or raise api.max_in_flight.")
	}

	return &inFlightLimiter{queue: limiter.NewQueue(config.MaxInFlight, config.QueueWait, shed, full), hold: config.InFlightHold, gauge: gauge}
}

// take waits for a place in flight: for Config.QueueWait at most, or as long as
// limiter.NeverRefuse says. The caller must call release when the operation has
// ended; calling it again does nothing. The limiter takes the place back by
// itself after the hold time, because an operation that lasts longer waits for
// hardware and costs this process nothing. The error is of kind ErrOverloaded,
// or that of ctx.
func (l *inFlightLimiter) take(ctx context.Context) (release func(), err error) {
	releasePlace, err := l.queue.Acquire(ctx)
	if err != nil {
		return nil, err
	}

	l.gauge.Inc()

	// Both the timer and the caller release the place; only the first one counts.
	releaseOnce := sync.OnceFunc(func() {
		l.gauge.Dec()
		releasePlace()
	})
	expiry := time.AfterFunc(l.hold, releaseOnce)

	return func() {
		expiry.Stop()
		releaseOnce()
	}, nil
}
