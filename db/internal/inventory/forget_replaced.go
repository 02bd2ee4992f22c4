package inventory

import (
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// QueueForgetReplaced queues statements that delete the devices of these hosts in
// whose place another card was seen, with all that belongs to them, unless somebody
// has one of their handles, an operation works on them, or Nova gives them out. The
// hosts are locked. The events of what was deleted stay.
//
// Nothing is remembered of what was installed or attached: it was so on the card
// that is gone.
func QueueForgetReplaced(tx pgx.Tx, hosts []string) {
	const free = `
		WITH free AS (
			SELECT uuid FROM devices v WHERE host = ANY($1) AND replaced_by IS NOT NULL AND partition_operation IS NULL AND NOT EXISTS (
				SELECT FROM deployables d WHERE d.device_uuid = v.uuid AND (d.nova_spec IS NOT NULL
				    OR EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
				    OR EXISTS (SELECT FROM attach_handles h WHERE h.deployable_uuid = d.uuid AND (holder_kind IS NOT NULL
				        OR unconfirmed_kind IS NOT NULL OR EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid))))))`

	batch := &pgx.Batch{}
	for _, sql := range []string{
		"DELETE FROM attach_handles h USING deployables d, free WHERE h.deployable_uuid = d.uuid AND d.device_uuid = free.uuid",
		"DELETE FROM deployables d USING free WHERE d.device_uuid = free.uuid",
		"DELETE FROM devices v USING free WHERE v.uuid = free.uuid",
	} {
		batch.Queue(free+sql, hosts)
	}
	records.QueueBatch(tx, batch)
}

// QueueWantReportOfReplaced queues a statement that makes those of the hosts send their
// report again where another card is in the place of a recorded one: that one may be
// nobody's now, and is then forgotten with the report.
func QueueWantReportOfReplaced(batch *pgx.Batch, hosts ...string) {
	batch.Queue(wantReportOfReplaced, hosts)
}

const wantReportOfReplaced = `
	UPDATE hosts s SET digest = '', generation = generation + 1
	WHERE name = ANY($1) AND digest <> '' AND EXISTS (SELECT FROM devices v WHERE v.host = s.name AND v.replaced_by IS NOT NULL)`
