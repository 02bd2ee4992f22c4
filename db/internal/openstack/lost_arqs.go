package openstack

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// ClearLost records that these instances have their accelerators, unless their
// hosts have booted again since. The hosts must be locked.
func ClearLost(ctx context.Context, tx pgx.Tx, well []cyborg.Rescue) error {
	if len(well) == 0 {
		return nil
	}

	var instances, boots []string
	for _, w := range well {
		instances, boots = append(instances, w.Instance.String()), append(boots, w.BootID)
	}

	_, err := tx.Exec(ctx, `
		UPDATE arqs SET lost_boot = NULL, lost_at = NULL, hard_reboot = NULL, seen_at = now()
		WHERE (instance_uuid, lost_boot) IN (SELECT * FROM unnest($1::uuid[], $2::text[]))`, instances, boots)
	return err
}

// RecordHardReboot records that Nova is hard rebooting an instance that may be
// without its accelerators; request is Nova's id of the request. If the reboot
// succeeds, the instance has them again.
//
// lostAt is when the last request of the instance was lost, as far as the
// caller knows. Requests that a later boot of the host has lost are left out,
// because the reboot may have come before that.
func (s *Store) RecordHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error {
	_, err := s.db.Pool.Exec(ctx, "UPDATE arqs SET hard_reboot = $3 WHERE instance_uuid = $1 AND lost_at <= $2 AND hard_reboot IS DISTINCT FROM $3",
		instance, lostAt, request)
	return s.db.Failure(ctx, err)
}

// HardReboot returns the last hard reboot that was recorded since that boot, or
// "" for none.
func (s *Store) HardReboot(ctx context.Context, lost cyborg.Rescue) (string, error) {
	var request string
	err := s.db.Pool.QueryRow(ctx, "SELECT coalesce(max(hard_reboot), '') FROM arqs WHERE instance_uuid = $1 AND lost_boot = $2",
		lost.Instance, lost.BootID).Scan(&request)
	return request, s.db.Failure(ctx, err)
}

// SinceBoot returns how long ago the host booted at which the instance's requests
// were lost: at least as long as the host has been up by its own word, and at most as
// much longer as nothing was heard of it, by the database's clock. Where that was set
// back since, nobody can say how long that is, so it is no limit. Where the agent does
// not say how long its host is up, the database's clock alone has to tell.
func (s *Store) SinceBoot(ctx context.Context, host string, lost cyborg.Rescue) (atLeast, atMost time.Duration, _ error) {
	err := s.db.Pool.QueryRow(ctx, `
		SELECT greatest(at_least, '0'), greatest(at_most, at_least, '0') FROM (VALUES (1)) AS always
		LEFT JOIN hosts h ON h.name = $1 AND h.uptime IS NOT NULL,
		LATERAL (SELECT clock_timestamp() AS now, clock_timestamp() - $2::timestamptz AS since) AS clock,
		LATERAL (SELECT coalesce(h.uptime, since) AS at_least,
		         coalesce(h.uptime + CASE WHEN h.last_seen > now THEN '100 years' ELSE now - h.last_seen END, since) AS at_most) AS known`,
		host, lost.BootedAt).Scan(&atLeast, &atMost)
	return atLeast, atMost, s.db.Failure(ctx, err)
}
