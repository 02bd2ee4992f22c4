// Package drain tells those who wait on behalf of a request that the server
// begins to stop: the signal travels in the context of each request. It knows
// nothing of HTTP, so that it can be asked wherever something waits.
package drain

import (
	"context"
	"time"
)

type signalKey struct{}

// WithSignal returns a context for all requests of a server. The channel is
// closed when the server begins to stop.
func WithSignal(ctx context.Context, signal <-chan struct{}) context.Context {
	return context.WithValue(ctx, signalKey{}, signal)
}

// Signal returns a channel that is closed when the server begins to stop. Who
// waits or streams must end soon after. Without a server it is nil, and blocks
// for ever.
func Signal(ctx context.Context) <-chan struct{} {
	signal, _ := ctx.Value(signalKey{}).(<-chan struct{})
	return signal
}

// Within returns a context that ends after the given time, with ctx, or when
// the server begins to stop.
func Within(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, wait)

	signal := Signal(ctx)
	// The goroutine ends with the context, which every caller cancels.
	go func() {
		select {
		case <-signal:
			cancel()
		case <-ctx.Done():
		}
	}()

	return ctx, cancel
}
