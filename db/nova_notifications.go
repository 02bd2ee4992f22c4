package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// FailARQs records that the requests of a running bind will not be bound, before the bind has undone what it did: until it
// has ended it keeps their handles, and its claim on them. Of one that has ended it changes nothing, nor of requests that
// were deleted meanwhile.
func (s *Store) FailARQs(ctx context.Context, operation uuid.UUID, reason string) error {
	return s.change(ctx, cyborg.Actor{}, operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, operation)
		if err != nil || o.state.Ended() {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE arqs SET state = $2, reason = $3 WHERE claimed_by = $1 AND state = ANY($4)",
			operation, string(cyborg.ARQBindFailed), reason, texts(cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQBindFailed)))
		return err
	})
}

// Told records that Nova knows what became of a bind.
func (s *Store) MarkNovaNotified(ctx context.Context, operation uuid.UUID) error {
	_, err := s.pool.Exec(ctx, "UPDATE operations SET untold = false WHERE id = $1 AND untold", operation)
	return s.failure(ctx, err)
}

// UnnotifiedBinds lists the binds that ended at least that long ago and of which Nova was not told: those that a workflow should be
// telling it, if it is not lost. They come in the order of their admission, from that place on.
func (s *Store) UnnotifiedBinds(ctx context.Context, endedFor time.Duration, after OperationPlace, limit int) ([]Orphan, error) {
	return s.orphans(ctx, `
		SELECT id, kind, state, ended_at, admitted_at FROM operations
		WHERE untold AND NOT open AND ended_at <= clock_timestamp() - $1::interval AND (admitted_at, id) > ($2, $3)
		ORDER BY admitted_at, id LIMIT $4`, endedFor, after.Admitted, after.ID, clamp(limit))
}
