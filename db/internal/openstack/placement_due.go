package openstack

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// This file records how far Placement follows the records. Triggers (see the
// migration that made the tables) increase placement_sync.wanted of a host at
// each change that Placement has to learn of; done is the version that
// Placement was last brought to. A host is in step where done has reached
// wanted.

// SetPlacementFollowing turns the tracking of changes for Placement on or off.
//
// Turned on, it records every host that is not recorded yet as out of step, so
// that it is written to Placement at once, and sets the times of their next
// comparison at random within the interval, so that they are not all compared
// at the same time. Later hosts are recorded with their first report.
func (s *Store) SetPlacementFollowing(ctx context.Context, on bool, every time.Duration) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		if !on {
			_, err := tx.Exec(ctx, "DELETE FROM placement_following")
			if err == nil {
				_, err = tx.Exec(ctx, "DELETE FROM placement_sync")
			}

			return err
		}

		var following bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM placement_following)").Scan(&following); err != nil {
			return err
		}

		// Transactions that are running have not seen placement_following, so their
		// triggers record nothing. The lock waits for them, and makes later ones wait
		// for this transaction.
		if !following {
			if _, err := tx.Exec(ctx, "LOCK TABLE hosts, deployables, attach_handles, claims IN SHARE MODE"); err != nil {
				return err
			}
		}

		if _, err := tx.Exec(ctx, `
			INSERT INTO placement_following AS f (compare_every) VALUES ($1)
			ON CONFLICT (one) DO UPDATE SET compare_every = $1 WHERE f.compare_every <> $1`, every); err != nil {
			return err
		}

		_, err := tx.Exec(ctx, `
			INSERT INTO placement_sync (host, compared_at) SELECT h.name, now() - random() * $1::interval FROM hosts h
			WHERE NOT EXISTS (SELECT FROM placement_sync p WHERE p.host = h.name) ORDER BY h.name ON CONFLICT DO NOTHING`, every)

		return err
	})
}

// RecordSilentHosts records which hosts have fallen silent, and which are heard again,
// and returns how many those were. A host whose certificates were revoked counts as
// silent: an instance that Nova placed there would not get its accelerator. It skips
// hosts that another transaction is changing; the next call finds them.
func (s *Store) RecordSilentHosts(ctx context.Context, silentFor time.Duration) (int, error) {
	tag, err := s.db.Pool.Exec(ctx, `
		UPDATE placement_sync p
		SET silent = NOT p.silent, wanted = p.wanted + 1, compare = false, try_at = NULL, since = coalesce(p.since, clock_timestamp())
		FROM (SELECT s.host FROM placement_sync s
		      WHERE s.host = ANY(ARRAY(
		          SELECT h.name FROM hosts h WHERE (NOT `+records.Within("h.last_seen", "$1::interval")+` OR `+inventory.RevokedSQL("h")+`)
		              AND NOT EXISTS (SELECT FROM placement_sync WHERE host = h.name AND silent) LIMIT 1000)
		          || ARRAY(
		          SELECT q.host FROM placement_sync q JOIN hosts h ON h.name = q.host
		          WHERE q.silent AND `+records.Within("h.last_seen", "$1::interval")+` AND NOT `+inventory.RevokedSQL("h")+` LIMIT 1000))
		      ORDER BY s.host FOR UPDATE OF s SKIP LOCKED) AS changed
		WHERE p.host = changed.host`, silentFor)

	return int(tag.RowsAffected()), s.db.Failure(ctx, err)
}

// TakeDuePlacement takes up to limit hosts that are out of step. The caller has
// them for the lease, and for longer once it has called MarkPlacementStarted;
// after that, or when the records change again, another caller may take them.
// So it may where the database's clock was set back since they were taken, or
// where they were taken before the epoch: a restore forgets that their run has
// ended. It skips hosts that another caller is taking at this moment.
func (s *Store) TakeDuePlacement(ctx context.Context, limit int, lease time.Duration) ([]string, error) {
	return s.db.HostNames(ctx, `
		UPDATE placement_sync p SET asked = p.wanted, asked_at = due.now, try_at = due.now + $2::interval
		FROM (SELECT host, clock_timestamp() AS now FROM placement_sync
		      WHERE done < wanted AND (asked < wanted OR coalesce(try_at, asked_at + $2::interval) <= clock_timestamp()
		          OR asked_at > clock_timestamp() + interval '10 minutes'
		          OR asked_at < (SELECT began_at FROM feed_epochs ORDER BY epoch DESC LIMIT 1))
		      ORDER BY host LIMIT $1 FOR UPDATE SKIP LOCKED) AS due
		WHERE p.host = due.host RETURNING p.host`, records.Limit(limit), lease)
}

// MarkPlacementStarted records that work has begun on hosts that the caller has
// taken for the lease. Nobody else takes them within patience of when they were
// taken, unless the records change again. Hosts that have been recorded or
// taken again meanwhile stay as they are.
func (s *Store) MarkPlacementStarted(ctx context.Context, hosts []string, lease, patience time.Duration) error {
	return s.bookPlacement(ctx, `
		UPDATE placement_sync SET try_at = asked_at + $3::interval
		WHERE host = ANY($1) AND done < wanted AND try_at = asked_at + $2::interval`, hosts, lease, patience)
}

// ReturnPlacement gives back hosts that TakeDuePlacement has taken and that the
// caller could not bring into step.
func (s *Store) ReturnPlacement(ctx context.Context, hosts []string) error {
	return s.bookPlacement(ctx, "UPDATE placement_sync SET asked = done WHERE host = ANY($1) AND done < wanted", hosts)
}

// bookPlacement updates several hosts without locking them first. Transactions
// that change some of them at the same time may lock the rows in another order,
// and PostgreSQL then ends one of the two; this one is tried again.
func (s *Store) bookPlacement(ctx context.Context, sql string, values ...any) error {
	return s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, values...)
		return err
	})
}

// TakePlacementComparison takes a host to compare: of the hosts in step that
// are not among before, the one whose comparison is longest ago, if that is at
// least the interval ago. It returns "" where there is none. The caller has a
// minute to bring the host into step again. After that TakeDuePlacement gives
// it to another caller, who compares it as well; comparing twice does no harm.
func (s *Store) TakePlacementComparison(ctx context.Context, every time.Duration, before []string) (string, error) {
	hosts, err := s.db.HostNames(ctx, `
		UPDATE placement_sync p SET wanted = p.wanted + 1, asked = p.wanted + 1, asked_at = clock_timestamp(),
		    try_at = clock_timestamp() + interval '1 minute', compare = true, since = clock_timestamp()
		FROM (SELECT host FROM placement_sync
		      WHERE done = wanted AND compared_at <= clock_timestamp() - $1::interval AND host <> ALL(coalesce($2::text[], '{}'))
		      ORDER BY compared_at LIMIT 1 FOR UPDATE SKIP LOCKED) AS due
		WHERE p.host = due.host RETURNING p.host`, every, before)
	if err != nil || len(hosts) == 0 {
		return "", err
	}

	return hosts[0], nil
}

// ReturnPlacementComparison gives back a host that TakePlacementComparison has
// taken and that could not be compared: it counts as in step again, unless the
// records have changed since.
func (s *Store) ReturnPlacementComparison(ctx context.Context, host string) error {
	_, err := s.db.Pool.Exec(ctx, `
		UPDATE placement_sync SET done = wanted, compare = false, since = NULL
		WHERE host = $1 AND compare AND done = wanted - 1`, host)
	return s.db.Failure(ctx, err)
}
