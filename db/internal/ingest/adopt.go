package ingest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Adoption is what is taken over from the records of another cloud, with the
// UUIDs that everything has there. A part refers to what it is a part of by
// UUID.
//
// No agent of ours has seen any of it. It therefore belongs to a backend that
// no agent has, until a report of its host shows it; see merge/adopted.go.
type Adoption struct {
	Profiles    []cyborg.DeviceProfile
	Devices     []AdoptedDevice
	Deployables []AdoptedDeployable
	Handles     []AdoptedHandle
	ARQs        []AdoptedARQ
}

// AdoptedDevice is a card. The JSON names of the Adopted types are the columns
// that the statements of adopting.write read.
type AdoptedDevice struct {
	UUID            uuid.UUID         `json:"uuid"`
	Host            string            `json:"host"`
	Driver          string            `json:"driver"`
	Identity        string            `json:"identity"`
	Type            cyborg.DeviceType `json:"type"`
	VendorID        string            `json:"vendor_id"`
	ProductID       string            `json:"product_id"`
	Vendor          string            `json:"vendor"`
	Model           string            `json:"model"`
	BoardInfo       cyborg.JSONObject `json:"board_info"`
	ControlPathKind string            `json:"control_path_kind"`
	ControlPathInfo map[string]string `json:"control_path_info"`
	CreatedAt       time.Time         `json:"created_at"`
}

// AdoptedDeployable is an accelerator in service: a part of a card.
type AdoptedDeployable struct {
	UUID         uuid.UUID          `json:"uuid"`
	Device       uuid.UUID          `json:"device_uuid"`
	Host         string             `json:"host"`
	Name         string             `json:"name"`
	LocalName    string             `json:"local_name"`
	ProviderUUID uuid.UUID          `json:"provider_uuid"`
	Specs        cyborg.Specs       `json:"specs"`
	Attributes   []cyborg.Attribute `json:"attributes"`
	// Set lists the attributes that somebody set through the API, beside those that
	// the driver reported.
	Set         []AdoptedAttribute `json:"attributes_set"`
	BitstreamID string             `json:"bitstream_id"`
	ProgramSet  string             `json:"program_set"`
	// Maintaining is the reason why it is in maintenance; empty where it is not.
	Maintaining string    `json:"maintain_reason"`
	CreatedAt   time.Time `json:"created_at"`
}

// AdoptedAttribute is an attribute that somebody set through the API.
type AdoptedAttribute = inventory.SetAttribute

// AdoptedHandle is an attach handle: what a consumer of an accelerator
// receives.
type AdoptedHandle struct {
	UUID       uuid.UUID         `json:"uuid"`
	Deployable uuid.UUID         `json:"deployable_uuid"`
	Host       string            `json:"host"`
	Kind       cyborg.HandleKind `json:"kind"`
	Info       map[string]string `json:"info"`
	Identity   string            `json:"identity"`
	Instance   string            `json:"holder_id,omitempty"` // the instance that holds it; "" where it is free
	HeldSince  *time.Time        `json:"attached_at"`
}

// AdoptedARQ is an accelerator request. Fields whose value is not known are
// nil.
type AdoptedARQ struct {
	UUID       uuid.UUID         `json:"uuid"`
	State      cyborg.ARQState   `json:"state"`
	Project    *string           `json:"project"`
	Profile    uuid.UUID         `json:"profile_uuid"`
	Name       string            `json:"profile_name"`
	GroupIndex int               `json:"group_index"`
	Group      map[string]string `json:"profile_group"`
	Host       *string           `json:"host"`
	Provider   *uuid.UUID        `json:"provider_uuid"`
	Instance   *uuid.UUID        `json:"instance_uuid"`
	Handle     *uuid.UUID        `json:"handle_uuid"`
	Reason     string            `json:"reason"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  *time.Time        `json:"updated_at"`
}

// AdoptionKind is the kind of an adopted thing.
type AdoptionKind string

// The kinds, in the order in which they are adopted: what others refer to comes
// first.
const (
	AdoptProfile    AdoptionKind = "device_profile"
	AdoptDevice     AdoptionKind = "device"
	AdoptDeployable AdoptionKind = "deployable"
	AdoptHandle     AdoptionKind = "attach_handle"
	AdoptARQ        AdoptionKind = "accelerator_request"
)

// AdoptionCount counts the things of one kind in an adoption.
type AdoptionCount struct {
	New     int // adopted now
	Already int // adopted by an earlier call; their records are left as they are now
}

// AdoptionConflict is a thing that cannot be adopted because our records have
// something else in its place.
type AdoptionConflict struct {
	Kind AdoptionKind
	UUID uuid.UUID
	Why  string // what our records have
}

// Adopted is the result of an adoption, or of its rehearsal.
type Adopted struct {
	Counts    map[AdoptionKind]AdoptionCount
	Conflicts []AdoptionConflict
}

// errRehearsed rolls back the transaction of an adoption that is not applied.
var errRehearsed error = cyborg.Errorf(cyborg.ErrCancelled, "the adoption was only tried")

// Adopt takes over what another cloud's records have, all or nothing. Where
// apply is false, or where there is any conflict, it changes nothing and only
// returns what it found. A thing that was adopted once is never adopted again,
// whatever has become of its record since.
func (s *Store) Adopt(ctx context.Context, in Adoption, actor cyborg.Actor, apply bool) (Adopted, error) {
	var out Adopted
	err := s.db.Change(ctx, actor, uuid.Nil, func(tx pgx.Tx) error {
		a := adopting{tx: tx, operation: uuid.New(), out: Adopted{Counts: map[AdoptionKind]AdoptionCount{}}}
		if err := a.run(ctx, in); err != nil {
			return err
		}
		out = a.out

		// A rehearsal runs the same statements as an adoption, so that it finds the
		// same conflicts, and is rolled back.
		if !apply || len(out.Conflicts) > 0 {
			return errRehearsed
		}
		return nil
	})

	if errors.Is(err, errRehearsed) {
		err = nil
	}

	return out, err
}

// adopting is the state of one adoption in its transaction.
type adopting struct {
	tx pgx.Tx
	// operation is the UUID of no operation. It stands for the one through which a
	// held handle got its holder: that happened in the other cloud.
	operation uuid.UUID
	out       Adopted
}

// run locks the hosts, leaves out what was adopted before, looks for conflicts,
// and writes the rest.
func (a *adopting) run(ctx context.Context, in Adoption) error {
	// All hosts are locked before the first write, as by every other change.
	hosts := map[string]bool{}
	for _, d := range in.Devices {
		hosts[d.Host] = true
	}

	if err := a.lock(ctx, slices.Collect(maps.Keys(hosts))); err != nil {
		return err
	}

	profiles, err := a.recordNew(ctx, AdoptProfile, uuids(in.Profiles, func(p cyborg.DeviceProfile) uuid.UUID { return p.UUID }))
	if err != nil {
		return err
	}

	devices, err := a.recordNew(ctx, AdoptDevice, uuids(in.Devices, func(d AdoptedDevice) uuid.UUID { return d.UUID }))
	if err != nil {
		return err
	}

	deployables, err := a.recordNew(ctx, AdoptDeployable, uuids(in.Deployables, func(d AdoptedDeployable) uuid.UUID { return d.UUID }))
	if err != nil {
		return err
	}

	handles, err := a.recordNew(ctx, AdoptHandle, uuids(in.Handles, func(h AdoptedHandle) uuid.UUID { return h.UUID }))
	if err != nil {
		return err
	}

	arqs, err := a.recordNew(ctx, AdoptARQ, uuids(in.ARQs, func(r AdoptedARQ) uuid.UUID { return r.UUID }))
	if err != nil {
		return err
	}

	in.Profiles = keepIf(in.Profiles, func(p cyborg.DeviceProfile) bool { return profiles[p.UUID] })
	in.Devices = keepIf(in.Devices, func(d AdoptedDevice) bool { return devices[d.UUID] })
	in.Deployables = keepIf(in.Deployables, func(d AdoptedDeployable) bool { return deployables[d.UUID] })
	in.Handles = keepIf(in.Handles, func(h AdoptedHandle) bool { return handles[h.UUID] })
	in.ARQs = keepIf(in.ARQs, func(r AdoptedARQ) bool { return arqs[r.UUID] })

	if err := a.conflicts(ctx, in); err != nil || len(a.out.Conflicts) > 0 {
		return err
	}

	// Only hosts of new devices are asked for a full report.
	hosts = map[string]bool{}
	for _, d := range in.Devices {
		hosts[d.Host] = true
	}

	return a.write(ctx, slices.Sorted(maps.Keys(hosts)), in)
}

// maxHostLocks is how many hosts are locked one by one. All transactions
// together have room for some thousand locks (max_locks_per_transaction ×
// max_connections, by default 6,400).
const maxHostLocks = 1000

// lock is records.LockHosts for any number of hosts. For very many it locks the
// tables instead: it waits for all transactions that use them, and until the
// adoption has ended nobody reads or changes any host.
func (a *adopting) lock(ctx context.Context, hosts []string) error {
	if len(hosts) <= maxHostLocks {
		return records.LockHosts(ctx, a.tx, hosts...)
	}

	_, err := a.tx.Exec(ctx, "LOCK TABLE hosts, backends, devices, deployables, attach_handles, arqs IN ACCESS EXCLUSIVE MODE")
	return err
}

// uuids lists the UUIDs of rows.
func uuids[T any](rows []T, id func(T) uuid.UUID) []uuid.UUID { return keys(rows, id) }

// keepIf returns the rows that keep chooses; rows itself stays as it is.
func keepIf[T any](rows []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(rows), func(row T) bool { return !keep(row) })
}

// recordNew returns those of the ids that were never adopted before, and
// records them as adopted.
func (a *adopting) recordNew(ctx context.Context, kind AdoptionKind, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, err := a.tx.Query(ctx, `
		INSERT INTO adopted_rows (kind, uuid) SELECT $1, uuid FROM unnest($2::uuid[]) AS uuid
		ON CONFLICT DO NOTHING RETURNING uuid`, string(kind), ids)
	if err != nil {
		return nil, err
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])

	fresh := map[uuid.UUID]bool{}
	for _, id := range found {
		fresh[id] = true
	}

	a.out.Counts[kind] = AdoptionCount{New: len(fresh), Already: len(ids) - len(fresh)}
	return fresh, err
}

// conflicts finds the records that are in the place of what is to be adopted:
// those that have the same UUID, name, address or resource provider.
func (a *adopting) conflicts(ctx context.Context, in Adoption) error {
	// Each statement returns the UUID of the thing to adopt, and a sentence about
	// the record in its place.
	for _, check := range []struct {
		kind AdoptionKind
		rows any
		sql  string
	}{
		{AdoptProfile, in.Profiles, `
			SELECT r.uuid, 'device profile ' || p.uuid || ' has the name ' || p.name
			FROM jsonb_to_recordset($1) AS r (uuid uuid, name text) JOIN device_profiles p ON p.uuid = r.uuid OR p.name = r.name`},

		{AdoptDevice, in.Devices, `
			SELECT r.uuid, 'host ' || d.host || ' has reported ' || d.identity || ' as device ' || d.uuid || ' already; forget the host, then adopt'
			FROM jsonb_to_recordset($1) AS r (uuid uuid, host text, identity text, control_path_kind text, control_path_info jsonb)
			JOIN devices d ON d.uuid = r.uuid OR d.host = r.host AND (d.identity = r.identity
			    OR d.control_path_kind = r.control_path_kind AND d.control_path_info = r.control_path_info)`},

		{AdoptDeployable, in.Deployables, `
			SELECT r.uuid, 'deployable ' || d.uuid || ' of host ' || d.host || ' has the name ' || d.name || ', the accelerator name ' || d.accelerator
			    || ' and the resource provider ' || d.provider_uuid
			FROM jsonb_to_recordset($1) AS r (uuid uuid, host text, name text, local_name text, provider_uuid uuid)
			JOIN deployables d ON d.uuid = r.uuid OR d.name = r.name OR d.accelerator = r.name OR d.provider_uuid = r.provider_uuid
			    OR d.host = r.host AND d.local_name = r.local_name`},

		{AdoptHandle, in.Handles, `
			SELECT r.uuid, 'host ' || h.host || ' has ' || h.kind || ' ' || h.identity || ' as handle ' || h.uuid || ' already'
			FROM jsonb_to_recordset($1) AS r (uuid uuid, host text, kind text, identity text)
			JOIN attach_handles h ON h.uuid = r.uuid OR (h.host, h.kind, h.identity) = (r.host, r.kind, r.identity)`},

		{AdoptARQ, in.ARQs, `
			SELECT r.uuid, 'there is an accelerator request of that id, in state ' || q.state
			FROM jsonb_to_recordset($1) AS r (uuid uuid) JOIN arqs q ON q.uuid = r.uuid`},
	} {
		rows, err := a.tx.Query(ctx, check.sql+" ORDER BY 1", check.rows)
		if err != nil {
			return err
		}

		conflict := AdoptionConflict{Kind: check.kind}
		_, err = pgx.ForEachRow(rows, []any{&conflict.UUID, &conflict.Why}, func() error {
			a.out.Conflicts = append(a.out.Conflicts, conflict)
			return nil
		})
		if err != nil {
			return fmt.Errorf("conflicts of %s: %w", check.kind, err)
		}
	}

	return nil
}

// write inserts everything, from hosts down to accelerator requests.
//
// Hosts that are known already are asked for a full report, which they get by
// an empty digest and a new generation. New hosts have never been heard, so
// that the first agent that reports becomes theirs.
func (a *adopting) write(ctx context.Context, hosts []string, in Adoption) error {
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO hosts (name, boot_id, agent_version, report_seq, digest, base, last_seen)
		SELECT name, '', '', 0, '', '', to_timestamp(0) FROM unnest($1::text[]) AS name
		ON CONFLICT (name) DO UPDATE SET digest = '', base = '', generation = hosts.generation + 1`, hosts)
	batch.Queue(`
		INSERT INTO backends (host, name, driver, state, reported) SELECT name, $2, $2, 'disabled', false FROM unnest($1::text[]) AS name
		ON CONFLICT DO NOTHING`, hosts, merge.AdoptedBackend)

	queue(batch, in.Profiles, `
		INSERT INTO device_profiles (uuid, name, description, groups, created_at, updated_at)
		SELECT uuid, name, description, groups, created_at, updated_at
		FROM jsonb_to_recordset($1) AS r (uuid uuid, name text, description text, groups jsonb, created_at timestamptz, updated_at timestamptz)`)

	queue(batch, in.Devices, `
		INSERT INTO devices (uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, board_info,
		    control_path_kind, control_path_info, created_at)
		SELECT uuid, host, $2, driver, identity, type, vendor_id, product_id, vendor, model, board_info,
		    control_path_kind, control_path_info, created_at
		FROM jsonb_to_recordset($1) AS r (uuid uuid, host text, driver text, identity text, type text, vendor_id text, product_id text,
		    vendor text, model text, board_info jsonb, control_path_kind text, control_path_info jsonb, created_at timestamptz)`, merge.AdoptedBackend)

	// An adopted accelerator is in service from the beginning, because its
	// instances use it. A whole table of records travels as one JSON parameter.
	queue(batch, in.Deployables, `
		INSERT INTO deployables (uuid, device_uuid, host, name, local_name, provider_uuid, accelerator, specs, attributes, attributes_set,
		    bitstream_id, program_set, untouched, lifecycle, administration, maintain_reason, maintain_by, created_at)
		SELECT uuid, device_uuid, host, name, local_name, provider_uuid, name, specs, attributes, attributes_set,
		    bitstream_id, program_set, false, 'ready', CASE WHEN maintain_reason = '' THEN 'enabled' ELSE 'maintaining' END, maintain_reason,
		    CASE WHEN maintain_reason = '' THEN '' ELSE $2 END, created_at
		FROM jsonb_to_recordset($1) AS r (uuid uuid, device_uuid uuid, host text, name text, local_name text, provider_uuid uuid,
		    specs jsonb, attributes jsonb, attributes_set jsonb, bitstream_id text, program_set text, maintain_reason text,
		    created_at timestamptz)`, merge.AdoptedBackend)

	// OpenStack gives accelerators to instances only.
	queue(batch, in.Handles, `
		INSERT INTO attach_handles (uuid, deployable_uuid, host, kind, info, identity, holder_kind, holder_id, operation_id, attached_at)
		SELECT uuid, deployable_uuid, host, kind, info, identity, CASE WHEN holder_id IS NOT NULL THEN 'instance' END, holder_id,
		    CASE WHEN holder_id IS NOT NULL THEN $2::uuid END, attached_at
		FROM jsonb_to_recordset($1) AS r (uuid uuid, deployable_uuid uuid, host text, kind text, info jsonb, identity text,
		    holder_id text, attached_at timestamptz)`, a.operation)

	queue(batch, in.ARQs, `
		INSERT INTO arqs (uuid, state, project, profile_uuid, profile_name, group_index, profile_group, host, provider_uuid, instance_uuid,
		    handle_uuid, operation_id, reason, created_at, updated_at)
		SELECT uuid, state, project, profile_uuid, profile_name, group_index, profile_group, host, provider_uuid, instance_uuid,
		    handle_uuid, CASE WHEN handle_uuid IS NOT NULL THEN $2::uuid END, reason, created_at, updated_at
		FROM jsonb_to_recordset($1) AS r (uuid uuid, state text, project text, profile_uuid uuid, profile_name text, group_index int,
		    profile_group jsonb, host text, provider_uuid uuid, instance_uuid uuid, handle_uuid uuid, reason text,
		    created_at timestamptz, updated_at timestamptz)`, a.operation)

	return a.tx.SendBatch(ctx, batch).Close()
}
