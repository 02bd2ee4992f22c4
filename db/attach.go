package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// attach gives a free handle to a holder. From its first change to its last the handle has its holder, but no time of
// attachment: it cannot be given to anybody else, and whoever reads it sees that it is in doubt.
type attach struct{ request cyborg.AttachRequest }

func (attach) kind() cyborg.OperationKind { return cyborg.OperationAttach }

func (a attach) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	holder := a.request.Holder
	switch holder.Kind {
	case cyborg.HolderHost, cyborg.HolderInstance, cyborg.HolderService:
	default:
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "%q is no kind of holder; they are instance, host and service", holder.Kind)
	}
	if holder.ID == "" {
		return choice{}, cyborg.Errorf(cyborg.ErrInvalid, "the %s to attach to has no name", holder.Kind)
	}
	found, err := lockOne(ctx, tx, a.request.Accelerator)
	if err != nil {
		return choice{}, err
	}
	targets := []accelerator{found}
	return choice{host: found.Host, targets: targets}, a.guard(targets, uuid.Nil)
}

func (attach) admit(context.Context, pgx.Tx, choice) error { return nil }

func (a attach) guard(targets []accelerator, operation uuid.UUID) error {
	t, holder := &targets[0], a.request.Holder
	if err := firstError(t.unclaimed(operation), t.present(), t.unprotected(), t.ready(), t.enabled(), t.confirmed(), t.unfenced()); err != nil {
		return err
	}
	if holder.Kind == cyborg.HolderHost && holder.ID != t.Host && !t.Specs.Remotable {
		return cyborg.Errorf(cyborg.ErrInvalid, "accelerator %q is on host %s and cannot be used from %s: it is not remotable",
			t.Name, t.Host, holder.ID)
	}
	if err := t.notHeldBy(holder); err != nil {
		return err
	}
	if t.FreeHandle() != nil {
		return nil
	}
	if err := t.unheld(); err != nil {
		return err
	}
	return cyborg.Errorf(cyborg.ErrNoFit, "accelerator %q has nothing to attach: its host shows no handle of it", t.Name)
}

func (a attach) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	tag, err := tx.Exec(ctx, `
		UPDATE attach_handles SET holder_kind = $2, holder_id = $3, operation_id = $4
		WHERE uuid = $1 AND holder_kind IS NULL AND left_kind IS NULL AND presence = 'present'`,
		o.targets[0].FreeHandle().UUID, string(a.request.Holder.Kind), a.request.Holder.ID, o.id)
	if err == nil && tag.RowsAffected() == 0 {
		return errCollision
	}
	return err
}

func (attach) describe(o *running, work *cyborg.Work) {
	for _, h := range o.targets[0].Handles {
		if h.Operation == o.id {
			work.Handles = append(work.Handles, workHandle(h))
		}
	}
}

func workHandle(h cyborg.AttachHandle) cyborg.WorkHandle {
	return cyborg.WorkHandle{UUID: h.UUID, Identity: h.Identity, Holder: *h.Holder}
}

func (attach) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	const taken = "operation_id = $1 AND deployable_uuid = ANY($2) AND attached_at IS NULL"
	switch outcome.State {
	case cyborg.OperationSucceeded:
		_, err := tx.Exec(ctx, "UPDATE attach_handles SET attached_at = now() WHERE "+taken, o.id, ids(o.targets))
		return err
	case cyborg.OperationNeedsOperator: // the handle stays in doubt with its holder, so that nobody else gets it
		return markInError(ctx, tx, o, outcome)
	default:
		return release(ctx, tx, taken, o.id, ids(o.targets))
	}
}
