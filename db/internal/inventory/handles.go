package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// QueueRelease is ReleaseHandles for handles of these accelerators of a host that are
// known to have holders, for whom the operations had taken them. See records.Queue.
func QueueRelease(tx pgx.Tx, host string, targets, handles, operations []uuid.UUID) {
	records.Queue(tx, `
		UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	records.Queue(tx, liftOfHeld, targets, fencesOfHeld())

	batch := &pgx.Batch{}
	queueMarkReleased(batch, []string{host}, handles, operations)
	records.QueueBatch(tx, batch)
}

// liftOfHeld lifts the fences of accelerators that had gone missing under
// holders, or whose attachments were undone, where they have these holders no more.
const liftOfHeld = `
	UPDATE deployables d SET fence_reason = ` + RemainingFence + `
	WHERE uuid = ANY($1) AND fence_operation IS NULL AND fence_reason = ANY($2) AND fence_reason IS DISTINCT FROM ` + RemainingFence

// fencesOfHeld are the reasons of fences that last only as long as somebody holds the
// accelerator.
func fencesOfHeld() []string { return append(UndoneReasons(), merge.FenceVanished) }

// ReleaseHandles takes handles back from their holders, and lifts the fences of
// accelerators that had gone missing under these holders, or were undone. In the condition the
// table is called h. A handle that its host has attached for somebody else becomes
// unconfirmed; see QueueMarkUnconfirmed.
func ReleaseHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	return releaseHandles(ctx, tx, queueMarkReleased, condition, values...)
}

// queueMarkReleased is QueueMarkUnconfirmed for handles that were taken back. What
// the operation itself had attached is what was taken back.
func queueMarkReleased(batch *pgx.Batch, hosts []string, handles, operations []uuid.UUID) {
	queueMark(batch, evenIfOld, hosts, nil, `
		h.uuid = ANY($3) AND (h.uuid, j.operation_id) NOT IN (SELECT * FROM unnest($3::uuid[], $4::uuid[]))`, handles, operations)
}

// ReleaseSettledHandles is ReleaseHandles for handles that their host has detached
// just now, whatever the journal has that it reported before.
func ReleaseSettledHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	return releaseHandles(ctx, tx, func(*pgx.Batch, []string, []uuid.UUID, []uuid.UUID) {}, condition, values...)
}

// releaseHandles is ReleaseHandles. And queues what else is to be done with the
// handles that were released, which the operations had taken.
func releaseHandles(
	ctx context.Context, tx pgx.Tx, and func(batch *pgx.Batch, hosts []string, handles, operations []uuid.UUID),
	condition string, values ...any,
) error {
	rows, err := tx.Query(ctx, `
		WITH held AS MATERIALIZED (
			SELECT uuid, operation_id FROM attach_handles h WHERE holder_kind IS NOT NULL AND `+condition+`)
		UPDATE attach_handles h SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		FROM held WHERE h.uuid = held.uuid AND h.operation_id = held.operation_id RETURNING h.host, h.uuid, held.operation_id, h.deployable_uuid`, values...)
	if err != nil {
		return err
	}

	var (
		host                         string
		handle, operation, target    uuid.UUID
		hosts                        []string
		handles, operations, targets []uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&host, &handle, &operation, &target}, func() error {
		hosts = append(hosts, host)
		handles, operations, targets = append(handles, handle), append(operations, operation), append(targets, target)
		return nil
	})
	if err != nil || len(targets) == 0 {
		return err
	}

	batch := &pgx.Batch{}
	batch.Queue(liftOfHeld, targets, fencesOfHeld())
	QueueWantReportOfReplaced(batch, hosts...)
	and(batch, hosts, handles, operations)
	return tx.SendBatch(ctx, batch).Close()
}
