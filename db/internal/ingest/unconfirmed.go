package ingest

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// markNewUnconfirmed marks newly recorded handles as unconfirmed where the
// host's journal already lists an attachment of them: the host may have them
// attached for somebody whom the records no longer know. It fences their
// accelerators.
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

	return fenceUnconfirmed(ctx, tx, targets)
}

// lostAttachments are entries of journals for handles that the records call free.
type lostAttachments struct {
	handles, operations []uuid.UUID
}

// add adds those of a host's whole report, which was merged into v. After a
// restore or a failover, a host's first report is whole, because it builds on
// nothing that the records have.
func (l *lostAttachments) add(r *agentapi.Report, v *merge.Inventory) {
	if r.Base != "" || len(r.Content.Attachments) == 0 {
		return
	}

	entries := map[string]uuid.UUID{} // the attaching operations, by handle
	for _, entry := range r.Content.Attachments {
		entries[entry.Handle] = entry.Operation
	}

	for key, handle := range v.Handles {
		if operation, ok := entries[key.Identity]; ok && handle.Known() && handle.Row().Holder == "" {
			l.handles, l.operations = append(l.handles, handle.Row().UUID), append(l.operations, operation)
		}
	}
}

// mark marks those handles as unconfirmed whose attaching operation the records
// do not have: the database has lost it, and the host still has the handle
// attached. Nobody gets it until Reconcile has settled the attachment. Where the
// operation is known, the journal is only that of before the detach.
func (l *lostAttachments) mark(ctx context.Context, tx pgx.Tx) error {
	if len(l.handles) == 0 {
		return nil
	}

	rows, err := tx.Query(ctx, `
		UPDATE attach_handles h SET unconfirmed_kind = 'host', unconfirmed_id = h.host, unconfirmed_operation = l.operation
		FROM unnest($1::uuid[], $2::uuid[]) AS l (handle, operation)
		WHERE h.uuid = l.handle AND h.holder_kind IS NULL AND h.unconfirmed_kind IS NULL
		  AND NOT EXISTS (SELECT FROM operations WHERE id = l.operation)
		RETURNING h.deployable_uuid`, l.handles, l.operations)
	if err != nil {
		return err
	}

	targets, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(targets) == 0 {
		return err
	}
	return fenceUnconfirmed(ctx, tx, targets)
}

// fenceUnconfirmed fences accelerators with unconfirmed handles, except those that
// an operation has fenced; see inventory.RemainingFence.
func fenceUnconfirmed(ctx context.Context, tx pgx.Tx, targets []uuid.UUID) error {
	_, err := tx.Exec(ctx, "UPDATE deployables SET fence_reason = $2 WHERE uuid = ANY($1) AND fence_operation IS NULL", targets, inventory.FenceUnconfirmed)
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
