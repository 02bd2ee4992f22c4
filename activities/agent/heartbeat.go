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
	// LongestHeartbeatInterval is the longest time between two heartbeats. A cancellation arrives with one, and a person who follows the
	// step sees its progress with one. The worker must not hold them back for longer (MaxHeartbeatThrottleInterval).
	LongestHeartbeatInterval = 3 * time.Second
	// firstBeat is when the first heartbeat is due. Each is a transaction of Temporal's, which a step that is over sooner
	// does without.
	firstBeat = 500 * time.Millisecond
	// atOnce is the most that Temporal's handing a try out may be away from now where it begins without a heartbeat. One that
	// was held up on the way asks first whether anybody still waits for it.
	atOnce = time.Second
)

// beat tells Temporal, at intervals, that an activity goes on and how far it is. It is also how a cancellation arrives.
type beat struct {
	mu       sync.Mutex
	progress cyborg.Progress
	ended    chan struct{}
	gone     sync.WaitGroup
}

// startBeat begins to heartbeat. Where it is too long ago that the try was handed out, or the clocks differ, the first
// heartbeat is before it returns.
func startBeat(ctx context.Context, step string, handedOut, timeout time.Duration) *beat {
	b := &beat{progress: cyborg.Progress{Step: step, Percent: -1}, ended: make(chan struct{})}
	first := firstBeat
	interval := min(timeout/beatsPerTimeout, LongestHeartbeatInterval)
	if interval <= 0 { // nobody waits for heartbeats
		interval = LongestHeartbeatInterval
	}
	if handedOut.Abs() > atOnce {
		activity.RecordHeartbeat(ctx, b.progress)
		first = interval
	}
	b.gone.Go(func() {
		ticker := time.NewTicker(min(first, interval))
		defer ticker.Stop()
		for {
			select {
			case <-b.ended:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
				activity.RecordHeartbeat(ctx, b.now())
				ticker.Reset(interval)
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
