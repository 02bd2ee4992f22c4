package ingest

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
)

// markNewUnconfirmed marks newly recorded handles as unconfirmed where the
// host's journal already lists an attachment of them: the host may have them
// attached for somebody whom the records no longer know. It fences their
// accelerators, except those that an operation has fenced; see
// inventory.RemainingFence.
func markNewUnconfirmed(ctx context.Context, tx pgx.Tx, hosts []hostRow, added []merge.HandleRow) error {
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

	_, err = tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2 WHERE uuid = ANY($1) AND fence_operation IS NULL", targets, inventory.FenceUnconfirmed)
	return err
}

// markObservedUnconfirmed is markNewUnconfirmed for handles that an operation's
// observation has added. They are compared with the journal that the host
// reported last.
func markObservedUnconfirmed(ctx context.Context, tx pgx.Tx, host string, added []merge.HandleRow) error {
	if len(added) == 0 {
		return nil
	}

	row := hostRow{Name: host}
	if err := tx.QueryRow(ctx, "SELECT attachments FROM hosts WHERE name = $1", host).Scan(&row.Attachments); err != nil {
		return err
	}

	return markNewUnconfirmed(ctx, tx, []hostRow{row}, added)
}
