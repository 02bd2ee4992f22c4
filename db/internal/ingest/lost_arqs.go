package ingest

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// boot is a boot of a host that had another boot id before.
type boot struct {
	host, id string
	uptime   time.Duration // since this boot, when it was reported; 0 where the agent does not know
}

// markLostAtBoot marks the accelerator requests of instances that were bound
// before these boots of their hosts: the instances may be without their
// accelerators. Setting seen_at back makes the next comparison ask Nova about
// them soon. Where the agent does not know the uptime, the boot counts as just
// happened. The hosts must be recorded as they were before these boots.
//
// What was bound before the host was last heard was bound before the boot. Only of
// what was bound since, the database's clock has to tell: the host may have booted
// by then, and not have said so. A bind in the future counts as one before the boot,
// because the clock was set back since; so does one by a release that did not record
// the boot.
func markLostAtBoot(ctx context.Context, tx pgx.Tx, boots []boot) error {
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
		FROM unnest($1::text[], $2::text[], $3::interval[]) AS b (host, id, uptime) JOIN hosts was ON was.name = b.host, attach_handles h
		WHERE a.host = b.host AND a.state = 'Bound' AND a.instance_uuid IS NOT NULL AND h.uuid = a.handle_uuid
		  AND ((a.bound_boot, a.bound_uptime) IS DISTINCT FROM (was.boot_id, was.uptime)
		       OR h.attached_at NOT BETWEEN clock_timestamp() - b.uptime AND clock_timestamp())`, hosts, ids, uptimes)

	return err
}
