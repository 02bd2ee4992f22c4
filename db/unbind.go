package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// unbind takes the handles of accelerator requests back, once their host says that they are not in use. It is what a
// person asks for. What Nova asks for is a deletion, for which nobody needs the host: the instance is gone, and its host
// perhaps with it; see delete_arqs.go.
type unbind struct{ request cyborg.UnbindRequest }

func (unbind) kind() cyborg.OperationKind { return cyborg.OperationUnbind }

func (u unbind) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := lockARQs(ctx, tx, false, nil, "a.uuid = ANY(?)", u.request.ARQs)
	if err != nil {
		return choice{}, err
	}
	targets, err := lockAccelerators(ctx, tx, `
		d.uuid IN (SELECT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid WHERE a.uuid = ANY($1))`, u.request.ARQs)
	if err != nil {
		return choice{}, err
	}
	known := map[uuid.UUID]bool{}
	out := choice{targets: targets}
	for i := range found {
		a := &found[i]
		known[a.UUID] = true
		switch {
		case a.Claim != uuid.Nil:
			return out, claimedARQ(a)
		case a.State == cyborg.ARQInitial || a.State == cyborg.ARQUnbound:
			continue
		case out.host != "" && a.Host != out.host:
			return out, cyborg.Errorf(cyborg.ErrInvalid, "accelerator requests of hosts %s and %s cannot be unbound together", out.host, a.Host)
		}
		out.host, out.arqs = a.Host, append(out.arqs, a.UUID)
	}
	for _, id := range u.request.ARQs {
		if !known[id] {
			return out, noARQ(id)
		}
	}
	out.nothing = len(out.arqs) == 0
	return out, u.guard(targets, uuid.Nil)
}

func (unbind) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	tag, err := tx.Exec(ctx, "UPDATE arqs SET claimed_by = $2 WHERE uuid = ANY($1) AND claimed_by IS NULL", chosen.arqs, chosen.operation)
	if err == nil && int(tag.RowsAffected()) != len(chosen.arqs) {
		return errCollision
	}
	return err
}

func (unbind) guard(targets []accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].unclaimed(operation); err != nil {
			return err
		}
	}
	return nil
}

func (unbind) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	rows, err := tx.Query(ctx, "SELECT handle_uuid FROM arqs WHERE claimed_by = $1 AND handle_uuid IS NOT NULL ORDER BY id", o.id)
	if err != nil {
		return err
	}
	o.before.Handles, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return err
}

func (unbind) describe(o *running, work *cyborg.Work) {
	for _, id := range o.before.Handles {
		for i := range o.targets {
			for _, h := range o.targets[i].Handles {
				if h.UUID == id && h.Holder != nil {
					handle := workHandle(h)
					handle.Accelerator = o.targets[i].UUID
					work.Handles = append(work.Handles, handle)
				}
			}
		}
	}
}

func (unbind) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch {
	case outcome.State == cyborg.OperationSucceeded:
		return concludeARQs(ctx, tx, o, cyborg.ARQUnbound, "")
	case outcome.State == cyborg.OperationCancelled, outcome.Error.Kind.Refusal(), outcome.Error.Kind == cyborg.ErrHostSilent:
		return concludeARQs(ctx, tx, o, "", "") // nobody touched anything: its holder has it as before
	default:
		return concludeARQs(ctx, tx, o, cyborg.ARQUnbindFailed, outcome.Error.Message)
	}
}

// concludeARQs ends what an operation did with its accelerator requests. They go to another state, with the reason where that
// is a failure; those that were deleted meanwhile go; and handles that nobody has any more are free again. With no state they
// stay as they were.
func concludeARQs(ctx context.Context, tx pgx.Tx, o *running, to cyborg.ARQState, reason string) error {
	var (
		handles []uuid.UUID
		deleted int64
	)
	batch := &pgx.Batch{}
	batch.Queue("SELECT handle_uuid FROM arqs WHERE claimed_by = $1 AND handle_uuid IS NOT NULL", o.id).Query(func(rows pgx.Rows) (err error) {
		handles, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		return err
	})
	batch.Queue("DELETE FROM arqs WHERE claimed_by = $1 AND state = $2", o.id, string(cyborg.ARQDeleting)).Exec(affected(&deleted))
	if to == cyborg.ARQBound {
		batch.Queue(`
			UPDATE attach_handles h SET attached_at = now() FROM arqs a
			WHERE a.claimed_by = $1 AND h.uuid = a.handle_uuid AND h.attached_at IS NULL`, o.id)
	}
	if to != "" {
		batch.Queue(`
			UPDATE arqs SET state = $2, reason = $3, claimed_by = NULL, seen_at = now(),
			    lost_boot = CASE WHEN $4 THEN lost_boot END, lost_at = CASE WHEN $4 THEN lost_at END,
			    handle_uuid = CASE WHEN $4 THEN handle_uuid END, operation_id = CASE WHEN $5 THEN operation_id END,
			    host = CASE WHEN $5 THEN host END, provider_uuid = CASE WHEN $5 THEN provider_uuid END,
			    instance_uuid = CASE WHEN $5 THEN instance_uuid END, service = CASE WHEN $5 THEN service END
			WHERE claimed_by = $1 AND state = ANY($6)`, o.id, string(to), reason,
			to == cyborg.ARQBound || to == cyborg.ARQUnbindFailed, to != cyborg.ARQUnbound,
			texts(append(cyborg.Sources(cyborg.ARQTransitions(), to), to))) // it may be known already that it has failed
	}
	batch.Queue("UPDATE arqs SET claimed_by = NULL WHERE claimed_by = $1", o.id) // what stays as it was
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if to == cyborg.ARQBound && deleted == 0 || len(handles) == 0 {
		return nil
	}
	return release(ctx, tx, "uuid = ANY($1) AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)", handles)
}
