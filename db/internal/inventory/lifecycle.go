package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// SetLifecycle takes accelerators to another lifecycle, but only those whose
// present lifecycle allows that, and returns how many those were.
func SetLifecycle(ctx context.Context, tx pgx.Tx, targets []uuid.UUID, to cyborg.Lifecycle) (int, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE deployables SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = ''
		WHERE uuid = ANY($1) AND lifecycle = ANY($3)`,
		targets, string(to), records.Texts(cyborg.Sources(cyborg.LifecycleTransitions(), to)))
	return int(tag.RowsAffected()), err
}

// Settle takes accelerators back into service that were in error only because
// an attach or a detach was in doubt, once none of their handles is in doubt or
// unconfirmed any more.
func Settle(ctx context.Context, tx pgx.Tx, targets []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		UPDATE deployables d SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = ''
		WHERE uuid = ANY($1) AND lifecycle = $3 AND error_kind = ANY($4) AND NOT EXISTS (
			SELECT FROM attach_handles
			WHERE deployable_uuid = d.uuid AND (holder_kind IS NOT NULL AND attached_at IS NULL OR unconfirmed_kind IS NOT NULL))`,
		targets, string(cyborg.LifecycleReady), string(cyborg.LifecycleError), Doubtful())
	return err
}
