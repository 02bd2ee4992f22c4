package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// queueUninstalled records whether the targets of an operation have still to be
// uninstalled, where their host was asked for that. A card that is off the bus
// then leaves service all the same, because it may never come back; if it does, it
// is installed as before. See records.Queue.
func queueUninstalled(tx pgx.Tx, o *running, outcome *cyborg.Outcome) {
	if outcome.Uninstalled == nil {
		return
	}

	records.Queue(tx, `
		UPDATE deployables SET uninstall_pending_since = CASE WHEN NOT $2 THEN now() END
		WHERE uuid = ANY($1) AND (uninstall_pending_since IS NULL) <> $2`, inventory.UUIDs(o.targets), *outcome.Uninstalled)
}

// PendingUninstalls lists accelerators that left service without having been
// uninstalled, and that their host shows now: nobody holds them, they are not in
// maintenance, no operation works on them, and their host is neither silent nor
// revoked. Where a Retire has not uninstalled one, such as because somebody uses it on
// the host, it is listed again after a while: a quarter of the time that it has been
// pending, but between a minute and an hour.
func (s *Store) PendingUninstalls(ctx context.Context, limit int) ([]uuid.UUID, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT d.uuid FROM deployables d JOIN hosts h ON h.name = d.host
		WHERE d.uninstall_pending_since IS NOT NULL AND d.lifecycle = 'inactive' AND d.presence = 'present' AND d.protected = ''
		  AND NOT `+inventory.Maintained+` AND `+records.Within("h.last_seen", "$2::interval")+` AND NOT `+inventory.RevokedSQL("h")+`
		  AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
		  AND NOT EXISTS (SELECT FROM attach_handles a WHERE a.deployable_uuid = d.uuid AND (a.holder_kind IS NOT NULL OR a.unconfirmed_kind IS NOT NULL))
		  AND NOT EXISTS (
			SELECT FROM operation_subjects s JOIN operations tried ON tried.id = s.operation_id
			WHERE s.kind = 'accelerator' AND s.subject_id = d.uuid::text AND tried.kind = 'retire' AND tried.id IS DISTINCT FROM d.lifecycle_operation
			  AND `+records.Within("tried.admitted_at", "greatest('1 minute', least('1 hour', (clock_timestamp() - d.uninstall_pending_since) / 4))")+`)
		ORDER BY d.id LIMIT $1`, records.Limit(limit), s.db.Options.SilentAfter)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.db.Failure(ctx, err)
}
