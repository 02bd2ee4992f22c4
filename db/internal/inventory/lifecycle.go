package inventory

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// QueueLifecycle takes accelerators to another lifecycle, but only those whose
// present lifecycle allows that: the rows that the statement affects. See
// records.Queue.
func QueueLifecycle(tx pgx.Tx, targets []uuid.UUID, to cyborg.Lifecycle) *pgx.QueuedQuery {
	return records.Queue(tx, `
		UPDATE deployables SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = '',
		    uninstall_pending_since = CASE WHEN $2 <> 'ready' THEN uninstall_pending_since END
		WHERE uuid = ANY($1) AND lifecycle = ANY($3)`,
		targets, string(to), records.Texts(cyborg.Sources(cyborg.LifecycleTransitions(), to)))
}

// QueueSettle takes accelerators back into service that were in error only
// because an attach or a detach was in doubt, once none of their handles is in
// doubt or unconfirmed any more. See records.Queue.
func QueueSettle(tx pgx.Tx, targets []uuid.UUID) {
	records.Queue(tx, `
		UPDATE deployables d SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = ''
		WHERE uuid = ANY($1) AND lifecycle = $3 AND error_kind = ANY($4) AND NOT EXISTS (
			SELECT FROM attach_handles
			WHERE deployable_uuid = d.uuid AND (holder_kind IS NOT NULL AND attached_at IS NULL OR unconfirmed_kind IS NOT NULL))`,
		targets, string(cyborg.LifecycleReady), string(cyborg.LifecycleError), Doubtful())
}
