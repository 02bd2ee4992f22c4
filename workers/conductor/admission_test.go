package conductor_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/workers/conductor"
)

// The admitter admits all new hardware after a notification. It looks into the
// database no more often than needed, whether notifications are many or looks
// fail.
func TestAdmitterLooksAfterNotifications(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var (
			notify = make(chan struct{}, 1)
			looks  []time.Time
			found  []int // what the next looks find
			away   error
		)

		admitter := conductor.Admitter{
			Notify: func(context.Context) <-chan struct{} { return notify },
			Admit: func(context.Context) (int, error) {
				looks = append(looks, time.Now())
				if away != nil || len(found) == 0 {
					return 0, away
				}
				n := found[0]
				found = found[1:]
				return n, nil
			},
			Log: slog.New(slog.DiscardHandler),
		}

		done := make(chan error, 1)
		go func() { done <- admitter.Run(ctx) }()
		wait(time.Hour)
		require.Len(t, looks, 1, "nothing was recorded")

		looks, found = nil, []int{500, 20}
		recorded := time.Now()
		notify <- struct{}{}
		wait(time.Minute)
		require.Len(t, looks, 3, "it looks until nothing is left")
		require.Equal(t, recorded, looks[0])

		looks = nil
		for range 100 { // a busy feed
			select {
			case notify <- struct{}{}:
			default:
			}
			wait(10 * time.Millisecond)
		}
		require.LessOrEqual(t, len(looks), 7)

		wait(time.Minute)
		looks, away = nil, errors.New("Temporal does not answer")
		for range 600 {
			select {
			case notify <- struct{}{}:
			default:
			}
			wait(time.Second)
		}
		require.Less(t, len(looks), 30, "it looks ever more seldom after failures")

		stop()
		require.NoError(t, <-done)
	})
}
