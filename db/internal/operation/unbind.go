package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// unbind takes the handles of accelerator requests back, once their host has
// confirmed that they are not in use. Operators ask for it. Nova does not: it
// deletes the requests, which needs no host, because the instance is gone and
// its host perhaps as well; see delete_arqs.go.
type unbind struct{ request cyborg.UnbindRequest }

func newUnbind(r cyborg.UnbindRequest, _ records.Options) operationHandler { return unbind{r} }

// choose finds the bound requests among those that the operation is about. They
// must be on one host.
func (u unbind) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := openstack.LockARQs(ctx, tx, false, nil, "a.uuid = ANY(?)", u.request.ARQs)
	if err != nil {
		return choice{}, err
	}

	targets, err := inventory.LockAccelerators(ctx, tx, `
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
			return out, openstack.ClaimedARQ(a)
		case a.State == cyborg.ARQInitial || a.State == cyborg.ARQUnbound:
			continue
		case out.host != "" && a.Host != out.host:
			return out, cyborg.Errorf(cyborg.ErrInvalid, "accelerator requests of hosts %s and %s cannot be unbound together", out.host, a.Host)
		}

		out.host, out.arqs = a.Host, append(out.arqs, a.UUID)
	}

	for _, id := range u.request.ARQs {
		if !known[id] {
			return out, openstack.NoARQ(id)
		}
	}

	out.nothing = len(out.arqs) == 0
	return out, u.guard(targets, uuid.Nil)
}

// admit claims the requests. It fails where another operation has claimed one
// since choose looked.
func (unbind) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	tag, err := tx.Exec(ctx, "UPDATE arqs SET claimed_by = $2 WHERE uuid = ANY($1) AND claimed_by IS NULL", chosen.arqs, chosen.operation)
	if err == nil && int(tag.RowsAffected()) != len(chosen.arqs) {
		return records.ErrCollision
	}
	return err
}

// guard refuses accelerators that another operation works on.
func (unbind) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].Unclaimed(operation); err != nil {
			return err
		}
	}
	return nil
}

// begin remembers the handles that the host has to take back.
func (unbind) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	rows, err := tx.Query(ctx, "SELECT handle_uuid FROM arqs WHERE claimed_by = $1 AND handle_uuid IS NOT NULL ORDER BY id", o.id)
	if err != nil {
		return err
	}

	o.before.Handles, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return err
}

// describe adds the handles that the host has to take back, as far as they
// still have a holder.
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

// end moves the requests to the state that the outcome leads to.
func (unbind) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch {
	case outcome.State == cyborg.OperationSucceeded:
		return concludeARQs(ctx, tx, o, cyborg.ARQUnbound, "", inventory.ReleaseHandles)
	case outcome.State == cyborg.OperationNeedsOperator: // the host has taken some back, and could not prepare them again
		return concludeARQs(ctx, tx, o, cyborg.ARQUnbindFailed, outcome.Error.Message, o.abandonHandles)
	case outcome.State == cyborg.OperationCancelled, outcome.Error.Kind.Refusal(), outcome.Error.Kind == cyborg.ErrHostSilent:
		return concludeARQs(ctx, tx, o, "", "", o.abandonHandles) // the holder has them as before
	default:
		return concludeARQs(ctx, tx, o, cyborg.ARQUnbindFailed, outcome.Error.Message, o.abandonHandles)
	}
}
