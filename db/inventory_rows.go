package db

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func readHostRows(ctx context.Context, tx pgx.Tx, names []string) (map[string]hostRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT name, boot_id, agent_version, report_seq, digest, generation FROM hosts WHERE name = ANY($1)`, names)
	if err != nil {
		return nil, err
	}
	known := map[string]hostRow{}
	var h hostRow
	_, err = pgx.ForEachRow(rows, []any{&h.Name, &h.BootID, &h.AgentVersion, &h.ReportSeq, &h.Digest, &h.Generation}, func() error {
		known[h.Name] = h
		return nil
	})
	return known, err
}

// loadInventories reads what is recorded of hosts, in one round trip, and which of the names of deployables are taken.
func (s *Store) loadInventories(ctx context.Context, tx pgx.Tx, hosts, deployables []string) (map[string]*inventory, error) {
	out := map[string]*inventory{}
	taken := &names{deployables: map[string]string{}, accelerators: map[string]bool{}}
	for _, host := range hosts {
		out[host] = newInventory(host, s.opts.DeployableName, taken)
	}
	batch := &pgx.Batch{}
	each(batch, `SELECT to_jsonb(b) FROM backends b WHERE host = ANY($1)`, []any{hosts}, func(row backendRow) {
		out[row.Host].backends[row.Name] = recorded(row)
	})
	each(batch, `SELECT to_jsonb(d) FROM devices d WHERE host = ANY($1)`, []any{hosts}, func(row deviceRow) {
		out[row.Host].devices[row.Identity] = recorded(row)
	})
	each(batch, `
		SELECT to_jsonb(d) || jsonb_build_object('claimed', c.operation_id IS NOT NULL)
		FROM deployables d LEFT JOIN claims c ON c.deployable_uuid = d.uuid WHERE host = ANY($1)`,
		[]any{hosts}, func(row deployableRow) {
			out[row.Host].deployables[row.LocalName] = recorded(row)
		})
	each(batch, `
		SELECT to_jsonb(h) || jsonb_build_object('holder', coalesce(holder_kind || ' ' || holder_id, ''))
		FROM attach_handles h WHERE host = ANY($1)`, []any{hosts}, func(row handleRow) {
		out[row.Host].handles[handleKey{row.Kind, row.Identity}] = recorded(row)
	})
	type name struct {
		Name string `json:"name"`
		Host string `json:"host"` // empty where it is an accelerator's
	}
	each(batch, `
		SELECT jsonb_build_object('name', name, 'host', host) FROM deployables WHERE name = ANY($1)
		UNION ALL
		SELECT jsonb_build_object('name', accelerator) FROM deployables WHERE accelerator = ANY($1)`,
		[]any{deployables}, func(row name) {
			if row.Host != "" {
				taken.deployables[row.Name] = row.Host
			} else {
				taken.accelerators[row.Name] = true
			}
		})
	return out, tx.SendBatch(ctx, batch).Close()
}

// each queues a query whose rows are JSON objects.
func each[T any](batch *pgx.Batch, sql string, values []any, take func(T)) {
	batch.Queue(sql, values...).Query(func(rows pgx.Rows) error {
		var text []byte
		_, err := pgx.ForEachRow(rows, []any{&text}, func() error {
			var row T
			if err := json.Unmarshal(text, &row); err != nil {
				return err
			}
			take(row)
			return nil
		})
		return err
	})
}

const (
	backendColumns    = `host text, name text, driver text, options jsonb, state text, error text, services text[], reported boolean`
	deviceColumns     = `uuid uuid, host text, backend text, driver text, identity text, type text, vendor_id text, product_id text, vendor text, model text, numa_node int, board_info jsonb, control_path_kind text, control_path_info jsonb, observed_seq bigint, presence text`
	deployableColumns = `uuid uuid, device_uuid uuid, host text, name text, local_name text, provider_uuid uuid, accelerator text, specs jsonb, attributes jsonb, bitstream_id text, program_set text, protected text, presence text, fence_reason text`
	handleColumns     = `uuid uuid, deployable_uuid uuid, host text, kind text, info jsonb, identity text, presence text`
)

// write writes hosts and differences, a statement for each table and sort of change that there is.
func write(ctx context.Context, tx pgx.Tx, hosts []hostRow, c *changes) error {
	batch := &pgx.Batch{}
	queue(batch, hosts, `
		INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest, generation, attachments, last_seen)
		SELECT name, boot_id, agent_version, report_seq, digest, generation, attachments, clock_timestamp()
		FROM jsonb_to_recordset($1) AS r (name text, boot_id text, agent_version text, report_seq bigint, digest text,
		    generation bigint, attachments jsonb)
		ORDER BY name
		ON CONFLICT (name) DO UPDATE SET boot_id = EXCLUDED.boot_id, agent_version = EXCLUDED.agent_version,
		    report_seq = EXCLUDED.report_seq, digest = EXCLUDED.digest, generation = EXCLUDED.generation,
		    attachments = EXCLUDED.attachments, last_seen = EXCLUDED.last_seen`)
	queue(batch, c.backends.inserts, `
		INSERT INTO backends (host, name, driver, options, state, error, services)
		SELECT host, name, driver, options, state, error, services FROM jsonb_to_recordset($1) AS r (`+backendColumns+`)`)
	queue(batch, c.backends.updates, `
		UPDATE backends b SET driver = r.driver, options = r.options, state = r.state, error = r.error, services = r.services,
		    reported = r.reported
		FROM jsonb_to_recordset($1) AS r (`+backendColumns+`) WHERE b.host = ANY($2) AND b.host = r.host AND b.name = r.name`,
		keys(c.backends.updates, func(r backendRow) string { return r.Host }))
	queue(batch, c.devices.inserts, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, numa_node,
		    board_info, control_path_kind, control_path_info, observed_seq)
		SELECT uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, numa_node,
		    board_info, control_path_kind, control_path_info, observed_seq
		FROM jsonb_to_recordset($1) AS r (`+deviceColumns+`)`)
	queue(batch, c.devices.updates, `
		UPDATE devices d SET backend = r.backend, driver = r.driver, type = r.type, vendor_id = r.vendor_id,
		    product_id = r.product_id, vendor = r.vendor, model = r.model, numa_node = r.numa_node, board_info = r.board_info,
		    control_path_kind = r.control_path_kind, control_path_info = r.control_path_info, observed_seq = r.observed_seq,
		    presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+deviceColumns+`) WHERE d.uuid = ANY($2) AND d.uuid = r.uuid`,
		keys(c.devices.updates, func(r deviceRow) uuid.UUID { return r.UUID }))
	queue(batch, c.deployables.inserts, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, program_set, protected)
		SELECT uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, program_set, protected
		FROM jsonb_to_recordset($1) AS r (`+deployableColumns+`)`)
	queue(batch, c.deployables.updates, `
		UPDATE deployables d SET device_uuid = r.device_uuid, specs = r.specs, attributes = r.attributes,
		    bitstream_id = r.bitstream_id, program_set = r.program_set, protected = r.protected, fence_reason = r.fence_reason,
		    presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+deployableColumns+`) WHERE d.uuid = ANY($2) AND d.uuid = r.uuid`,
		keys(c.deployables.updates, func(r deployableRow) uuid.UUID { return r.UUID }))
	queue(batch, c.handles.inserts, `
		INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity)
		SELECT uuid, deployable_uuid, host, kind, info, identity FROM jsonb_to_recordset($1) AS r (`+handleColumns+`)`)
	queue(batch, c.handles.updates, `
		UPDATE attach_handles h SET deployable_uuid = r.deployable_uuid, info = r.info, presence = r.presence,
		    missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(h.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+handleColumns+`) WHERE h.uuid = ANY($2) AND h.uuid = r.uuid`,
		keys(c.handles.updates, func(r handleRow) uuid.UUID { return r.UUID }))
	return tx.SendBatch(ctx, batch).Close()
}

// queue queues a statement that takes rows as one JSON array, unless there are none.
func queue[T any](batch *pgx.Batch, rows []T, sql string, more ...any) {
	if len(rows) > 0 {
		batch.Queue(sql, append([]any{rows}, more...)...)
	}
}

// keys are those of the rows, given to the planner besides the JSON: it cannot see how few rows that has.
func keys[T any, K any](rows []T, key func(T) K) []K {
	out := make([]K, len(rows))
	for i, row := range rows {
		out[i] = key(row)
	}
	return out
}
