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

// lockAccelerators locks and reads the accelerators that the condition chooses,
// in the order in which they were found, and keeps them unchanged until the
// transaction ends. Their host must be locked already; the row locks only keep
// out writers that do not take the host's lock.
func lockAccelerators(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]accelerator, error) {
	var found []accelerator
	batch := &pgx.Batch{}
	queueLockAccelerators(batch, &found, condition, values...)
	return found, tx.SendBatch(ctx, batch).Close()
}

// queueLockAccelerators adds lockAccelerators to a batch; found is set when the
// batch has been sent. The condition is evaluated twice, so the set of
// accelerators that it chooses must not change while their host is locked.
func queueLockAccelerators(batch *pgx.Batch, found *[]accelerator, condition string, values ...any) {
	// Rows are locked in the order of their UUIDs, as everywhere, so that two
	// transactions cannot wait for each other. The read comes after the lock, in a
	// statement of its own: it then sees what was committed while this one waited.
	batch.Queue("SELECT FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE "+condition+
		" ORDER BY d.uuid FOR UPDATE OF d", values...)

	batch.Queue(selectAccelerators+" WHERE "+condition+" ORDER BY d.id", values...).Query(func(rows pgx.Rows) (err error) {
		*found, err = pgx.CollectRows(rows, new(acceleratorRows).scan)
		return err
	})
}

// lockOne locks an accelerator and its host, and reads the accelerator. The
// error is of kind ErrNotFound where there is none.
func lockOne(ctx context.Context, tx pgx.Tx, id uuid.UUID) (accelerator, error) {
	var found []accelerator
	batch := &pgx.Batch{}
	batch.Queue(lockHostOfAccelerator, id)
	queueLockAccelerators(batch, &found, "d.uuid = $1", id)

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return accelerator{}, err
	}

	if len(found) == 0 { // it never existed, or its host was forgotten while we waited for the lock
		return accelerator{}, noAccelerator(id)
	}

	return found[0], nil
}

// claimed returns the refusal of work on an accelerator that another operation
// has claimed.
func claimed(name string, claim cyborg.Claim) error {
	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s (%s) works on accelerator %q", claim.Operation, claim.Kind, name).
		WithOperation(claim.Operation).
		WithHint("Wait until it has ended, or cancel it.")
}

// unclaimed refuses an accelerator that another operation than the given one
// works on.
func (a *accelerator) unclaimed(operation uuid.UUID) error {
	if a.Claim != nil && a.Claim.Operation != operation {
		return claimed(a.Name, *a.Claim)
	}
	return nil
}

// present refuses an accelerator that its host does not show any more.
func (a *accelerator) present() error {
	if a.Presence == cyborg.PresenceMissing {
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is missing: host %s has not shown it since %s",
			a.Name, a.Host, a.MissingAt.Format(time.RFC3339)).
			WithHint("Look at the device; it is present again with the next report that shows it.")
	}
	return nil
}

// unprotected refuses an accelerator that the host itself depends on.
func (a *accelerator) unprotected() error {
	if a.Protected != "" {
		return cyborg.Errorf(cyborg.ErrProtected, "accelerator %q must not be touched: %s", a.Name, a.Protected)
	}
	return nil
}

// enabled refuses an accelerator that is in maintenance.
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

// unfenced refuses an accelerator that is fenced.
func (a *accelerator) unfenced() error {
	if a.Fence == nil {
		return nil
	}

	return a.fenced(a.Fence.Reason)
}

// fenced returns the refusal of new work on a fenced accelerator. The reason is
// a parameter because a handle may be unconfirmed while the fence itself is a
// Program's.
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

// ready refuses an accelerator that is not in service.
func (a *accelerator) ready() error {
	switch a.Lifecycle {
	case cyborg.LifecycleReady:
		return nil
	case cyborg.LifecycleError:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is in error: %s", a.Name, a.Reason).
			WithOperation(a.movedBy).WithHint("%s", a.remedy())
	default:
		return cyborg.Errorf(cyborg.ErrChanged, "accelerator %q is %s, not ready", a.Name, a.Lifecycle).
			WithOperation(a.movedBy).WithHint("Make it ready first.")
	}
}

// remedy says what an operator can do about an accelerator in error, depending
// on the kind of operation that left it so; docs/data.md describes the cases,
// and remedy in workflows tells them when the operation ends.
func (a *accelerator) remedy() string {
	switch a.errorKind.Doubt() {
	case cyborg.DoubtHandle:
		return "Its host settles it when it answers; else detach it by force."
	case cyborg.DoubtImage:
		return "Program it with an image that works, or make it ready again."
	default:
		return "Make it ready again once the reason is gone."
	}
}

// unheld refuses an accelerator that somebody holds, or that Nova uses by its
// whitelist. The refusal of a held one names the operation that took its first
// held handle.
func (a *accelerator) unheld() error { return a.unheldExcept(uuid.Nil) }

// unheldExcept refuses as unheld does, except that handles which the given
// operation took are no obstacle.
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

// notHeldBy refuses a second handle of one accelerator for the same holder.
func (a *accelerator) notHeldBy(holder cyborg.Holder) error {
	for _, h := range a.Handles {
		if h.Holder != nil && *h.Holder == holder {
			return cyborg.Errorf(cyborg.ErrInUse, "accelerator %q is attached to %s %s already", a.Name, holder.Kind, holder.ID).
				WithOperation(h.Operation)
		}
	}
	return nil
}

// nameHolders lists holders for a message.
func nameHolders(holders []cyborg.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = fmt.Sprintf("%s %s", h.Kind, h.ID)
	}
	return strings.Join(names, ", ")
}

// firstError returns the first error that is not nil, or nil.
func firstError(refusals ...error) error {
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

// moveToFront moves the accelerator with this id to the front of targets, in
// place, and keeps the order of the others.
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

// ids lists the UUIDs of accelerators.
func ids(targets []accelerator) []uuid.UUID {
	out := make([]uuid.UUID, len(targets))
	for i := range targets {
		out[i] = targets[i].UUID
	}
	return out
}
