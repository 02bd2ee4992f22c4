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
	rows, err := tx.Query(ctx, "SELECT d.uuid FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE "+condition+
		" ORDER BY d.uuid FOR UPDATE OF d", values...)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return readAccelerators(ctx, tx, " WHERE d.uuid = ANY($1) ORDER BY d.id", ids)
}

// lockOne locks an accelerator and its host.
func lockOne(ctx context.Context, tx pgx.Tx, id uuid.UUID) (accelerator, error) {
	if err := lockHostOf(ctx, tx, id); err != nil {
		return accelerator{}, err
	}
	found, err := lockAccelerators(ctx, tx, "d.uuid = $1", id)
	if err != nil {
		return accelerator{}, err
	}
	if len(found) == 0 { // forgotten while we waited for the host
		return accelerator{}, noAccelerator(id)
	}
	return found[0], nil
}

func claimed(name string, claim cyborg.Claim) error {
	return cyborg.Errorf(cyborg.Claimed, "operation %s (%s) works on accelerator %q", claim.Operation, claim.Kind, name).
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
	if a.Presence == cyborg.Missing {
		return cyborg.Errorf(cyborg.Changed, "accelerator %q is missing: host %s has not shown it since %s",
			a.Name, a.Host, a.MissingAt.Format(time.RFC3339)).
			WithHint("Look at the device; it is present again with the next report that shows it.")
	}
	return nil
}

// unprotected refuses what the host lives on.
func (a *accelerator) unprotected() error {
	if a.Protected != "" {
		return cyborg.Errorf(cyborg.Protected, "accelerator %q must not be touched: %s", a.Name, a.Protected)
	}
	return nil
}

// enabled refuses what is in maintenance.
func (a *accelerator) enabled() error {
	if a.Admin != cyborg.Maintaining {
		return nil
	}
	until := ""
	if !a.Maintenance.Until.IsZero() {
		until = " until " + a.Maintenance.Until.Format(time.RFC3339)
	}
	return cyborg.Errorf(cyborg.Changed, "accelerator %q is in maintenance%s: %s", a.Name, until, a.Maintenance.Reason).
		WithHint("Enable it first.")
}

// unfenced refuses what is fenced.
func (a *accelerator) unfenced() error {
	if a.Fence == nil {
		return nil
	}
	out := cyborg.Errorf(cyborg.Changed, "accelerator %q is fenced: %s", a.Name, a.Fence.Reason)
	if a.Fence.Operation != uuid.Nil {
		return out.WithHint("Program it again, with an image that works.")
	}
	return out
}

// ready refuses what is not in service.
func (a *accelerator) ready() error {
	switch a.Lifecycle {
	case cyborg.Ready:
		return nil
	case cyborg.Broken:
		return cyborg.Errorf(cyborg.Changed, "accelerator %q is in error: %s", a.Name, a.Reason).
			WithHint("Provision it again once the reason is gone.")
	default:
		return cyborg.Errorf(cyborg.Changed, "accelerator %q is %s, not ready", a.Name, a.Lifecycle).
			WithHint("Make it ready first.")
	}
}

// unheld refuses what somebody holds.
func (a *accelerator) unheld() error {
	if holders := a.Holders(); len(holders) > 0 {
		return cyborg.Errorf(cyborg.InUse, "accelerator %q is attached to %s", a.Name, nameHolders(holders)).
			WithHint("Detach it first.")
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
func first(refusals ...error) error {
	for _, err := range refusals {
		if err != nil {
			return err
		}
	}
	return nil
}

// asked puts the accelerator that was asked for before the others.
func asked(targets []accelerator, id uuid.UUID) []accelerator {
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
