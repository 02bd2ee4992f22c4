package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ClearUnconfirmed makes the unconfirmed handles that meet the condition free
// again. An accelerator that has no other doubted handle loses the fence
// that they gave it, and stays fenced only where RemainingFence has another
// reason. It returns the accelerators of the handles.
func ClearUnconfirmed(ctx context.Context, tx pgx.Tx, condition string, values ...any) ([]uuid.UUID, error) {
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
		UPDATE deployables d SET fence_operation = NULL, fence_reason = `+RemainingFence+`
		WHERE uuid = ANY($1) AND fence_reason = $2 AND NOT EXISTS (
			SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND `+Doubted+`)`, targets, FenceUnconfirmed)
	return targets, err
}

// QueueMarkUnconfirmed queues a statement that marks free handles as unconfirmed
// which the journals of their hosts, as last reported, have attached by operations
// that the records do not know to have begun: the database has lost them, because
// it was restored, or its failover lost the last commits. It fences their
// accelerators. Where the records know the operation, they know how it ended, and
// the journal is only that of before.
//
// Where an operation has observed the device since the report, the entry may have
// gone meanwhile, and its operation may be older than the retention. Then the
// statement asks the host for a report instead. A handle that is taken back from a
// holder is marked even then, because somebody may get it before the report comes.
//
// The condition chooses among the free handles h and the entries j of these hosts;
// its own parameters begin at $3. Added are handles that the transaction has added:
// what a journal has of these is of before, whoever has attached it.
func QueueMarkUnconfirmed(batch *pgx.Batch, hosts []string, added []uuid.UUID, condition string, values ...any) {
	queueMark(batch, notIfOld, hosts, added, condition, values...)
}

// notIfOld and evenIfOld are SQL conditions of queueMark: which of the handles a are
// marked.
const (
	notIfOld  = "NOT a.old"
	evenIfOld = "true"
)

// queueMark implements QueueMarkUnconfirmed.
func queueMark(batch *pgx.Batch, which string, hosts []string, added []uuid.UUID, condition string, values ...any) {
	batch.Queue(`
		WITH attached AS MATERIALIZED (
			SELECT h.uuid, h.host, j.operation_id, v.observed_seq > s.report_seq AND (h.uuid = ANY($2)) IS NOT TRUE AS old
			FROM hosts s CROSS JOIN LATERAL jsonb_to_recordset(s.attachments) AS j (deployable text, handle text, operation_id uuid)
			JOIN attach_handles h ON h.host = s.name AND h.identity = j.handle
			JOIN deployables d ON d.uuid = h.deployable_uuid AND d.local_name = j.deployable JOIN devices v ON v.uuid = d.device_uuid
			WHERE s.name = ANY($1) AND h.holder_kind IS NULL AND h.unconfirmed_kind IS NULL AND (h.uuid = ANY($2)
			      OR NOT coalesce((SELECT started_at IS NOT NULL FROM operations WHERE id = j.operation_id), false)) AND (`+condition+`)),
		marked AS (
			UPDATE attach_handles h SET unconfirmed_kind = 'host', unconfirmed_id = h.host, unconfirmed_operation = a.operation_id
			FROM attached a WHERE h.uuid = a.uuid AND `+which+` RETURNING h.deployable_uuid),
		asked AS (
			UPDATE hosts SET digest = '', generation = generation + 1
			WHERE name IN (SELECT host FROM attached WHERE old) AND digest <> '')
		UPDATE deployables SET fence_reason = '`+FenceUnconfirmed+`'
		WHERE uuid IN (SELECT deployable_uuid FROM marked) AND fence_operation IS NULL`,
		append([]any{hosts, added}, values...)...)
}

// QueueMarkForgotten queues a statement that marks those of the handles, which the
// transaction has added, as unconfirmed again that were so when their host was
// forgotten, and fences the accelerators of the doubted ones.
func QueueMarkForgotten(batch *pgx.Batch, added []uuid.UUID) {
	batch.Queue(`
		WITH back AS (
			DELETE FROM forgotten_handles f USING attach_handles h
			WHERE h.uuid = ANY($1) AND f.host = h.host AND f.kind = h.kind AND f.identity = h.identity
			RETURNING h.uuid, f.unconfirmed_kind, f.unconfirmed_id, f.unconfirmed_operation, f.prepared),
		marked AS (
			UPDATE attach_handles h SET unconfirmed_kind = b.unconfirmed_kind, unconfirmed_id = b.unconfirmed_id,
			    unconfirmed_operation = b.unconfirmed_operation, prepared = b.prepared
			FROM back b WHERE h.uuid = b.uuid AND h.unconfirmed_kind IS NULL RETURNING h.deployable_uuid, h.prepared)
		UPDATE deployables SET fence_reason = '`+FenceUnconfirmed+`'
		WHERE uuid IN (SELECT deployable_uuid FROM marked WHERE NOT prepared) AND fence_operation IS NULL`, added)
}
