package limiter_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
)

// line is a queue with its callers, within a synctest bubble.
type line struct {
	t        *testing.T
	queue    *limiter.Queue
	registry *prometheus.Registry
	served   []string // who had a turn, in order
	holding  []func() // releases of those who have a place now
}

// newLine returns a queue with that many places.
func newLine(t *testing.T, places int, config limiter.Config) *line {
	t.Helper()
	registry := prometheus.NewRegistry()
	limits, err := limiter.New(config, registry)
	require.NoError(t, err)

	return &line{t: t, registry: registry, queue: limits.Queue("test", places, func(time.Duration) *cyborg.Error {
		return cyborg.Errorf(cyborg.ErrOverloaded, "full")
	})}
}

// call makes one call in a goroutine, and waits until it has a place, waits for
// one, or is over. Its error comes in the channel, nil with the place.
func (l *line) call(ctx context.Context, caller string) <-chan error {
	l.t.Helper()
	over := make(chan error, 1)

	go func() {
		release, err := l.queue.Acquire(limiter.WithCaller(ctx, caller))
		if err == nil {
			l.served, l.holding = append(l.served, caller), append(l.holding, release)
		}
		over <- err
	}()

	synctest.Wait()
	return over
}

// turn ends the turn of whoever has a place for longest.
func (l *line) turn() {
	l.t.Helper()
	release := l.holding[0]
	l.holding = l.holding[1:]
	release()
	synctest.Wait()
}

// waits requires that so many calls wait.
func (l *line) waits(count int) {
	l.t.Helper()
	require.Equal(l.t, count, l.gauge()["test"])
}

// gauge returns how many calls wait, by the queue.
func (l *line) gauge() map[string]int {
	l.t.Helper()
	families, err := l.registry.Gather()
	require.NoError(l.t, err)

	waiting := map[string]int{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "cyborg_requests_waiting" {
				waiting[metric.GetLabel()[0].GetValue()] = int(metric.GetGauge().GetValue())
			}
		}
	}

	return waiting
}

// refused requires that the call was refused, with a time to come back.
func refused(t *testing.T, call <-chan error) {
	t.Helper()
	require.NotEmpty(t, call, "the call still waits")
	err := <-call
	require.Equal(t, cyborg.ErrOverloaded, cyborg.ErrorKindOf(err))

	var known interface{ RetryAfter() time.Duration }
	require.ErrorAs(t, err, &known)
}

// rest ends all turns, and requires that each call had one and nothing is left.
func (l *line) rest(calls int) {
	l.t.Helper()
	for len(l.holding) > 0 {
		l.turn()
	}

	require.Len(l.t, l.served, calls)
	l.waits(0)
	require.Zero(l.t, l.queue.Lines())
}

// One caller with a thousand requests delays the single request of another by
// one turn at most, and has all its own served in the end.
func TestCallersTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 1000
		l := newLine(t, 1, limiter.Config{QueueWait: time.Hour, WaitingEach: many})

		l.call(t.Context(), "greedy") // has the place
		for range many {
			l.call(t.Context(), "greedy")
		}
		modest := l.call(t.Context(), "modest")
		l.waits(many + 1)

		l.turn()
		l.turn()
		require.NoError(t, <-modest)
		require.Equal(t, []string{"greedy", "greedy", "modest"}, l.served)

		// Whoever has had a turn is behind those that wait.
		l.call(t.Context(), "modest")
		l.call(t.Context(), "third")
		l.served = nil
		for range 4 {
			l.turn()
		}
		require.Equal(t, []string{"greedy", "modest", "third", "greedy"}, l.served)

		l.served = nil
		l.rest(many - 3)
	})
}

// A caller with a long line is told so by the present pace, and another one is
// not refused for it.
func TestThePaceIsThatOfTheCallersOwnLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1, limiter.Config{QueueWait: 20 * time.Second})

		for range 100 { // each place is held for almost a second
			l.call(t.Context(), "greedy")
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble's clock
			l.turn()
		}
		l.served = nil

		var calls []<-chan error
		for range 30 {
			calls = append(calls, l.call(t.Context(), "greedy"))
		}
		refused(t, calls[29])
		require.Empty(t, calls[20])

		modest := l.call(t.Context(), "modest")
		require.Empty(t, modest, "it waits, and is not refused")

		l.turn()
		l.turn()
		require.NoError(t, <-modest)
		l.rest(22)
	})
}

// A caller that gives up, or whose time is over, leaves its place to others.
func TestACallerThatGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1, limiter.Config{QueueWait: time.Minute})
		l.call(t.Context(), "holder")

		leaving, leave := context.WithCancel(t.Context())
		first := l.call(leaving, "a")
		second := l.call(t.Context(), "a")
		patient := l.call(limiter.NeverRefuse(t.Context()), "b")
		l.waits(3)

		leave()
		synctest.Wait()
		require.ErrorIs(t, <-first, context.Canceled)
		l.waits(2)

		time.Sleep(time.Minute) //nolint:forbidigo // of the bubble's clock
		synctest.Wait()
		refused(t, second)
		l.waits(1)

		l.turn()
		require.NoError(t, <-patient)
		l.rest(2)

		// The place is free, so nobody waits for it.
		last := l.call(t.Context(), "a")
		require.NoError(t, <-last)
		l.rest(3)
	})
}

// Whoever has too many requests waiting is refused, and nobody else: beyond the
// bound of each caller, and beyond that of all together.
func TestTooManyThatWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 1, limiter.Config{QueueWait: time.Hour, WaitingEach: 4, WaitingAll: 6})
		l.call(t.Context(), "holder")

		var greedy []<-chan error
		for range 4 {
			greedy = append(greedy, l.call(t.Context(), "greedy"))
		}
		refused(t, l.call(t.Context(), "greedy"))
		l.waits(4)

		// What must not be refused waits all the same, and counts for nobody.
		bind := l.call(limiter.NeverRefuse(t.Context()), "greedy")
		l.waits(5)

		modest := l.call(t.Context(), "modest")
		third := l.call(t.Context(), "third")
		l.waits(7)

		// All places to wait are taken now: the newest request of the caller with the
		// most makes room.
		fourth := l.call(t.Context(), "fourth")
		refused(t, greedy[3])
		require.Empty(t, fourth)
		fifth := l.call(t.Context(), "fifth")
		refused(t, greedy[2])

		// Nobody makes room for somebody who then has as many.
		refused(t, l.call(t.Context(), "greedy"))
		refused(t, l.call(t.Context(), "modest"))
		sixth := l.call(t.Context(), "sixth")
		refused(t, greedy[1])
		refused(t, l.call(t.Context(), "seventh"))
		l.waits(7)

		for _, waits := range []<-chan error{greedy[0], greedy[1], bind, modest, third, fourth, fifth, sixth} {
			require.Empty(t, waits)
		}
		l.rest(8)
	})
}

// A place that comes at the very moment that its caller gives up is not lost.
func TestAPlaceIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(t, 2, limiter.Config{QueueWait: time.Hour})

		for range 200 {
			l.call(t.Context(), "a")
			l.call(t.Context(), "a")

			leaving, leave := context.WithCancel(t.Context())
			call := l.call(leaving, "b")

			require.Len(t, l.holding, 2, "a place was lost")
			release := l.holding[0]
			l.holding = l.holding[1:]

			release() // the call has the place, and hardly notices before
			leave()
			synctest.Wait()
			require.Len(t, call, 1)

			for len(l.holding) > 0 {
				l.turn()
			}
		}

		l.served = nil
		l.call(t.Context(), "a")
		l.call(t.Context(), "b")
		l.rest(2)
	})
}

// The gauge has the queues of all classes from the start.
func TestTheGaugeOfThoseThatWait(t *testing.T) {
	t.Parallel()
	l := newLine(t, 1, limiter.Config{})
	require.Equal(t, map[string]int{"read": 0, "change": 0, "stream": 0, "test": 0}, l.gauge())
}
