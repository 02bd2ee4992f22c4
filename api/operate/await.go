package operate

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/drain"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/workflows"
)

// Await waits until the operation has ended, the wait is over, or the server
// begins to stop, and returns the operation as it is recorded then. The
// operation may still be running.
func (r *Runner) Await(ctx context.Context, operation uuid.UUID, wait time.Duration) (cyborg.Operation, error) {
	return r.awaitRun(ctx, operation, nil, wait)
}

// awaitRun is Await for an operation whose run this process has started, unless
// the run is nil.
func (r *Runner) awaitRun(ctx context.Context, operation uuid.UUID, run workflows.Run, wait time.Duration) (cyborg.Operation, error) {
	waiting, cancel := drain.Within(ctx, wait)
	defer cancel()

	// Waiting for the run needs no connection of the database; the outcome itself
	// is read from the records below. A repeated request has no run here, and only
	// reads the records.
	if run != nil {
		if err := run.Wait(waiting); err != nil && waiting.Err() == nil {
			r.log.WarnContext(waiting, "the run of an operation cannot be watched, so its record is watched instead",
				slog.String("operation_id", operation.String()), slog.String("error", err.Error()))
		}
	}

	return r.awaitRecord(limiter.NeverRefuse(ctx), waiting, operation)
}

// awaitRecord reads the operation from the records until it has ended or the
// waiting context is over. It uses ctx for the reads, because the last read
// happens after the waiting context has ended.
func (r *Runner) awaitRecord(ctx, waiting context.Context, operation uuid.UUID) (cyborg.Operation, error) {
	// The channel ticks for every event in the whole system. The pause bounds how
	// often one waiting request reads the database because of them.
	const pace = 50 * time.Millisecond

	var changes <-chan struct{}
	for {
		op, err := r.store.Operation(ctx, operation)
		if err != nil || op.State.Ended() || waiting.Err() != nil {
			return op, err
		}

		// Subscribe only when the first read shows that there is something to wait for.
		// The channel ticks at least once a second, so an end between that read and the
		// subscription is not missed.
		if changes == nil {
			changes = r.store.Notify(waiting)
		}

		select {
		case <-changes:
			_ = clock.Sleep(waiting, pace) // the next read notices its end
		case <-waiting.Done():
		}
	}
}
