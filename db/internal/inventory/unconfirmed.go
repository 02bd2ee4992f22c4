package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ClearUnconfirmed makes the unconfirmed handles that meet the condition free
// again. An accelerator that has no other unconfirmed handle loses the fence
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
			SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND unconfirmed_kind IS NOT NULL)`, targets, FenceUnconfirmed)
	return targets, err
}
