package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// A handle is unconfirmed while the records give it no holder, and its host may
// still have it attached: it was taken back by force, or the host's journal has it
// attached for somebody whom the records do not know, because they have forgotten
// the host or lost the operation; see inventory.QueueMarkUnconfirmed. Or the host is
// to detach it, because its journal has it attached and the records call it free. Nobody
// gets the handle until the host has been heard and Reconcile has settled the attachment
// there, and its accelerator is fenced; not where the host has prepared the handle for
// whoever had it: then the others are given out. In the database the columns
// unconfirmed_kind, unconfirmed_id and unconfirmed_operation keep who had it.

// markUnconfirmed takes handles back from their holders in the records alone,
// and fences the targets of the operation, unless their host has prepared all of these.
func markUnconfirmed(ctx context.Context, tx pgx.Tx, o *running, handles []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		UPDATE attach_handles SET unconfirmed_kind = holder_kind, unconfirmed_id = holder_id, unconfirmed_operation = operation_id,
		    holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	if err != nil {
		return err
	}

	inventory.QueueLiftOfHeld(tx, inventory.UUIDs(o.targets))
	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_reason = $2, fence_operation = $3
		WHERE uuid = ANY($1) AND EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND `+inventory.Doubted+`)`,
		inventory.UUIDs(o.targets), inventory.FenceUnconfirmed, o.id)
	return err
}

// keepFree marks a free handle as unconfirmed that its host is to detach, and fences
// its accelerator: nobody may get the handle before that is done.
func keepFree(ctx context.Context, tx pgx.Tx, d *Disagreement) error {
	tag, err := tx.Exec(ctx, `
		UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = host, unconfirmed_operation = $2
		WHERE uuid = $1 AND holder_kind IS NULL AND unconfirmed_kind IS NULL`, d.Handle.UUID, d.Operation)
	if err != nil {
		return err
	}
	if tag.RowsAffected() == 0 {
		return records.ErrCollision
	}

	d.Recorded, d.Unconfirmed = unconfirmed, d.Operation
	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2 WHERE uuid = $1 AND fence_operation IS NULL", d.Accelerator, inventory.FenceUnconfirmed)
	return err
}
