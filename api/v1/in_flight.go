package v1

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// slots bounds the operations that this process has in flight: past that number only their latency would grow.
type inFlightLimiter struct {
	gate  *limiter.Queue
	hold  time.Duration
	gauge prometheus.Gauge
}

func newInFlightLimiter(config Config, gauge prometheus.Gauge, shed prometheus.Counter) *inFlightLimiter {
	full := func(waited time.Duration) *cyborg.Error {
		return cyborg.Errorf(cyborg.ErrOverloaded, "%d operations are in flight here, and none ended within %s", config.MaxInFlight, waited).
			WithHint("Try again after the time in Retry-After, or raise api.max_in_flight.")
	}
	return &inFlightLimiter{gate: limiter.NewQueue(config.MaxInFlight, config.QueueWait, shed, full), hold: config.InFlightHold, gauge: gauge}
}

// take waits for a place: briefly, unless the request is patient. It must be given back with release; it comes back by itself after the hold.
// The error is of kind ErrOverloaded.
func (s *inFlightLimiter) take(ctx context.Context) (release func(), err error) {
	leave, err := s.gate.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	s.gauge.Inc()
	giveBack := sync.OnceFunc(func() {
		s.gauge.Dec()
		leave()
	})
	late := time.AfterFunc(s.hold, giveBack)
	return func() {
		late.Stop()
		giveBack()
	}, nil
}
