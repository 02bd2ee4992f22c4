package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A handle is left where nobody has it in the records any more, and its host may: it was taken back by force, or the
// host was forgotten and came back with it. Its accelerator is fenced, and nobody gets the handle, until the host has
// been heard and has settled it.

// unsettled is the fence of an accelerator with such a handle. Its operation is the one that used force, if one did.
const unsettled = "its host may still have it attached, and has not settled that yet"

// fenceBelow is what fences a deployable d besides a Program, or NULL. It takes the place of the fence of a Program, or of a Bind
// that loaded an image: meanwhile a host may have come back with an attachment, and a card may have gone away under its holder.
const fenceBelow = "CASE WHEN EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND left_kind IS NOT NULL) THEN '" +
	unsettled + "' WHEN " + goneUnderHolder + " THEN '" + vanished + "' END"

// settled refuses what may still be attached to somebody whom the records no longer know, whatever it is fenced for.
func (a *accelerator) settled() error {
	for _, h := range a.Handles {
		if h.Unconfirmed != nil {
			return a.fenced(unsettled)
		}
	}
	return nil
}

// leave takes handles back from their holders in the records alone, and fences their accelerator.
func markUnconfirmed(ctx context.Context, tx pgx.Tx, o *running, handles []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		UPDATE attach_handles SET left_kind = holder_kind, left_id = holder_id, left_operation = operation_id,
		    holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2, fence_operation = $3 WHERE uuid = ANY($1)",
		ids(o.targets), unsettled, o.id)
	return err
}

// markObservedUnconfirmed is markNewUnconfirmed for handles that an operation saw: the host's journal is the one that was reported last.
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

// markNewUnconfirmed does the same to new handles that a host's journal knows already.
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
		UPDATE attach_handles h SET left_kind = 'host', left_id = h.host, left_operation = l.operation
		FROM unnest($1::uuid[], $2::uuid[]) AS l (handle, operation) WHERE h.uuid = l.handle`, handles, operations)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2 WHERE uuid = ANY($1) AND fence_operation IS NULL", targets, unsettled)
	return err
}

// collect forgets what handles were left with, and lifts the fences of accelerators of which nothing is left then. It returns
// the handles' accelerators.
func clearUnconfirmed(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		UPDATE attach_handles h SET left_kind = NULL, left_id = NULL, left_operation = NULL
		WHERE left_kind IS NOT NULL AND `+condition+` RETURNING deployable_uuid`, values...)
	if err != nil {
		return nil, err
	}
	targets, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_operation = NULL, fence_reason = `+fenceBelow+`
		WHERE uuid = ANY($1) AND fence_reason = $2 AND NOT EXISTS (
			SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND left_kind IS NOT NULL)`, targets, unsettled)
	return targets, err
}
