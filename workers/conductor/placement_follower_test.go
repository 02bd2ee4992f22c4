package conductor_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workers/conductor"
)

// followed holds the records of hosts, as far as a follower sees them.
type followed struct {
	mu       sync.Mutex
	due      []string
	looks    int
	returned []string
	started  []string
	silences []time.Time
	away     error
}

// Notify ticks each second, as a store does while nothing happens.
func (*followed) Notify(ctx context.Context) <-chan struct{} {
	c := make(chan struct{})

	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			select {
			case <-ctx.Done():
				return
			case c <- struct{}{}:
			}
		}
	}()

	return c
}

func (f *followed) SetPlacementFollowing(context.Context, bool, time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.away
}

func (f *followed) RecordSilentHosts(context.Context, time.Duration) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silences = append(f.silences, time.Now())
	return 0, f.away
}

func (f *followed) TakeDuePlacement(_ context.Context, limit int, _ time.Duration) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	taken := f.due[:min(limit, len(f.due))]
	f.due = f.due[len(taken):]
	return taken, f.away
}

func (f *followed) ReturnPlacement(_ context.Context, hosts []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.returned = append(f.returned, hosts...)
	return nil
}

func (f *followed) MarkPlacementStarted(_ context.Context, hosts []string, _, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.started = append(f.started, hosts...)
	return nil
}

func (*followed) PlacementState(context.Context) (db.PlacementState, error) {
	return db.PlacementState{OutOfStep: 1}, nil
}

// locked runs do under the lock, to read what the store was asked or to change
// what it answers.
func (f *followed) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// follow runs a follower in a bubble until look returns.
func follow(t *testing.T, f *followed, start func(host string) error, look func(counted *db.PlacementState)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var counted db.PlacementState

		follower := conductor.Follower{
			Store: f, SilentAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
			Start:   func(_ context.Context, host string) error { return start(host) },
			Counted: func(state db.PlacementState) { f.locked(func() { counted = state }) },
		}

		done := make(chan error, 1)
		go func() { done <- follower.Run(ctx) }()
		look(&counted)
		stop()
		require.NoError(t, <-done)
	})
}

// wait lets this much of the bubble's time pass.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Each host that is due gets a run, and even many hosts take only a few looks
// at the records.
func TestFollowerStartsRuns(t *testing.T) {
	t.Parallel()
	f := &followed{}
	for range 250 {
		f.due = append(f.due, "h")
	}

	started := 0
	follow(t, f, func(string) error {
		f.locked(func() { started++ })
		return nil
	}, func(counted *db.PlacementState) {
		wait(500 * time.Millisecond)
		f.locked(func() {
			require.Equal(t, 250, started)
			require.LessOrEqual(t, f.looks, 5)
			require.Equal(t, 1, counted.OutOfStep)
		})
	})
}

// A host whose run cannot be started is returned, so that it is due again at
// once.
func TestFollowerReturnsHostsItCannotStart(t *testing.T) {
	t.Parallel()
	f := &followed{due: []string{"good", "bad"}}

	follow(t, f, func(host string) error {
		if host == "bad" {
			return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not answer")
		}
		return nil
	}, func(*db.PlacementState) {
		wait(50 * time.Millisecond)
		f.locked(func() {
			require.Equal(t, []string{"bad"}, f.returned)
			require.Equal(t, []string{"good"}, f.started)
		})
	})
}

// A host counts as silent only after the follower could have heard from it for
// that long. Right after a start, or after the database was away, that is not
// the case yet.
func TestFollowerDelaysSilenceAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := &followed{}
	follow(t, f, func(string) error { return nil }, func(*db.PlacementState) {
		began := time.Now()
		wait(59 * time.Second)
		f.locked(func() { require.Empty(t, f.silences) })

		wait(10 * time.Second)
		f.locked(func() {
			require.NotEmpty(t, f.silences)
			require.GreaterOrEqual(t, f.silences[0].Sub(began), time.Minute)
			f.away = errors.New("away")
		})

		wait(30 * time.Second)
		f.locked(func() { f.away, f.silences = nil, nil })

		back := time.Now()
		wait(55 * time.Second)
		f.locked(func() { require.Empty(t, f.silences) })
		wait(20 * time.Second)
		f.locked(func() {
			require.NotEmpty(t, f.silences)
			require.GreaterOrEqual(t, f.silences[0].Sub(back), 55*time.Second)
		})
	})
}
