package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// boot is one of a host that had another boot id before.
type boot struct {
	host, id string
	uptime   time.Duration // when that was reported; 0 where the agent could not tell
}

// loseAtBoot marks the accelerator requests of instances that were bound before these boots of their hosts, and has Nova asked
// about the instances soon. A host whose agent cannot tell when it booted has booted when it says so first.
func loseAtBoot(ctx context.Context, tx pgx.Tx, boots []boot) error {
	if len(boots) == 0 {
		return nil
	}
	var (
		hosts, ids []string
		uptimes    []time.Duration
	)
	for _, b := range boots {
		hosts, ids, uptimes = append(hosts, b.host), append(ids, b.id), append(uptimes, max(b.uptime, 0))
	}
	_, err := tx.Exec(ctx, `
		UPDATE arqs a SET lost_boot = b.id, lost_at = clock_timestamp() - b.uptime, hard_reboot = NULL, seen_at = '-infinity'
		FROM unnest($1::text[], $2::text[], $3::interval[]) AS b (host, id, uptime), attach_handles h
		WHERE a.host = b.host AND a.state = 'Bound' AND a.instance_uuid IS NOT NULL
		  AND h.uuid = a.handle_uuid AND h.attached_at < clock_timestamp() - b.uptime`, hosts, ids, uptimes)
	return err
}

// clearLost takes back that these instances may be without their accelerators, unless their hosts have booted again since. The
// hosts are locked.
func clearLost(ctx context.Context, tx pgx.Tx, well []cyborg.Rescue) error {
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

// NoteHardReboot records that Nova is at a hard reboot of an instance that may be without its accelerators, by Nova's id of the
// request for it: if it succeeds, the instance has them again. It was seen when they were known to be lost by a boot at lostAt,
// that of the request which was lost last: of a boot since then, of which the caller does not know, nothing is noted.
func (s *Store) NoteHardReboot(ctx context.Context, instance uuid.UUID, lostAt time.Time, request string) error {
	_, err := s.pool.Exec(ctx, "UPDATE arqs SET hard_reboot = $3 WHERE instance_uuid = $1 AND lost_at <= $2 AND hard_reboot IS DISTINCT FROM $3",
		instance, lostAt, request)
	return s.failure(ctx, err)
}

// HardReboot is the last hard reboot that was noted since that boot; empty for none.
func (s *Store) HardReboot(ctx context.Context, lost cyborg.Rescue) (string, error) {
	var request string
	err := s.pool.QueryRow(ctx, "SELECT coalesce(max(hard_reboot), '') FROM arqs WHERE instance_uuid = $1 AND lost_boot = $2",
		lost.Instance, lost.BootID).Scan(&request)
	return request, s.failure(ctx, err)
}
