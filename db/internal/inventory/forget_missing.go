package inventory

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Forget deletes what has been missing for that long, unless somebody holds it, an
// operation works on it, or it has still to be cleaned, because nobody may get what excludes
// it before that; and returns how many handles, deployables and
// devices it deleted. It also deletes backends without devices that their host
// no longer reports. The events of what was deleted stay.
func (s *Store) Forget(ctx context.Context, missingFor time.Duration) (int, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT host FROM attach_handles WHERE presence = 'missing' AND missing_since <= now() - $1::interval AND holder_kind IS NULL
		UNION
		SELECT host FROM devices WHERE presence = 'missing' AND missing_since <= now() - $1::interval
		UNION
		SELECT host FROM deployables WHERE presence = 'missing' AND missing_since <= now() - $1::interval
		UNION
		SELECT host FROM backends WHERE NOT reported
		ORDER BY host`, missingFor)
	if err != nil {
		return 0, s.db.Failure(ctx, err)
	}

	hosts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, s.db.Failure(ctx, err)
	}

	forgotten := 0
	for _, host := range hosts {
		n, err := s.forgetOn(ctx, host, missingFor)
		forgotten += n
		if err != nil {
			return forgotten, err
		}
	}

	return forgotten, nil
}

// forgetOn is Forget for one host. It deletes handles first, then deployables,
// then devices: what cannot be deleted keeps everything that it belongs to.
func (s *Store) forgetOn(ctx context.Context, host string, missingFor time.Duration) (int, error) {
	const missing = "host = $1 AND presence = 'missing' AND missing_since <= now() - $2::interval AND "
	// An accelerator in Nova's whitelist is not forgotten: when it comes back,
	// Cyborg must not give it out.
	const handles = missing + `holder_kind IS NULL
		AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)
		AND NOT EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid)
		AND NOT EXISTS (SELECT FROM deployables WHERE nova_spec IS NOT NULL AND uuid = h.deployable_uuid)`
	const deployables = missing + `NOT EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid)
		AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid) AND nova_spec IS NULL`

	forgotten := 0
	err := s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		forgotten = 0 // the transaction may be tried several times
		if err := records.LockHosts(ctx, tx, host); err != nil {
			return err
		}

		// Hardware that has been missing for so long has nothing attached any more. What
		// is kept may come back, and have it still, unless it is only kept because it is unclean.
		targets, err := ClearUnconfirmed(ctx, tx, handles, host, missingFor)
		if err != nil {
			return err
		}

		free, err := UnclaimedOf(ctx, tx, host, targets)
		if err != nil {
			return err
		}

		QueueSettle(tx, free)

		// Without the missing one there is room for what was in its place.
		if _, err := tx.Exec(ctx, wantReportOfReplaced, []string{host}); err != nil {
			return err
		}

		for _, sql := range []string{
			"DELETE FROM attach_handles h WHERE unclean = '' AND " + handles,
			rememberInstalls(deployables),
			"DELETE FROM deployables d WHERE " + deployables,
			`DELETE FROM devices v WHERE ` + missing + `partition_operation IS NULL AND NOT EXISTS (SELECT FROM deployables WHERE device_uuid = v.uuid)`,
		} {
			tag, err := tx.Exec(ctx, sql, host, missingFor)
			if err != nil {
				return err
			}

			if tag.Delete() {
				forgotten += int(tag.RowsAffected())
			}
		}

		_, err = tx.Exec(ctx, `
			DELETE FROM backends b WHERE host = $1 AND NOT reported
			AND NOT EXISTS (SELECT FROM devices WHERE host = b.host AND backend = b.name)`, host)

		return err
	})

	return forgotten, err
}

// UnclaimedOf returns those of the targets that are on the host and that no
// operation works on.
func UnclaimedOf(ctx context.Context, tx pgx.Tx, host string, targets []uuid.UUID) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT uuid FROM deployables d WHERE host = $1 AND uuid = ANY($2)
		AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)`, host, targets)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}
