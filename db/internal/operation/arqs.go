package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// FailARQs records that the requests of a running bind will not be bound,
// before the bind has undone its work. Until it has ended, the bind keeps their
// handles and its claims. It changes nothing of a bind that has ended, nor of
// requests that were deleted meanwhile. The error is of kind ErrSuperseded where
// another run has the bind.
func (s *Store) FailARQs(ctx context.Context, run Run, reason string) error {
	return s.db.Change(ctx, cyborg.Actor{}, run.Operation, func(tx pgx.Tx) error {
		o, err := s.lockOperation(ctx, tx, run.Operation)
		if err != nil {
			return err
		}

		if o.state.Ended() && o.ownedBy(run) {
			return nil
		}

		if err := o.requireOwner(ctx, tx, run); err != nil {
			return err
		}

		_, err = tx.Exec(ctx, "UPDATE arqs SET state = $2, reason = $3 WHERE claimed_by = $1 AND state = ANY($4)",
			o.id, string(cyborg.ARQBindFailed), reason, records.Texts(cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQBindFailed)))
		return err
	})
}

// concludeARQs ends the work of an operation on its accelerator requests. It
// moves them to another state, with the reason where that is a failure, or
// leaves them as they were where that is empty. It deletes the requests whose
// deletion was asked for meanwhile, and releases the handles that no request has
// any more: release is inventory.ReleaseHandles where their host has nothing of them
// attached, and abandonHandles where it may have.
func concludeARQs(
	ctx context.Context, tx pgx.Tx, o *running, to cyborg.ARQState, reason string,
	release func(ctx context.Context, tx pgx.Tx, condition string, values ...any) error,
) error {
	var (
		handles []uuid.UUID
		deleted int64
	)

	batch := &pgx.Batch{}
	batch.Queue("SELECT handle_uuid FROM arqs WHERE claimed_by = $1 AND handle_uuid IS NOT NULL", o.id).Query(func(rows pgx.Rows) (err error) {
		handles, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})

	// The requests are read before they are deleted or lose their handles.
	batch.Queue("DELETE FROM arqs WHERE claimed_by = $1 AND state = $2", o.id, string(cyborg.ARQDeleting)).Exec(records.Affected(&deleted))

	if to == cyborg.ARQBound {
		batch.Queue(`
			UPDATE attach_handles h SET attached_at = now() FROM arqs a
			WHERE a.claimed_by = $1 AND h.uuid = a.handle_uuid AND h.attached_at IS NULL`, o.id)
	}

	if to != "" {
		batch.Queue(`
			UPDATE arqs a SET state = $2, reason = $3, claimed_by = NULL, seen_at = now(),
			    (bound_boot, bound_uptime) = (SELECT boot_id, uptime FROM hosts WHERE name = a.host AND $2 = 'Bound'),
			    lost_boot = CASE WHEN $4 THEN lost_boot END, lost_at = CASE WHEN $4 THEN lost_at END,
			    handle_uuid = CASE WHEN $4 THEN handle_uuid END, operation_id = CASE WHEN $5 THEN operation_id END,
			    host = CASE WHEN $5 THEN host END, provider_uuid = CASE WHEN $5 THEN provider_uuid END,
			    instance_uuid = CASE WHEN $5 THEN instance_uuid END, service = CASE WHEN $5 THEN service END
			WHERE claimed_by = $1 AND state = ANY($6)`, o.id, string(to), reason,
			to == cyborg.ARQBound || to == cyborg.ARQUnbindFailed, to != cyborg.ARQUnbound,
			records.Texts(append(cyborg.Sources(cyborg.ARQTransitions(), to), to))) // FailARQs may have set this state already
	}

	// Requests that stay as they were.
	batch.Queue("UPDATE arqs SET claimed_by = NULL WHERE claimed_by = $1", o.id)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}

	// Handles of bound requests stay with them, unless a request was deleted.
	if to == cyborg.ARQBound && deleted == 0 || len(handles) == 0 {
		return nil
	}

	return release(ctx, tx, "uuid = ANY($1) AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)", handles)
}

// abandonHandles is inventory.AbandonHandles for handles of the operation.
func (o *running) abandonHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	hosts, err := inventory.AbandonHandles(ctx, tx, condition, values...)
	o.settle = append(o.settle, hosts...)
	return err
}
