package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers"
)

func watchChecks() []check {
	return []check{
		{name: "ends with its context", run: watchEnds},
		{name: "notices what vanishes", needs: canVanish, run: watchNotices},
	}
}

// watch starts Watch; end ends it and requires that it does end.
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

func watchEnds(t *testing.T, b *bench) {
	before := b.state(t)
	b.watch(t, func() {})()
	require.Equal(t, before, b.state(t))
}

// watchNotices takes a card away and puts it back, ever slower, until the watch tells of it: nobody knows when a watch
// that was started begins to look, nor how often it does.
func watchNotices(t *testing.T, b *bench) {
	changed := make(chan struct{}, 1)
	end := b.watch(t, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	told := func(patience time.Duration) bool {
		select {
		case <-changed:
			return true
		case <-time.After(patience):
			return false
		}
	}
	noticed := false
	restore := func() {}
	for patience, away := Promptly/40, false; patience < Promptly/2 && !noticed; patience, away = 2*patience, !away {
		if away {
			restore()
		} else {
			restore = b.Vanish(t, b.target.Device)
		}
		noticed = told(patience)
	}
	require.True(t, noticed, "the watch tells of a card that vanished")
	end()
}
