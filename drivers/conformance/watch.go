package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers"
)

// watchChecks lists the checks of drivers with Watcher.
func watchChecks() []check {
	return []check{
		{name: "ends with its context", run: watchEnds},
		{name: "notices what vanishes", needs: canVanish, run: watchNotices},
	}
}

// watch starts Watch in a goroutine. The returned function ends it and requires
// that it does end.
func (b *bench) watch(t *testing.T, changed func()) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)

	done := make(chan error, 1)
	watcher := b.Driver.(drivers.Watcher) //nolint:forcetypeassert // its group runs only where it is one
	go func() { done <- watcher.Watch(ctx, changed) }()

	return func() {
		t.Helper()
		cancel()
		err := promptly(t, "Watch", func() error { return <-done })
		if err != nil {
			requireStopped(t, err)
		}
	}
}

// watchEnds checks that Watch ends with its context and changes nothing.
func watchEnds(t *testing.T, b *bench) {
	before := b.state(t)
	b.watch(t, func() {})()
	require.Equal(t, before, b.state(t))
}

// watchNotices takes a card away as soon as Watch has called changed for the
// first time. The change must not be lost: whoever discovers at the first call,
// and again at each later call, sees everything.
func watchNotices(t *testing.T, b *bench) {
	changed := make(chan struct{}, 1)
	end := b.watch(t, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})

	waitForChange := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(ReturnTimeout):
			require.Failf(t, "the watch tells nothing", "it should tell %s", what)
		}
	}

	waitForChange("that it has begun to look")
	b.Vanish(t, b.target.Device)
	waitForChange("of a card that vanished")
	end()
}
