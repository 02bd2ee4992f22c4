package db

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// lockAccelerators reads accelerators that stay as they are until the transaction ends, in the order of their ids.
// Their host must be locked already; the row locks keep out whoever does not know of that.
func lockAccelerators(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]accelerator, error) {
	var found []accelerator
	batch := &pgx.Batch{}
	queueLockAccelerators(batch, &found, condition, values...)
	return found, tx.SendBatch(ctx, batch).Close()
}

// queueLockAccelerators is lockAccelerators as a part of a batch; found is set when that has been sent. Which accelerators
// the condition means must not change under the lock of their host.
func queueLockAccelerators(batch *pgx.Batch, found *[]accelerator, condition string, values ...any) {
	batch.Queue("SELECT FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE "+condition+
		" ORDER BY d.uuid FOR UPDATE OF d", values...)
	batch.Queue(selectAccelerators+" WHERE "+condition+" ORDER BY d.id", values...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, new(acceleratorRows).scan)
		return err
	})
}

// lockOne locks an accelerator and its host.
func lockOne(ctx context.Context, tx pgx.Tx, id uuid.UUID) (accelerator, error) {
	var found []accelerator
	batch := &pgx.Batch{}
	batch.Queue(lockHostOfAccelerator, id)
	queueLockAccelerators(batch, &found, "d.uuid = $1", id)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return accelerator{}, err
	}
	if len(found) == 0 { // there is none, or it was forgotten while we waited for the host
		return accelerator{}, noAccelerator(id)
	}
	return found[0], nil
}

func claimed(name string, claim cyborg.Claim) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on accelerator %q", claim.Operation, claim.Kind, name).
		WithOperation(claim.Operation).
		WithHint("Wait until it has ended, or cancel it.")
}

// unclaimed refuses what another operation works on.
func (a *accelerator) unclaimed(operation uuid.UUID) error {
	if a.Claim != nil && a.Claim.Operation != operation {
		return claimed(a.Name, *a.Claim)
	}
	return nil
}

// there refuses what has vanished.
func (a *accelerator) there() error {
	if a.Presence == cyborg.PresenceMissing {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is missing: host %s has not shown it since %s",
			a.Name, a.Host, a.MissingAt.Format(time.RFC3339)).
			WithHint("Look at the device; it is present again with the next report that shows it.")
	}
	return nil
}

// unprotected refuses what the host lives on.
func (a *accelerator) unprotected() error {
	if a.Protected != "" {
		return cyborg.Errorf(cyborg.ErrProtected, "accelerator %q must not be touched: %s", a.Name, a.Protected)
	}
	return nil
}

// enabled refuses what is in maintenance.
func (a *accelerator) enabled() error {
	if a.Admin != cyborg.AdministrationMaintaining {
		return nil
	}
	until := ""
	if !a.Maintenance.Until.IsZero() {
		until = " until " + a.Maintenance.Until.Format(time.RFC3339)
	}
	return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is in maintenance%s: %s", a.Name, until, a.Maintenance.Reason).
		WithHint("Enable it first.")
}

// unfenced refuses what is fenced.
func (a *accelerator) unfenced() error {
	if a.Fence == nil {
		return nil
	}
	return a.fenced(a.Fence.Reason)
}

// fenced is what keeps new work off for that reason. What is left may lie below the fence of a Program.
func (a *accelerator) fenced(reason string) error {
	out := cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is fenced: %s", a.Name, reason)
	if a.Fence != nil && a.Fence.Operation != uuid.Nil {
		out = out.WithOperation(a.Fence.Operation)
	}
	switch reason {
	case fenceUnconfirmed:
		return out.WithHint("Reconcile asks host %s as soon as it is heard. A host that is gone for ever can be forgotten.", a.Host)
	case fenceVanished:
		return out.WithHint("Put the device back, or detach it from who has it.")
	}
	return out.WithHint("Program it again, with an image that works.")
}

// ready refuses what is not in service.
func (a *accelerator) ready() error {
	switch a.Lifecycle {
	case cyborg.LifecycleReady:
		return nil
	case cyborg.LifecycleError:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is in error: %s", a.Name, a.Reason).
			WithOperation(a.movedBy).WithHint("%s", a.wayOut())
	default:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is %s, not ready", a.Name, a.Lifecycle).
			WithOperation(a.movedBy).WithHint("Make it ready first.")
	}
}

// wayOut is what to do about an accelerator in error; see docs/data.md.
func (a *accelerator) wayOut() string {
	switch {
	case slices.Contains(doubtful(), string(a.errorKind)):
		return "Its host settles it when it answers; else detach it by force."
	case a.errorKind == cyborg.OperationProgram, a.errorKind == cyborg.OperationBind:
		return "Program it with an image that works, or make it ready again."
	}
	return "Make it ready again once the reason is gone."
}

// unheld refuses what somebody holds, and names the operation through which the first of them got it; and what is Nova's.
func (a *accelerator) unheld() error { return a.unheldExcept(uuid.Nil) }

// unheldExcept is unheld, but for what the given operation took.
func (a *accelerator) unheldExcept(operation uuid.UUID) error {
	if err := a.notWhitelisted(); err != nil {
		return err
	}
	for _, h := range a.Handles {
		if h.Holder != nil && (operation == uuid.Nil || h.Operation != operation) {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s", a.Name, nameHolders(a.Holders())).
				WithOperation(h.Operation).WithHint("Detach it first.")
		}
	}
	return nil
}

// notHeldBy refuses a second handle for who has one.
func (a *accelerator) notHeldBy(holder cyborg.Holder) error {
	for _, h := range a.Handles {
		if h.Holder != nil && *h.Holder == holder {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s %s already", a.Name, holder.Kind, holder.ID).
				WithOperation(h.Operation)
		}
	}
	return nil
}

func nameHolders(holders []cyborg.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = fmt.Sprintf("%s %s", h.Kind, h.ID)
	}
	return strings.Join(names, ", ")
}

// first returns the first refusal.
func firstError(refusals ...error) error {
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

// asked puts the accelerator that was asked for before the others.
func moveToFront(targets []accelerator, id uuid.UUID) []accelerator {
	slices.SortStableFunc(targets, func(a, b accelerator) int {
		switch {
		case a.UUID == id:
			return -1
		case b.UUID == id:
			return 1
		}
		return 0
	})
	return targets
}

func ids(targets []accelerator) []uuid.UUID {
	out := make([]uuid.UUID, len(targets))
	for i := range targets {
		out[i] = targets[i].UUID
	}
	return out
}
