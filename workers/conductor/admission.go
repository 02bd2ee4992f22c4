package conductor

import (
	"context"
	"log/slog"
	"time"
)

// Admitter takes new hardware into service as soon as the records have it, where inventory.admission is auto. Any number of
// processes may have one; Reconcile is the net below it.
type Admitter struct {
	// Wake ticks when something was recorded, and each second at least; db.Store.Wake does.
	Notify func(ctx context.Context) <-chan struct{}
	// Admit admits what there is, and says how much that was; the conductor's Activities.AdmitNew does.
	Admit func(ctx context.Context) (int, error)
	Log   *slog.Logger
}

const (
	// admitPause is the least time between two looks, however much is recorded.
	admitPause = 200 * time.Millisecond
	// shortestTrouble and longestTrouble are how long it waits after a look that failed.
	shortestTrouble, longestTrouble = time.Second, 30 * time.Second
)

// Run does so until ctx ends.
func (a *Admitter) Run(ctx context.Context) error {
	var (
		wake    = a.Notify(ctx)
		trouble time.Duration
	)
	for {
		admitted, err := a.Admit(ctx)
		pause := admitPause
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it was told to stop, whatever that interrupted
		case err != nil:
			if trouble == 0 {
				a.Log.WarnContext(ctx, "new hardware cannot be taken into service now; it is tried again", slog.String("error", err.Error()))
			}
			trouble = min(max(2*trouble, shortestTrouble), longestTrouble)
			pause = trouble
		default:
			trouble = 0
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err == nil && admitted > 0 {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}
