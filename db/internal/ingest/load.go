package ingest

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// queueJournals reads the attachments in the journals of the hosts of these reports,
// as the report before had them. See records.Queue.
func queueJournals(tx pgx.Tx, journals map[string][]agentapi.Attachment, reports []agentapi.Report, which []int) {
	if len(which) == 0 {
		return
	}

	names := keys(which, func(i int) string { return reports[i].Host })
	records.Queue(tx, "SELECT name, attachments FROM hosts WHERE name = ANY($1)", names).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var name string
			var journal []agentapi.Attachment
			if err := rows.Scan(&name, &journal); err != nil {
				return err
			}
			journals[name] = journal
		}
		return rows.Err()
	})
}

// queueHostRows reads into known the columns of hosts that a merge compares a
// report with. See records.Queue.
func queueHostRows(tx pgx.Tx, known map[string]hostRow, names []string) {
	records.Queue(tx, `
		SELECT name, boot_id, agent_version, report_seq, digest, base, generation, journal_opening, journal_writes, facts IS NOT NULL
		FROM hosts WHERE name = ANY($1)`, names).Query(func(rows pgx.Rows) error {
		var h hostRow
		columns := []any{&h.Name, &h.BootID, &h.AgentVersion, &h.ReportSeq, &h.Digest, &h.Base, &h.Generation, &h.JournalOpening, &h.JournalWrites, &h.hasFacts}
		_, err := pgx.ForEachRow(rows, columns, func() error {
			known[h.Name] = h
			return nil
		})
		return err
	})
}

// loadInventories reads what is recorded of the hosts of the reports, and which of
// the names that new deployables would get are taken. It takes one round trip, and
// another where a difference shows something new.
//
// For a report that tells a difference it reads only what that concerns: the
// devices that it mentions, their deployables and handles, the deployables and
// handles that it shows on other devices, and the devices of these.
func loadInventories(ctx context.Context, tx pgx.Tx, nameOf func(host, local string) string, reports []agentapi.Report) (map[string]*merge.Inventory, error) {
	var l inventoryQuery
	taken := &merge.Names{Deployables: map[string]string{}, Accelerators: map[string]bool{}}
	out := map[string]*merge.Inventory{}

	for _, r := range reports {
		out[r.Host] = merge.NewInventory(r.Host, nameOf, taken)
		out[r.Host].Boot = r.BootID
		l.add(&r, nameOf)
	}

	takeDevice := func(row merge.DeviceRow) { out[row.Host].Devices[row.Identity] = merge.Recorded(row) }
	takeDeployable := func(row merge.DeployableRow) { out[row.Host].Deployables[row.LocalName] = merge.Recorded(row) }
	takeHandle := func(row merge.HandleRow) {
		out[row.Host].Handles[merge.HandleKey{Kind: row.Kind, Identity: row.Identity}] = merge.Recorded(row)
	}

	batch := &pgx.Batch{}
	each(batch, `SELECT to_jsonb(b) FROM backends b WHERE host = ANY($1)`, []any{append(l.hosts, l.parts...)}, func(row merge.BackendRow) {
		out[row.Host].Backends[row.Name] = merge.Recorded(row)
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
			SELECT jsonb_build_object('host', v.host, 'identity', v.identity, 'observed_seq', v.observed_seq) FROM devices v JOIN hosts h ON h.name = v.host
			WHERE v.host = ANY($1) AND v.observed_seq > h.report_seq`, []any{l.parts}, func(row merge.DeviceRow) {
			out[row.Host].Observed[row.Identity] = row.ObservedSeq
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
				taken.Deployables[row.Name] = row.Host
			} else {
				taken.Accelerators[row.Name] = true
			}
		})

	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	return out, countUnloaded(ctx, tx, out, reports)
}

// countUnloaded counts what is recorded of hosts besides what was read, so that
// no host has too much. It asks the database only where a host shows something
// new in a difference, because the count takes longer the more the host has.
func countUnloaded(ctx context.Context, tx pgx.Tx, read map[string]*merge.Inventory, reports []agentapi.Report) error {
	var grown []string
	for _, r := range reports {
		if r.Base != "" && showsNew(read[r.Host], &r) {
			grown = append(grown, r.Host)
		}
	}
	if len(grown) == 0 {
		return nil
	}

	rows, err := tx.Query(ctx, `
		SELECT name, (SELECT count(*) FROM devices WHERE host = name), (SELECT count(*) FROM deployables WHERE host = name),
		       (SELECT count(*) FROM attach_handles WHERE host = name)
		FROM unnest($1::text[]) AS name`, grown)
	if err != nil {
		return err
	}

	var host string
	var all merge.Counts
	_, err = pgx.ForEachRow(rows, []any{&host, &all.Devices, &all.Deployables, &all.Handles}, func() error {
		v := read[host]
		v.Unloaded = merge.Counts{
			Devices: all.Devices - len(v.Devices), Deployables: all.Deployables - len(v.Deployables), Handles: all.Handles - len(v.Handles),
		}
		return nil
	})
	return err
}

// showsNew reports whether a report shows what is not recorded.
func showsNew(v *merge.Inventory, r *agentapi.Report) bool {
	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			if v.Devices[d.Identity] == nil {
				return true
			}
			for _, p := range d.Deployables {
				unknown := func(h cyborg.HandleReport) bool {
					return v.Handles[merge.HandleKey{Kind: h.Kind, Identity: h.Identity}] == nil
				}
				if v.Deployables[p.Name] == nil || slices.ContainsFunc(p.Handles, unknown) {
					return true
				}
			}
		}
	}
	return false
}

const (
	// These statements read rows as JSON objects, whose keys are the names of the
	// columns; a condition follows. A deployable's image_boot is left out while the
	// fence of an operation that may be loading an image is around it: a report then
	// must not record in which boot the image was seen.
	deviceRows     = `SELECT to_jsonb(d) FROM devices d WHERE `
	deployableRows = `
		SELECT to_jsonb(d) || jsonb_build_object('claimed', c.operation_id IS NOT NULL, 'nova_gives', d.nova_spec IS NOT NULL,
		    'image_boot', CASE WHEN NOT loads_image(d.fence_operation) THEN d.image_boot END)
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
	hosts []string // hosts whose whole inventory is read
	parts []string // hosts whose inventory is read only as far as the groups below name it
	names []string // names of reported deployables, as they are or would be called

	deviceHosts, devices                 []string
	deployableHosts, deployables         []string
	handleHosts, handleKinds, identities []string
}

// add adds what the merge of one report needs to know.
func (l *inventoryQuery) add(r *agentapi.Report, name func(host, local string) string) {
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
