package db

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// readHostRows reads the columns of hosts that a merge compares a report with.
func readHostRows(ctx context.Context, tx pgx.Tx, names []string) (map[string]hostRow, error) {
	rows, err := tx.Query(ctx, `
		SELECT name, boot_id, agent_version, report_seq, digest, base, generation FROM hosts WHERE name = ANY($1)`, names)
	if err != nil {
		return nil, err
	}

	known := map[string]hostRow{}
	var h hostRow
	_, err = pgx.ForEachRow(rows, []any{&h.Name, &h.BootID, &h.AgentVersion, &h.ReportSeq, &h.Digest, &h.Base, &h.Generation}, func() error {
		known[h.Name] = h
		return nil
	})

	return known, err
}

// loadInventories reads, in one round trip, what is recorded of the hosts of
// the reports, and which of the names that new deployables would get are taken.
//
// For a report that tells a difference it reads only what that concerns: the
// devices that it mentions, their deployables and handles, the deployables and
// handles that it shows on other devices, and the devices of these.
func loadInventories(ctx context.Context, tx pgx.Tx, nameOf func(host, local string) string, reports []cyborg.Report) (map[string]*inventory, error) {
	var l inventoryQuery
	taken := &names{deployables: map[string]string{}, accelerators: map[string]bool{}}
	out := map[string]*inventory{}

	for _, r := range reports {
		out[r.Host] = newInventory(r.Host, nameOf, taken)
		out[r.Host].boot = r.BootID
		l.add(&r, nameOf)
	}

	takeDevice := func(row deviceRow) { out[row.Host].devices[row.Identity] = recorded(row) }
	takeDeployable := func(row deployableRow) { out[row.Host].deployables[row.LocalName] = recorded(row) }
	takeHandle := func(row handleRow) { out[row.Host].handles[handleKey{row.Kind, row.Identity}] = recorded(row) }

	batch := &pgx.Batch{}
	each(batch, `SELECT to_jsonb(b) FROM backends b WHERE host = ANY($1)`, []any{append(l.hosts, l.parts...)}, func(row backendRow) {
		out[row.Host].backends[row.Name] = recorded(row)
	})

	if len(l.hosts) > 0 {
		each(batch, deviceRows+`host = ANY($1)`, []any{l.hosts}, takeDevice)
		each(batch, deployableRows+`d.host = ANY($1)`, []any{l.hosts}, takeDeployable)
		each(batch, handleRows+`h.host = ANY($1)`, []any{l.hosts}, takeHandle)
	}

	if len(l.parts) > 0 {
		each(batch, deviceRows+`d.uuid IN (`+reportedDevices+` UNION SELECT device_uuid FROM deployables WHERE uuid IN (`+concerned+`))`,
			l.values(), takeDevice)
		each(batch, deployableRows+`d.uuid IN (`+concerned+`)`, l.values(), takeDeployable)
		each(batch, handleRows+`h.deployable_uuid IN (`+concerned+`)`, l.values(), takeHandle)

		// What operations have observed since the report is not in a difference's base.
		each(batch, `
			SELECT jsonb_build_object('host', v.host, 'identity', v.identity) FROM devices v JOIN hosts h ON h.name = v.host
			WHERE v.host = ANY($1) AND v.observed_seq > h.report_seq`, []any{l.parts}, func(row deviceRow) {
			out[row.Host].observed = append(out[row.Host].observed, row.Identity)
		})
	}

	type name struct {
		Name string `json:"name"`
		Host string `json:"host"` // empty for the name of an accelerator
	}

	// Names are unique across all hosts, so other hosts' names are read as well.
	each(batch, `
		SELECT jsonb_build_object('name', name, 'host', host) FROM deployables WHERE name = ANY($1)
		UNION ALL
		SELECT jsonb_build_object('name', accelerator) FROM deployables WHERE accelerator = ANY($1)`,
		[]any{l.names}, func(row name) {
			if row.Host != "" {
				taken.deployables[row.Name] = row.Host
			} else {
				taken.accelerators[row.Name] = true
			}
		})

	return out, tx.SendBatch(ctx, batch).Close()
}

const (
	// These statements read rows as JSON objects, whose keys are the names of the
	// columns; a condition follows. A deployable's image_boot is left out while an
	// operation fences it, because the operation may be loading an image: a report
	// then must not record in which boot the image was seen.
	deviceRows     = `SELECT to_jsonb(d) FROM devices d WHERE `
	deployableRows = `
		SELECT to_jsonb(d) || jsonb_build_object('claimed', c.operation_id IS NOT NULL,
		    'image_boot', CASE WHEN d.fence_operation IS NULL THEN d.image_boot END)
		FROM deployables d LEFT JOIN claims c ON c.deployable_uuid = d.uuid WHERE `
	handleRows = `
		SELECT to_jsonb(h) || jsonb_build_object('holder', coalesce(holder_kind || ' ' || holder_id, unconfirmed_kind || ' ' || unconfirmed_id, ''))
		FROM attach_handles h WHERE `

	// reportedDevices are the devices that a difference mentions. concerned are the
	// deployables of these devices, those with the name of a deployable that it
	// shows, and those with a handle that it shows. inventoryQuery.values are the
	// parameters of both.
	reportedDevices = `SELECT v.uuid FROM devices v JOIN unnest($1::text[], $2::text[]) AS w (host, identity) USING (host, identity)`
	concerned       = `
		SELECT p.uuid FROM deployables p WHERE p.device_uuid IN (` + reportedDevices + `)
		UNION
		SELECT p.uuid FROM deployables p JOIN unnest($3::text[], $4::text[]) AS w (host, local_name) USING (host, local_name)
		UNION
		SELECT a.deployable_uuid FROM attach_handles a
		JOIN unnest($5::text[], $6::text[], $7::text[]) AS w (host, kind, identity) USING (host, kind, identity)`
)

// inventoryQuery collects what has to be read of the inventories. The slices of
// each group have the same length and are unnested together.
type inventoryQuery struct {
	hosts []string // hosts of which everything is read
	parts []string // hosts of which only what the groups below name is read
	names []string // names of reported deployables, as they are or would be called

	deviceHosts, devices                 []string
	deployableHosts, deployables         []string
	handleHosts, handleKinds, identities []string
}

// add adds what the merge of one report needs to know.
func (l *inventoryQuery) add(r *cyborg.Report, name func(host, local string) string) {
	whole := r.Base == ""
	if whole {
		l.hosts = append(l.hosts, r.Host)
	} else {
		l.parts = append(l.parts, r.Host)
		for _, identity := range r.Gone {
			l.deviceHosts, l.devices = append(l.deviceHosts, r.Host), append(l.devices, identity)
		}
	}

	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			if !whole {
				l.deviceHosts, l.devices = append(l.deviceHosts, r.Host), append(l.devices, d.Identity)
			}
			for _, p := range d.Deployables {
				l.names = append(l.names, name(r.Host, p.Name))
				if whole {
					continue
				}

				l.deployableHosts, l.deployables = append(l.deployableHosts, r.Host), append(l.deployables, p.Name)
				for _, h := range p.Handles {
					l.handleHosts, l.identities = append(l.handleHosts, r.Host), append(l.identities, h.Identity)
					l.handleKinds = append(l.handleKinds, string(h.Kind))
				}
			}
		}
	}
}

// values returns the parameters of reportedDevices and concerned.
func (l *inventoryQuery) values() []any {
	return []any{
		l.deviceHosts, l.devices, l.deployableHosts, l.deployables, l.handleHosts, l.handleKinds, l.identities,
	}
}

// each queues a query that returns one JSON object in each row, and passes the
// decoded rows to take.
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

// The columns of the tables as jsonb_to_recordset needs them, with their types.
const (
	backendColumns    = `host text, name text, driver text, options jsonb, state text, error text, services text[], reported boolean`
	deviceColumns     = `uuid uuid, host text, backend text, driver text, identity text, type text, vendor_id text, product_id text, vendor text, model text, numa_node int, board_info jsonb, control_path_kind text, control_path_info jsonb, observed_seq bigint, presence text`
	deployableColumns = `uuid uuid, device_uuid uuid, host text, name text, local_name text, provider_uuid uuid, accelerator text, specs jsonb, attributes jsonb, bitstream_id text, program_set text, protected text, presence text, fence_reason text, image_boot text,
		administration text, maintain_reason text, maintain_by text, maintain_until timestamptz`
	handleColumns = `uuid uuid, deployable_uuid uuid, host text, kind text, info jsonb, identity text, presence text`
)

// ownWhitelist is an SQL expression: the checksum of the whitelist file of the
// host's Nova where only Cyborg has written it, else NULL. A host of which
// nothing is known yet takes this checksum as the one that was written last.
const ownWhitelist = `CASE WHEN coalesce(whitelist ->> 'foreign', '') = '' THEN whitelist ->> 'sha256' END`

// write writes hosts and collected changes in one round trip, with at most one
// insert and one update for each table. The rows go to the server as one JSON
// array each.
func write(ctx context.Context, tx pgx.Tx, hosts []hostRow, c *changes) error {
	batch := &pgx.Batch{}

	queue(batch, hosts, `
		INSERT INTO hosts (name, boot_id, instance, agent_address, agent_version, report_seq, digest, base, generation, attachments,
		    whitelist, whitelist_written, last_seen)
		SELECT name, boot_id, instance, agent_address, agent_version, report_seq, digest, base, generation, attachments,
		    whitelist, `+ownWhitelist+`, clock_timestamp()
		FROM jsonb_to_recordset($1) AS r (name text, boot_id text, instance text, agent_address text, agent_version text, report_seq bigint, digest text,
		    base text, generation bigint, attachments jsonb, whitelist jsonb)
		ORDER BY name
		ON CONFLICT (name) DO UPDATE SET boot_id = EXCLUDED.boot_id, instance = EXCLUDED.instance,
		    agent_address = EXCLUDED.agent_address, agent_version = EXCLUDED.agent_version,
		    report_seq = EXCLUDED.report_seq, digest = EXCLUDED.digest, base = EXCLUDED.base, generation = EXCLUDED.generation,
		    attachments = EXCLUDED.attachments, whitelist = EXCLUDED.whitelist,
		    whitelist_written = coalesce(hosts.whitelist_written, EXCLUDED.whitelist_written), last_seen = EXCLUDED.last_seen`)

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
		UPDATE devices d SET backend = r.backend, driver = r.driver, identity = r.identity, type = r.type, vendor_id = r.vendor_id,
		    product_id = r.product_id, vendor = r.vendor, model = r.model, numa_node = r.numa_node, board_info = r.board_info,
		    control_path_kind = r.control_path_kind, control_path_info = r.control_path_info, observed_seq = r.observed_seq,
		    presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
		FROM jsonb_to_recordset($1) AS r (`+deviceColumns+`) WHERE d.uuid = ANY($2) AND d.uuid = r.uuid`,
		keys(c.devices.updates, func(r deviceRow) uuid.UUID { return r.UUID }))

	queue(batch, c.deployables.inserts, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, program_set, protected, administration, maintain_reason, maintain_by, maintain_until)
		SELECT uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes,
		    bitstream_id, program_set, protected, administration, maintain_reason, maintain_by, maintain_until
		FROM jsonb_to_recordset($1) AS r (`+deployableColumns+`)`)
	queue(batch, c.deployables.updates, `
		UPDATE deployables d SET device_uuid = r.device_uuid, local_name = r.local_name, specs = r.specs, attributes = r.attributes,
		    bitstream_id = r.bitstream_id, program_set = r.program_set, protected = r.protected, fence_reason = r.fence_reason,
		    image_boot = coalesce(r.image_boot, d.image_boot), presence = r.presence, missing_since = CASE WHEN r.presence = 'missing' THEN coalesce(d.missing_since, now()) END
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
