package operation

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// provision takes an inactive accelerator into service, under a new name where
// the request has one. The accelerator has that name from the admission on, so
// that it cannot be given to another one; a provision that is undone restores
// the old name.
type provision struct {
	request     cyborg.ProvisionRequest
	silentAfter time.Duration
}

func newProvision(r cyborg.ProvisionRequest, o records.Options) operationHandler {
	return provision{r, o.SilentAfter}
}

// searches marks a provision as searching: it may look for an accelerator that
// fits.
func (provision) searches() {}

// choose finds the accelerator by its UUID or its name, or else picks one that
// fits the request.
func (p provision) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	id := p.request.Accelerator
	if id == uuid.Nil && p.request.Name != "" {
		err := tx.QueryRow(ctx, "SELECT uuid FROM deployables WHERE accelerator = $1", p.request.Name).Scan(&id)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return choice{}, err
		}
	}

	// No accelerator has the name yet: any one that fits will get it.
	if id == uuid.Nil {
		found, err := p.fit(ctx, tx)
		return p.chosen(found), err
	}

	found, err := inventory.LockAccelerator(ctx, tx, id)
	if err != nil {
		return choice{}, err
	}

	if p.request.Accelerator == uuid.Nil && found.Name != p.request.Name {
		return choice{}, records.ErrCollision // it was renamed before its host was locked
	}

	if err := p.guard([]inventory.Accelerator{found}, uuid.Nil); err != nil {
		return choice{}, err
	}

	if misses := p.misses(&found); len(misses) > 0 {
		return choice{}, cyborg.Errorf(cyborg.ErrNoFit, "accelerator %q does not fit: %s", found.Name, strings.Join(misses, "; "))
	}

	return p.chosen(found), nil
}

// chosen returns the choice of an accelerator, with its name for restoring it.
func (provision) chosen(found inventory.Accelerator) choice {
	return choice{host: found.Host, targets: []inventory.Accelerator{found}, before: before{Name: found.Name}}
}

// admit gives the accelerator its new name, so that it is taken from now on.
func (p provision) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	target := &chosen.targets[0]
	name := cmp.Or(p.request.Name, target.Name)
	if name != target.Name {
		queueNameFree(tx, name)
	}

	_, err := tx.Exec(ctx, "UPDATE deployables SET accelerator = $2, untouched = false WHERE uuid = $1", target.UUID, name)
	if records.Violates(err, inventory.UniqueName) {
		return records.ErrCollision // another transaction has just taken it; the retry says which
	}

	return err
}

// queueNameFree refuses a name that an accelerator has already, with the
// operation through which it got that name. See records.Queue.
func queueNameFree(tx pgx.Tx, name string) {
	inventory.QueueRead(tx, func(has []inventory.Accelerator) error {
		if len(has) == 0 {
			return nil
		}

		// A provision that has not ended has not moved the accelerator yet.
		by := has[0].MovedBy
		if claim := has[0].Claim; claim != nil && claim.Kind == cyborg.OperationProvision {
			by = claim.Operation
		}

		return cyborg.Errorf(cyborg.ErrNameTaken, "another accelerator is called %q", name).
			WithOperation(by).WithHint("Choose another name.")
	}, " WHERE d.accelerator = $1", name)
}

// guard refuses an accelerator that is in service or must not be taken into it.
func (p provision) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	t := &targets[0]
	if err := inventory.FirstError(t.Unclaimed(operation), t.Present(), t.Enrolled()); err != nil {
		return err
	}

	switch {
	case t.Lifecycle == cyborg.LifecycleReady && p.request.Name == t.Name:
		return cyborg.Errorf(cyborg.ErrNameTaken, "accelerator %q is ready already", t.Name).
			WithOperation(t.MovedBy).WithHint("Choose another name.")
	case t.Lifecycle == cyborg.LifecycleReady:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is ready already", t.Name).
			WithOperation(t.MovedBy).WithHint("If it is not installed on its host any more, retire it, and make it ready again.")
	case !cyborg.Allowed(cyborg.LifecycleTransitions(), t.Lifecycle, cyborg.LifecycleInstalling):
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is %s already", t.Name, t.Lifecycle).WithOperation(t.MovedBy)
	}

	if err := inventory.FirstError(t.Unprotected(), t.NotWhitelisted(), t.Enabled(), t.Confirmed()); err != nil {
		return err
	}

	if t.Fence != nil && t.Fence.Reason == merge.FenceVanished {
		return t.Unfenced()
	}

	// A fence that a failed Program has left is no obstacle: once in service, the
	// accelerator can be programmed again.
	return nil
}

// begin moves the accelerator to installing.
func (provision) begin(_ context.Context, tx pgx.Tx, o *running) error {
	inventory.QueueLifecycle(tx, inventory.UUIDs(o.targets), cyborg.LifecycleInstalling).Exec(records.MustAffect(records.ErrCollision))
	return nil
}

func (provision) describe(*running, *cyborg.Work) {}

// end makes the accelerator ready. Where the provision has failed, it makes it
// inactive again, if the provision had begun, and restores its name.
func (p provision) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.OperationSucceeded:
		inventory.QueueLifecycle(tx, inventory.UUIDs(o.targets), cyborg.LifecycleReady).Exec(records.MustAffect(
			cyborg.Errorf(cyborg.ErrInternal, "accelerator %q is %s; it cannot become ready", o.targets[0].Name, o.targets[0].Lifecycle)))
		// Who names an accelerator of a device whose layout is in doubt has looked at it: nothing
		// there is taken into service by itself. Whoever asks for anything that fits has not.
		if p.request.Accelerator != uuid.Nil || p.request.Name == o.before.Name {
			records.Queue(tx, "UPDATE devices SET layout_doubt_operation = NULL WHERE uuid = $1 AND layout_doubt_operation IS NOT NULL", o.targets[0].DeviceUUID)
		}
		return nil
	case cyborg.OperationNeedsOperator:
		return markInError(ctx, tx, o, outcome)
	default:
		if o.state == cyborg.OperationRunning {
			inventory.QueueLifecycle(tx, inventory.UUIDs(o.targets), cyborg.LifecycleInactive)
		}

		return restoreName(ctx, tx, o)
	}
}

// restoreName restores the name from before the admission, unless another
// accelerator has it now.
func restoreName(ctx context.Context, tx pgx.Tx, o *running) error {
	// What is queued is sent first, so that a failure below is that of the name.
	if err := records.Send(ctx, tx); err != nil {
		return err
	}

	for i := range o.targets {
		t := &o.targets[i]
		if o.before.Name == "" || o.before.Name == t.Name {
			continue
		}

		// This begins a savepoint: the failure for a name that is taken would otherwise
		// abort the whole transaction.
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE deployables SET accelerator = $2 WHERE uuid = $1", t.UUID, o.before.Name)
			return err
		})

		if err != nil && !records.Violates(err, inventory.UniqueName) {
			return err
		}
	}

	return nil
}
