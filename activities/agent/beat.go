package agent

import (
	"context"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
)

const (
	// beatsPerTimeout is how often an activity heartbeats within the time after which it is taken for dead.
	beatsPerTimeout = 3
	// LongestBeat is the longest time between two heartbeats. A cancellation arrives with one, and a person who follows the
	// step sees its progress with one. The worker must not hold them back for longer (MaxHeartbeatThrottleInterval).
	LongestBeat = 3 * time.Second
)

// beat tells Temporal, at intervals, that an activity goes on and how far it is. It is also how a cancellation arrives.
type beat struct {
	mu       sync.Mutex
	progress cyborg.Progress
	ended    chan struct{}
	gone     sync.WaitGroup
}

// startBeat heartbeats once before it returns.
func startBeat(ctx context.Context, step string, timeout time.Duration) *beat {
	b := &beat{progress: cyborg.Progress{Step: step, Percent: -1}, ended: make(chan struct{})}
	activity.RecordHeartbeat(ctx, b.progress)
	interval := min(timeout/beatsPerTimeout, LongestBeat)
	if interval <= 0 { // nobody waits for heartbeats
		interval = LongestBeat
	}
	b.gone.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-b.ended:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
				activity.RecordHeartbeat(ctx, b.now())
			}
		}
	})
	return b
}

// tell says how far the step is; percent is -1 where nobody can tell.
func (b *beat) tell(percent int, note string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Percent, b.progress.Note = percent, note
}

func (b *beat) now() cyborg.Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.progress
}

// stop ends the heartbeats. After it returns none is sent.
func (b *beat) stop() {
	close(b.ended)
	b.gone.Wait()
}
