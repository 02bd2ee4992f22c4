package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A handle is unconfirmed while the records give it no holder, and its host may
// still have it attached: it was taken back by force, or the host was forgotten
// and has come back with an attachment in its journal. Its accelerator is
// fenced, and nobody gets the handle, until the host has been heard and
// Reconcile has settled the attachment there. In the database the columns
// unconfirmed_kind, unconfirmed_id and unconfirmed_operation keep who had it.

// fenceUnconfirmed is the reason of the fence around an accelerator with an
// unconfirmed handle. The fence belongs to the operation that used force, if
// one did.
const fenceUnconfirmed = "its host may still have it attached, and has not settled that yet"

// remainingFence is an SQL expression: the reason for which the deployable d
// stays fenced once the fence of a Program, or of a Bind that loaded an image,
// is lifted, or NULL. While an image was being loaded, a host may have come
// back with an attachment, or a device may have gone missing under its holder.
const remainingFence = "CASE WHEN EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND unconfirmed_kind IS NOT NULL) THEN '" +
	fenceUnconfirmed + "' WHEN " + goneUnderHolder + " THEN '" + fenceVanished + "' END"

// confirmed refuses an accelerator with an unconfirmed handle, whatever reason
// its fence gives.
func (a *accelerator) confirmed() error {
	for _, h := range a.Handles {
		if h.Unconfirmed != nil {
			return a.fenced(fenceUnconfirmed)
		}
	}
	return nil
}

// markUnconfirmed takes handles back from their holders in the records alone,
// and fences the targets of the operation.
func markUnconfirmed(ctx context.Context, tx pgx.Tx, o *running, handles []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		UPDATE attach_handles SET unconfirmed_kind = holder_kind, unconfirmed_id = holder_id, unconfirmed_operation = operation_id,
		    holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2, fence_operation = $3 WHERE uuid = ANY($1)",
		ids(o.targets), fenceUnconfirmed, o.id)
	return err
}

// markObservedUnconfirmed is markNewUnconfirmed for handles that an operation's
// observation has added. They are compared with the journal that the host
// reported last.
func markObservedUnconfirmed(ctx context.Context, tx pgx.Tx, host string, added []handleRow) error {
	if len(added) == 0 {
		return nil
	}

	row := hostRow{Name: host}
	if err := tx.QueryRow(ctx, "SELECT attachments FROM hosts WHERE name = $1", host).Scan(&row.Attachments); err != nil {
		return err
	}

	return markNewUnconfirmed(ctx, tx, []hostRow{row}, added)
}

// markNewUnconfirmed marks newly recorded handles as unconfirmed where the
// host's journal already lists an attachment of them: the host may have them
// attached for somebody whom the records no longer know. It fences their
// accelerators, except those that an operation has fenced; see remainingFence.
func markNewUnconfirmed(ctx context.Context, tx pgx.Tx, hosts []hostRow, added []handleRow) error {
	type place struct{ host, handle string }
	known := map[place]uuid.UUID{}
	for _, host := range hosts {
		for _, entry := range host.Attachments {
			known[place{host.Name, entry.Handle}] = entry.Operation
		}
	}

	var handles, operations, targets []uuid.UUID
	for _, h := range added {
		if operation, ok := known[place{h.Host, h.Identity}]; ok {
			handles, operations = append(handles, h.UUID), append(operations, operation)
			targets = append(targets, h.DeployableUUID)
		}
	}

	if len(handles) == 0 {
		return nil
	}

	_, err := tx.Exec(ctx, `
		UPDATE attach_handles h SET unconfirmed_kind = 'host', unconfirmed_id = h.host, unconfirmed_operation = l.operation
		FROM unnest($1::uuid[], $2::uuid[]) AS l (handle, operation) WHERE h.uuid = l.handle`, handles, operations)
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2 WHERE uuid = ANY($1) AND fence_operation IS NULL", targets, fenceUnconfirmed)
	return err
}

// clearUnconfirmed makes the unconfirmed handles that meet the condition free
// again. An accelerator that has no other unconfirmed handle loses the fence
// that they gave it, and stays fenced only where remainingFence has another
// reason. It returns the accelerators of the handles.
func clearUnconfirmed(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		UPDATE attach_handles h SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL
		WHERE unconfirmed_kind IS NOT NULL AND `+condition+` RETURNING deployable_uuid`, values...)
	if err != nil {
		return nil, err
	}

	targets, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(targets) == 0 {
		return nil, err
	}

	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_operation = NULL, fence_reason = `+remainingFence+`
		WHERE uuid = ANY($1) AND fence_reason = $2 AND NOT EXISTS (
			SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND unconfirmed_kind IS NOT NULL)`, targets, fenceUnconfirmed)
	return targets, err
}
