package conductor_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestSettler: of the hosts that it is told of, the settler starts the runs of those
// that disagree, each once however often it was told, and tries again what fails, less
// and less often.
func TestSettler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var (
			mu        sync.Mutex
			disagrees = map[string]bool{"h1": true, "h2": true}
			away      error
			tries     int
			started   []string
		)

		settler := conductor.NewSettler(func(_ context.Context, host string) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			return disagrees[host], nil
		}, func(_ context.Context, host string, reason workflows.SettleReason) error {
			mu.Lock()
			defer mu.Unlock()
			if reason == workflows.HostTakesBack {
				host += " takes back"
			}
			if strings.HasPrefix(host, "h1") && away != nil {
				tries++
				return away
			}
			started = append(started, host)
			return nil
		}, slog.New(slog.DiscardHandler))
		requireStarted := func(want ...string) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(started)
			require.Equal(t, want, started)
			started = nil
		}

		settler.Changed([]string{"h2", "h1", "h3"}) // before it runs
		settler.TakeBack([]string{"h1"})            // who waits for that does not wait for a report
		settler.Changed([]string{"h1"})
		done := make(chan error, 1)
		go func() { done <- settler.Run(ctx) }()
		synctest.Wait()
		requireStarted("h1 takes back", "h2")

		wait(time.Hour)
		requireStarted()
		settler.Changed([]string{"h2", "h3"})
		synctest.Wait()
		requireStarted("h2")

		mu.Lock()
		away, tries = errors.New("its run cannot be started"), 0
		mu.Unlock()
		settler.TakeBack([]string{"h1"})
		wait(time.Hour)
		settler.Changed([]string{"h2"})
		synctest.Wait()
		requireStarted("h2") // although another one fails
		mu.Lock()
		require.InDelta(t, 120, tries, 10)
		away = nil
		mu.Unlock()
		wait(time.Minute)
		requireStarted("h1 takes back")

		stop()
		require.NoError(t, <-done)
	})
}
