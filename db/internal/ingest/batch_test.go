package ingest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestSubmitReturnsWhenNothingIsKept: a caller that has given up hears so when
// its message is no longer kept, neither in the batch that is being written nor
// in the queue. So its caller can count what waits.
func TestSubmitReturnsWhenNothingIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		writing := make(chan struct{})
		write := sync.OnceFunc(func() { close(writing) })
		flush := func(_ context.Context, batch []int) ([]int, []error) {
			<-writing
			return make([]int, len(batch)), make([]error, len(batch))
		}
		g := newBatcher("numbers", Options{QueueSize: 8, BatchSize: 1}, slog.New(slog.DiscardHandler), func(int) int { return 0 }, flush)
		running, stop := context.WithCancel(t.Context())
		go g.run(running)

		ctx, cancel := context.WithCancel(t.Context())
		defer func() { // whatever has failed: who is left would keep the bubble
			cancel()
			write()
			stop()
			synctest.Wait()
		}()

		const callers = 3
		returned := make(chan error, callers)
		for n := range callers {
			go func() {
				_, err := g.submit(ctx, n)
				returned <- err
			}()
			synctest.Wait()
		}

		cancel()
		synctest.Wait()
		require.Empty(t, returned)

		write()
		synctest.Wait()
		require.Len(t, returned, callers)
		for range callers {
			require.Error(t, <-returned)
		}
	})
}
