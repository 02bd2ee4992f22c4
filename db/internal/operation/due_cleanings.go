package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// cleaningsOfHost is how many cleans a conductor has run on one host at the same time: each
// may take a slot of its agent (agent.slots) for hours.
const cleaningsOfHost = 8

// DueCleanings lists accelerators with a handle that has still to be cleaned, and that can be:
// their host shows them and is neither silent nor revoked, they are neither fenced, in error
// nor in maintenance, no operation works on them, and nobody has what excludes them or goes to
// one holder with them. Of a device it is one at a time, because its host cleans one handle
// after the other, and of a host cleaningsOfHost, because each takes a slot there. Where
// a clean has failed since the handle became unclean, the accelerator is listed again after a
// while: a quarter of the time that it has been unclean, but between a minute and an hour.
func (s *Store) DueCleanings(ctx context.Context, limit int) ([]uuid.UUID, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT uuid FROM (
		SELECT uuid, id, row_number() OVER (PARTITION BY host ORDER BY id)
		       + (SELECT count(*) FROM operations WHERE host = one.host AND kind = 'clean' AND open) AS of_host FROM (
		SELECT d.uuid, d.id, d.host, row_number() OVER (PARTITION BY d.device_uuid ORDER BY d.id) AS of_device
		FROM deployables d JOIN hosts h ON h.name = d.host
		WHERE d.uuid IN (
			SELECT a.deployable_uuid FROM attach_handles a
			WHERE a.unclean <> '' AND a.unconfirmed_kind IS NULL AND a.presence = 'present' AND NOT EXISTS (
				SELECT FROM operation_subjects s JOIN operations tried ON tried.id = s.operation_id
				WHERE s.kind = 'accelerator' AND s.subject_id = a.deployable_uuid::text AND tried.kind = 'clean' AND tried.admitted_at >= a.unclean_since
				  AND `+records.Within("coalesce(tried.ended_at, tried.admitted_at)", "greatest('1 minute', least('1 hour', (clock_timestamp() - a.unclean_since) / 4))")+`))
		  AND d.lifecycle <> 'error' AND d.presence = 'present' AND d.protected = '' AND d.fence_reason IS NULL AND d.nova_spec IS NULL
		  AND NOT `+inventory.Maintained+` AND `+records.Within("h.last_seen", "$2::interval")+` AND NOT `+inventory.RevokedSQL("h")+`
		  AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
		  AND NOT EXISTS (
		      SELECT FROM claims c JOIN operations o ON o.id = c.operation_id AND o.kind = 'clean' JOIN deployables n ON n.uuid = c.deployable_uuid
		      WHERE n.device_uuid = d.device_uuid)
		  AND NOT EXISTS (
		      SELECT FROM (SELECT e AS uuid FROM excluded_with(d.uuid) AS e
		          UNION ALL SELECT g.uuid FROM deployables g WHERE g.host = d.host AND g.same_holder = d.same_holder AND g.same_holder <> '' AND g.uuid <> d.uuid) AS e
		      JOIN deployables n ON n.uuid = e.uuid LEFT JOIN attach_handles x ON x.deployable_uuid = n.uuid
		      WHERE n.nova_spec IS NOT NULL OR x.holder_kind IS NOT NULL OR x.unconfirmed_kind IS NOT NULL)) AS one
		WHERE of_device = 1) AS due
		WHERE of_host <= $3
		ORDER BY id LIMIT $1`, records.Limit(limit), s.db.Options.SilentAfter, cleaningsOfHost)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.db.Failure(ctx, err)
}
