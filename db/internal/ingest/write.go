package ingest

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// The columns of the tables as jsonb_to_recordset needs them, with their types.
const (
	backendColumns    = `host text, name text, driver text, options jsonb, state text, error text, services text[], reported boolean`
	deviceColumns     = `uuid uuid, host text, backend text, driver text, identity text, type text, vendor_id text, product_id text, vendor text, model text, numa_node int, board_info jsonb, control_path_kind text, control_path_info jsonb, fingerprint jsonb, replaced_by text, partitioning jsonb, observed_seq bigint, presence text`
	deployableColumns = `uuid uuid, device_uuid uuid, host text, name text, local_name text, provider_uuid uuid, accelerator text, specs jsonb, attributes jsonb, bitstream_id text, pending_image jsonb, program_set text, same_holder text, excludes text[], conditions jsonb, preparation jsonb, cleaning jsonb, protected text, presence text, fence_reason text, image_boot text,
		administration text, maintain_reason text, maintain_by text, maintain_until timestamptz`
	handleColumns = `uuid uuid, deployable_uuid uuid, host text, kind text, info jsonb, identity text, companions text[], presence text`
)

// ownWhitelist is an SQL expression: the checksum of the whitelist file of the
// host's Nova where only Cyborg has written it, else NULL. While nothing else
// is known of a host, this checksum counts as the one that was written last.
const ownWhitelist = `CASE WHEN coalesce(whitelist ->> 'foreign', '') = '' THEN whitelist ->> 'sha256' END`

// queueWrites writes hosts and collected changes, with at most one insert and
// one update for each table. The rows go to the server as one JSON array each.
// See records.Queue.
func queueWrites(tx pgx.Tx, hosts []hostRow, c *merge.Changes) {
	batch := &pgx.Batch{}
	queue(batch, hosts, `
		INSERT INTO hosts (name, boot_id, instance, agent_address, agent_version, report_seq, digest, base, generation, attachments,
		    whitelist, whitelist_written, journal_opening, journal_writes, uptime, heard_epoch, last_seen)
		SELECT name, boot_id, instance, agent_address, agent_version, report_seq, digest, base, generation, attachments,
		    whitelist, `+ownWhitelist+`, journal_opening, journal_writes, `+uptime("r")+`, (SELECT epoch_in_force()), clock_timestamp()
		FROM jsonb_to_recordset($1) AS r (name text, boot_id text, instance text, agent_address text, agent_version text, report_seq bigint, digest text,
		    base text, generation bigint, attachments jsonb, whitelist jsonb, journal_opening uuid, journal_writes bigint, uptime_ms bigint)
		ORDER BY name
		ON CONFLICT (name) DO UPDATE SET boot_id = EXCLUDED.boot_id, instance = EXCLUDED.instance,
		    agent_address = EXCLUDED.agent_address, agent_version = EXCLUDED.agent_version,
		    report_seq = EXCLUDED.report_seq, digest = EXCLUDED.digest, base = EXCLUDED.base, generation = EXCLUDED.generation,
		    attachments = EXCLUDED.attachments, whitelist = EXCLUDED.whitelist,
		    whitelist_written = coalesce(hosts.whitelist_written, EXCLUDED.whitelist_written),
		    journal_opening = EXCLUDED.journal_opening, journal_writes = EXCLUDED.journal_writes, uptime = EXCLUDED.uptime,
		    heard_epoch = EXCLUDED.heard_epoch, last_seen = EXCLUDED.last_seen`)

	queueFacts(batch, hosts)
	queue(batch, c.Backends.Inserts, `
		INSERT INTO backends (host, name, driver, options, state, error, services)
		SELECT host, name, driver, options, state, error, services FROM jsonb_to_recordset($1) AS r (`+backendColumns+`)`)
	queue(batch, c.Backends.Updates, `
		UPDATE backends b SET driver = r.driver, options = r.options, state = r.state, error = r.error, services = r.services,
		    reported = r.reported
		FROM jsonb_to_recordset($1) AS r (`+backendColumns+`) WHERE b.host = ANY($2) AND b.host = r.host AND b.name = r.name`,
		keys(c.Backends.Updates, func(r merge.BackendRow) string { return r.Host }))

	queue(batch, c.Devices.Inserts, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, numa_node,
		    board_info, control_path_kind, control_path_info, fingerprint, partitioning, observed_seq)
		SELECT uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, numa_node,
		    board_info, control_path_kind, control_path_info, fingerprint, partitioning, observed_seq
		FROM jsonb_to_recordset($1) AS r (`+deviceColumns+`)`)
	queue(batch, c.Devices.Updates, `
		UPDATE devices d SET backend = r.backend, driver = r.driver, identity = r.identity, type = r.type, vendor_id = r.vendor_id,
		    product_id = r.product_id, vendor = r.vendor, model = r.model, numa_node = r.numa_node, board_info = r.board_info,
		    control_path_kind = r.control_path_kind, control_path_info = r.control_path_info,
		    fingerprint = r.fingerprint, replaced_by = r.replaced_by, partitioning = r.partitioning, observed_seq = r.observed_seq,
		    presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+deviceColumns+`) WHERE d.uuid = ANY($2) AND d.uuid = r.uuid`,
		keys(c.Devices.Updates, func(r merge.DeviceRow) uuid.UUID { return r.UUID }))

	queue(batch, c.Deployables.Inserts, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, pending_image, program_set, same_holder, excludes, conditions, preparation, cleaning, protected, administration, maintain_reason, maintain_by, maintain_until)
		SELECT uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, pending_image, program_set, same_holder, excludes, conditions, preparation, cleaning, protected, administration, maintain_reason, maintain_by, maintain_until
		FROM jsonb_to_recordset($1) AS r (`+deployableColumns+`)`)
	queue(batch, c.Deployables.Updates, `
		UPDATE deployables d SET device_uuid = r.device_uuid, local_name = r.local_name, specs = r.specs, attributes = r.attributes,
		    bitstream_id = r.bitstream_id, pending_image = r.pending_image, program_set = r.program_set, same_holder = r.same_holder, excludes = r.excludes, conditions = r.conditions,
		    preparation = r.preparation, cleaning = r.cleaning, protected = r.protected, fence_reason = r.fence_reason, image_boot = coalesce(r.image_boot, d.image_boot), presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+deployableColumns+`) WHERE d.uuid = ANY($2) AND d.uuid = r.uuid`,
		keys(c.Deployables.Updates, func(r merge.DeployableRow) uuid.UUID { return r.UUID }))

	queue(batch, c.Handles.Inserts, `
		INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity, companions)
		SELECT uuid, deployable_uuid, host, kind, info, identity, companions FROM jsonb_to_recordset($1) AS r (`+handleColumns+`)`)
	queue(batch, c.Handles.Updates, `
		UPDATE attach_handles h SET deployable_uuid = r.deployable_uuid, info = r.info, companions = r.companions, presence = r.presence,
		    missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(h.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+handleColumns+`) WHERE h.uuid = ANY($2) AND h.uuid = r.uuid`,
		keys(c.Handles.Updates, func(r merge.HandleRow) uuid.UUID { return r.UUID }))

	if added := keys(c.Deployables.Inserts, func(r merge.DeployableRow) uuid.UUID { return r.UUID }); len(added) > 0 {
		inventory.QueueMarkForgottenInstalls(batch, added)
	}
	queueUnconfirmed(batch, hosts, c.Handles.Inserts)
	if len(hosts) > 0 { // an observation has no journal
		inventory.QueueMarkUndone(batch, keys(hosts, func(h hostRow) string { return h.Name }))
	}
	records.QueueBatch(tx, batch)
}

// queueFacts writes the facts of hosts that have told them. They may be large, and
// hardly change: where they are the same, nothing is written.
func queueFacts(batch *pgx.Batch, hosts []hostRow) {
	var told []factsRow
	for i := range hosts {
		if facts := hosts[i].facts; facts != nil {
			told = append(told, *facts)
		}
	}

	queue(batch, told, `
		UPDATE hosts h SET facts = r.facts FROM jsonb_to_recordset($1) AS r (name text, facts jsonb)
		WHERE h.name = ANY($2) AND h.name = r.name AND h.facts IS DISTINCT FROM r.facts`,
		keys(told, func(r factsRow) string { return r.Name }))
}

// queue queues a statement that takes the rows as one JSON array, unless there
// are no rows.
func queue[T any](batch *pgx.Batch, rows []T, sql string, more ...any) {
	if len(rows) > 0 {
		batch.Queue(sql, append([]any{rows}, more...)...)
	}
}

// keys returns the keys of the rows. The statements get them as an array
// besides the JSON, because the planner cannot see how few rows the JSON has.
func keys[T any, K any](rows []T, key func(T) K) []K {
	out := make([]K, len(rows))
	for i, row := range rows {
		out[i] = key(row)
	}
	return out
}
