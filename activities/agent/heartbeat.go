package agent

import (
	"context"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
)

const (
	// heartbeatsPerTimeout is how many heartbeats are sent within the heartbeat
	// timeout: two of three may be lost before Temporal takes the activity for
	// dead.
	heartbeatsPerTimeout = 3
	// LongestHeartbeatInterval is the longest time between two heartbeats. A
	// cancellation arrives with the answer to a heartbeat, and whoever follows the
	// step sees progress only with one. The worker must not hold heartbeats back
	// for longer (MaxHeartbeatThrottleInterval).
	LongestHeartbeatInterval = 3 * time.Second
	// firstHeartbeat is when the first heartbeat is due. Each heartbeat costs a
	// transaction in Temporal, which a step that is over sooner does without.
	firstHeartbeat = 500 * time.Millisecond
	// promptStart is the longest delay since Temporal handed the try out with which
	// the try starts without a heartbeat. A try that took longer to arrive asks
	// first whether anybody still waits for it.
	promptStart = time.Second
)

// heartbeat tells Temporal at intervals that an activity goes on and how far it
// is. It is also how a cancellation arrives. It owns one goroutine, from
// startHeartbeat until stop.
type heartbeat struct {
	mu       sync.Mutex
	progress cyborg.Progress
	ended    chan struct{}
	sender   sync.WaitGroup
}

// startHeartbeat starts to send heartbeats. Where the try was handed out too
// long ago, or the clocks of the two machines differ, it sends the first one
// before it returns.
func startHeartbeat(ctx context.Context, step string, handedOut, timeout time.Duration) *heartbeat {
	b := &heartbeat{progress: cyborg.Progress{Step: step, Percent: -1}, ended: make(chan struct{})}
	first := firstHeartbeat
	interval := min(timeout/heartbeatsPerTimeout, LongestHeartbeatInterval)
	if interval <= 0 { // the activity has no heartbeat timeout; heartbeats still carry cancellation and progress
		interval = LongestHeartbeatInterval
	}

	if handedOut.Abs() > promptStart {
		activity.RecordHeartbeat(ctx, b.progress)
		first = interval
	}

	b.sender.Go(func() {
		ticker := time.NewTicker(min(first, interval))
		defer ticker.Stop()
		for {
			select {
			case <-b.ended:
				return
			case <-ctx.Done():
				return
			case <-ticker.C:
				activity.RecordHeartbeat(ctx, b.current())
				ticker.Reset(interval)
			}
		}
	})

	return b
}

// unknownProgress is the percentage while nobody knows how far the step is.
const unknownProgress = -1

// setProgress sets how far the step is, for the next heartbeat. The percentage
// may be unknownProgress.
func (b *heartbeat) setProgress(percent int, note string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.progress.Percent, b.progress.Note = percent, note
}

// current returns the progress to send.
func (b *heartbeat) current() cyborg.Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.progress
}

// stop ends the heartbeats and waits for the sending goroutine: no heartbeat is
// sent after it returns.
func (b *heartbeat) stop() {
	close(b.ended)
	b.sender.Wait()
}
