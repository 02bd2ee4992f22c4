package operate

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// inFlight bounds the operations that this process has in flight for its
// callers. More of them at once would not end sooner; they would only make each
// other slower.
type inFlight struct {
	queue *limiter.Queue
	hold  time.Duration // longest time that one operation keeps its place
	gauge prometheus.Gauge
}

// newInFlight returns the places for config.MaxInFlight operations.
func newInFlight(config Config, limits *limiter.Limiter, gauge prometheus.Gauge) *inFlight {
	full := func(waited time.Duration) *cyborg.Error {
		return cyborg.Errorf(cyborg.ErrOverloaded, "%d operations are in flight here, and none ended within %s", config.MaxInFlight, waited).
			WithHint("Try again after the time in Retry-After, or raise api.max_in_flight.")
	}

	return &inFlight{queue: limits.Queue("operation", config.MaxInFlight, full), hold: config.InFlightHold, gauge: gauge}
}

// take waits for a place in flight: as long as the limiter lets requests wait,
// or as long as limiter.NeverRefuse says. The caller must call release when the
// operation has ended; calling it again does nothing. The place is taken back
// by itself after the hold time, because an operation that lasts longer waits
// for hardware and costs this process nothing. The error is of kind
// ErrOverloaded, or that of ctx.
func (l *inFlight) take(ctx context.Context) (release func(), err error) {
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
