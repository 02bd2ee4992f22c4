package conductor

import (
	"context"
	"log/slog"
	"time"
)

// Admitter admits what is due as soon as that is recorded: the provision of new hardware,
// where inventory.admission is auto, and the cleaning of handles. Any number of processes
// may run one. Reconcile does the same at its slower pace, for what an Admitter misses.
type Admitter struct {
	// What names in the log what is admitted: "the provision of new hardware".
	What string
	// Notify returns a channel that ticks when something was recorded, and at least
	// each second, until ctx ends. db.Store.Notify is meant for it.
	Notify func(ctx context.Context) <-chan struct{}
	// Admit admits operations and returns how many. Activities.AdmitNew and
	// Activities.AdmitCleanings are meant for it.
	Admit func(ctx context.Context) (int, error)
	Log   *slog.Logger
}

const (
	// admitPause is the least time between two calls of Admit, however much is
	// recorded: each call is a query.
	admitPause = 200 * time.Millisecond
	// The pauses after failed calls double from the shortest to the longest.
	shortestBackoff, longestBackoff = time.Second, 30 * time.Second
)

// Run calls Admit after each notification until ctx ends, and then returns nil.
// A failure is logged once, until a call succeeds again.
func (a *Admitter) Run(ctx context.Context) error {
	var (
		notified = a.Notify(ctx)
		backoff  time.Duration // 0 while nothing fails
	)

	for {
		admitted, err := a.Admit(ctx)
		pause := admitPause
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // a stop is no failure, whatever it interrupted
		case err != nil:
			if backoff == 0 {
				a.Log.WarnContext(ctx, "what is due cannot be admitted now; it is tried again", slog.String("what", a.What), slog.String("error", err.Error()))
			}
			backoff = min(max(2*backoff, shortestBackoff), longestBackoff)
			pause = backoff
		default:
			backoff = 0
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}

		if err == nil && admitted > 0 {
			continue // Admit is bounded, so there may be more
		}

		select {
		case <-ctx.Done():
			return nil
		case <-notified:
		}
	}
}
