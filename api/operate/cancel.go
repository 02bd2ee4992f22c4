package operate

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Cancel records the request to cancel an operation, and tells the operation's
// run to undo what it has done. The operation may still be running afterwards.
// Where Temporal does not take the request, it stays recorded, and the error is
// of kind ErrUnavailable; the same call may be made again.
func (r *Runner) Cancel(ctx context.Context, operation uuid.UUID, actor cyborg.Actor) (cyborg.Operation, error) {
	// Once the request to cancel is recorded, the run must learn of it even if the
	// caller has disconnected, hence the detached context.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), admitLimit)
	defer cancel()

	op, err := r.store.RequestCancel(ctx, operation, actor)
	if err != nil {
		return op, err
	}

	if err := r.engine.Cancel(ctx, op); err != nil {
		r.log.WarnContext(ctx, "the cancellation is recorded, but Temporal did not take it",
			slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		return op, cyborg.Errorf(cyborg.ErrUnavailable, "the request to cancel is recorded, but Temporal does not answer").
			WithHint("Send the same request again after the time in Retry-After.").WithOperation(op.ID)
	}

	return op, nil
}
