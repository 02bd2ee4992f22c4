package v1

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg"
)

// slots bounds the operations that this process has in flight: past that number only their latency would grow.
type slots struct {
	places    *semaphore.Weighted // first come, first served
	count     int
	queueWait time.Duration
	hold      time.Duration
	gauge     prometheus.Gauge
}

func newSlots(config Config, gauge prometheus.Gauge) *slots {
	return &slots{
		places: semaphore.NewWeighted(int64(config.MaxInFlight)), count: config.MaxInFlight,
		queueWait: config.QueueWait, hold: config.SlotHold, gauge: gauge,
	}
}

// take waits briefly for a place. It must be given back with release; it comes back by itself after the hold.
// The error is of kind Overloaded.
func (s *slots) take(ctx context.Context) (release func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, s.queueWait)
	defer cancel()
	if err := s.places.Acquire(waiting, 1); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, cyborg.Errorf(cyborg.Overloaded, "%d operations are in flight here, and none ended within %s", s.count, s.queueWait).
			WithHint("Try again after the time in Retry-After, or raise api.max_in_flight.")
	}
	s.gauge.Inc()
	giveBack := sync.OnceFunc(func() {
		s.gauge.Dec()
		s.places.Release(1)
	})
	late := time.AfterFunc(s.hold, giveBack)
	return func() {
		late.Stop()
		giveBack()
	}, nil
}
