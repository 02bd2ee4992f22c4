package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// retire takes an accelerator that nobody holds out of service. The accelerator
// may be in error, in maintenance or missing. It keeps its name and its fence.
// One that is out of service and was not uninstalled is retired once more.
type retire struct{ request cyborg.RetireRequest }

func newRetire(r cyborg.RetireRequest, _ records.Options) operationHandler { return retire{r} }

// choose finds the accelerator.
func (r retire) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	found, err := inventory.LockAccelerator(ctx, tx, r.request.Accelerator)
	if err != nil {
		return choice{}, err
	}

	targets := []inventory.Accelerator{found}
	return choice{host: found.Host, targets: targets}, r.guard(targets, uuid.Nil)
}

func (retire) admit(context.Context, pgx.Tx, choice) error { return nil }

// guard refuses an accelerator that is out of service already, or still in use.
func (retire) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	t := &targets[0]
	if err := inventory.FirstError(t.Unclaimed(operation), t.Enrolled()); err != nil {
		return err
	}

	if t.Lifecycle == cyborg.LifecycleInactive && t.UninstallPending.IsZero() {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is inactive already", t.Name).WithOperation(t.MovedBy)
	}

	return inventory.FirstError(t.Unprotected(), t.Unheld(), t.Confirmed())
}

func (retire) begin(context.Context, pgx.Tx, *running) error { return nil }

func (retire) describe(*running, *cyborg.Work) {}

// end makes the accelerator inactive where the retire has succeeded.
func (retire) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	switch outcome.State {
	case cyborg.OperationSucceeded:
		inventory.QueueLifecycle(tx, inventory.UUIDs(o.targets), cyborg.LifecycleInactive)
		return nil
	case cyborg.OperationNeedsOperator:
		return markInError(ctx, tx, o, outcome)
	default: // it stays in service, or in error, as before
		return nil
	}
}
