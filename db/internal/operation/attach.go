package operation

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// attach is the operation that gives a free handle to a holder. Between its
// first change and its last one the handle has its holder but no time of
// attachment: it cannot be given to anybody else, and readers see that it is in
// doubt.
type attach struct {
	request     cyborg.AttachRequest
	silentAfter time.Duration
}

func newAttach(r cyborg.AttachRequest, o records.Options) operationHandler {
	return attach{r, o.SilentAfter}
}

// choose checks the holder, and locks the accelerator.
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

	found, err := inventory.LockAccelerator(ctx, tx, a.request.Accelerator)
	if err != nil {
		return choice{}, err
	}

	targets := []inventory.Accelerator{found}
	return choice{host: found.Host, targets: targets}, a.guard(targets, uuid.Nil)
}

// admit changes nothing: the claim alone keeps the handle free until begin.
func (attach) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses an accelerator that cannot be attached now, or not to this
// holder.
func (a attach) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	t, holder := &targets[0], a.request.Holder
	if err := inventory.FirstError(t.Unclaimed(operation), t.Present(), t.Enrolled(), t.Unprotected(), t.Ready(), t.Enabled(), t.ConfirmedOrFree(), t.Unfenced(), t.Available()); err != nil {
		return err
	}

	if holder.Kind == cyborg.HolderHost && holder.ID != t.Host && !t.Specs.Remotable {
		return cyborg.Errorf(cyborg.ErrInvalid, "accelerator %q is on host %s and cannot be used from %s: it is not remotable",
			t.Name, t.Host, holder.ID)
	}

	if err := inventory.FirstError(t.Preparation.Check(a.request.Parameters), t.NotHeldBy(holder)); err != nil {
		return err
	}

	if t.FreeHandle() != nil {
		return t.Compatible(holder)
	}

	// No handle is free. Unheld names the holders, where there are any.
	if err := inventory.FirstError(t.Unheld(), t.AllClean()); err != nil {
		return err
	}

	return cyborg.Errorf(cyborg.ErrNoFit, "accelerator %q has nothing to attach: its host shows no handle of it", t.Name)
}

// begin gives the handle to its holder. The conditions under which it was
// chosen are repeated, so that a handle which another transaction took is not
// overwritten.
func (a attach) begin(_ context.Context, tx pgx.Tx, o *running) error {
	if err := o.heard(a.silentAfter); err != nil {
		return err
	}

	t, holder := &o.targets[0], a.request.Holder
	records.Queue(tx, `
		UPDATE attach_handles SET holder_kind = $2, holder_id = $3, operation_id = $4, prepared = $5, parameters = coalesce($6::jsonb, '{}')
		WHERE uuid = $1 AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = '' AND presence = 'present'`,
		t.FreeHandle().UUID, string(holder.Kind), holder.ID, o.id, t.Prepares(holder), a.request.Parameters).Exec(records.MustAffect(records.ErrCollision))
	return nil
}

// describe lists the handle that begin took.
func (attach) describe(o *running, work *cyborg.Work) {
	for _, h := range o.targets[0].Handles {
		if h.Operation == o.id {
			work.Handles = append(work.Handles, workHandle(h))
		}
	}
}

// workHandle is the form of a held handle in the work of an agent.
func workHandle(h cyborg.AttachHandle) cyborg.WorkHandle {
	return cyborg.WorkHandle{
		UUID: h.UUID, Identity: h.Identity, Holder: *h.Holder, Prepared: h.Prepared, Parameters: h.Parameters,
		DeclaredClean: h.Cleaned != nil && h.Cleaned.Declared != "",
	}
}

func (attach) gives() {}

// end confirms the attachment, or takes the handle back.
func (attach) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	// A handle of this operation without a time of attachment is the one that begin
	// took.
	const taken = "operation_id = $1 AND deployable_uuid = ANY($2) AND attached_at IS NULL"

	switch outcome.State {
	case cyborg.OperationSucceeded:
		records.Queue(tx, "UPDATE attach_handles SET attached_at = now() WHERE "+taken, o.id, inventory.UUIDs(o.targets))
		return nil

	case cyborg.OperationNeedsOperator:
		// The handle stays in doubt with its holder, so that nobody else gets it.
		return markInError(ctx, tx, o, outcome)

	default:
		// A host may have used what was attached to it until that was undone. Only what may have
		// been attached is undone; an abandoned run does not know what its earlier run has done.
		back := inventory.TakeBackHandles
		if slices.ContainsFunc(outcome.Steps, func(s cyborg.Step) bool { return strings.HasPrefix(s.Name, "undo attach ") }) {
			back = inventory.ReleaseHandles
		}
		return back(ctx, tx, taken, o.id, inventory.UUIDs(o.targets))
	}
}
