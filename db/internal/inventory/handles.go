package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// QueueRelease is ReleaseHandles for handles of these accelerators that are
// known to have holders. See records.Queue.
func QueueRelease(tx pgx.Tx, targets, handles []uuid.UUID) {
	records.Queue(tx, `
		UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE uuid = ANY($1) AND holder_kind IS NOT NULL`, handles)
	records.Queue(tx, liftVanished, targets, merge.FenceVanished)
}

// liftVanished lifts the fences of accelerators that had gone missing under
// holders which they have no more.
const liftVanished = `
	UPDATE deployables d SET fence_reason = NULL
	WHERE uuid = ANY($1) AND fence_operation IS NULL AND fence_reason = $2 AND NOT ` + GoneUnderHolder

// ReleaseHandles takes handles back from their holders, and lifts the fences of
// accelerators that had gone missing under these holders. In the condition the
// table is called h.
func ReleaseHandles(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	rows, err := tx.Query(ctx, `
		UPDATE attach_handles h SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE holder_kind IS NOT NULL AND `+condition+` RETURNING deployable_uuid`, values...)
	if err != nil {
		return err
	}

	targets, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(targets) == 0 {
		return err
	}

	_, err = tx.Exec(ctx, liftVanished, targets, merge.FenceVanished)
	return err
}
