package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// AcceleratorFilter chooses accelerators; empty fields choose all. Fields are
// ANDed, values of one field ORed.
type AcceleratorFilter struct {
	UUIDs       []uuid.UUID
	UUIDRange   *records.UUIDRange
	Names       []string
	Hosts       []string
	Drivers     []string
	Backends    []string
	DeviceTypes []cyborg.DeviceType
	Statuses    []cyborg.Status
	Devices     []uuid.UUID
	Holder      *cyborg.Holder

	// Near, where it is not empty, is a NUMA node or an accelerator, as locate takes it. Then
	// only accelerators of its host are chosen, and the nearest come first.
	Near string
}

// selectAccelerators reads accelerators with everything that belongs to them in
// one statement.
//
// The handles are aggregated in a lateral subquery below the joins, so that a
// page costs its own rows and not the whole table. They come as an array of
// records: JSON costs more on both sides. The order of the columns is that of
// acceleratorRows.scan and of handleRecord.ScanIndex.
const selectAccelerators = `
	SELECT d.id, d.uuid, d.accelerator, d.name, d.local_name, d.provider_uuid, d.device_uuid, d.host, v.identity, v.backend,
	       v.driver, v.type, d.specs, d.specs_set, ` + allAttributes + `, d.bitstream_id, d.pending_image, d.program_set, d.protected, d.same_holder, g.held, x.names, x.held, d.conditions, d.conditions_since, d.preparation, d.cleaning, d.lifecycle,
	       d.reason, d.error_kind, coalesce(d.error_operation, d.lifecycle_operation),
	       CASE WHEN ` + Maintained + ` THEN 'maintaining' ELSE 'enabled' END, d.maintain_reason, d.maintain_by, d.maintain_until, d.presence,
	       d.missing_since, coalesce(d.fence_reason, ''), d.fence_operation, c.operation_id, coalesce(o.kind, ''), h.handles,
	       d.specs_version, d.nova_spec, CASE WHEN d.image_lost_at IS NOT NULL THEN d.image END,
	       coalesce(d.image_bitstream, ''), d.image_lost_at, d.uninstall_pending_since, d.created_at, d.updated_at,
	       v.fingerprint, coalesce(v.replaced_by, ''), v.numa_node
	FROM deployables d
	JOIN devices v ON v.uuid = d.device_uuid
	LEFT JOIN claims c ON c.deployable_uuid = d.uuid
	LEFT JOIN operations o ON o.id = c.operation_id
	CROSS JOIN LATERAL (
		SELECT count(coalesce(holder_kind, unconfirmed_kind)) AS taken,
		       count(*) FILTER (WHERE holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = '' AND presence = 'present') AS free,
		       count(*) FILTER (WHERE unclean <> '' AND presence = 'present') AS unclean,
		       array_agg(ROW(id, uuid, kind, info, identity, presence, holder_kind, holder_id, operation_id, attached_at, unconfirmed_kind, unconfirmed_id,
		               undone_reason, undone_at, nullif(companions, '{}'), prepared, nullif(parameters, '{}'), clean, unclean, unclean_since, cleaned,
		               EXISTS (SELECT FROM arqs a WHERE a.handle_uuid = t.uuid AND a.lost_at IS NOT NULL))
		           ORDER BY id) AS handles
		FROM attach_handles t WHERE deployable_uuid = d.uuid) AS h
	CROSS JOIN LATERAL (` + togetherInGroup + `) AS g
	CROSS JOIN LATERAL (` + excludedWith + `) AS x`

// togetherInGroup is an SQL query of who has deployables that go to one holder with the
// deployable d, itself included, and which of them are unclean, in the form of
// cyborg.OtherHeld. It depends only on
// the host and on what they have in common, so that PostgreSQL can remember the answer
// for the other deployables of a page: a group may have hundreds of virtual functions.
// It does so only for a join without a condition of its own.
//
// Of each holder it finds two deployables, so that one is left without d itself; see
// others. Where a group has very many holders, because it became one after they had
// them, the first are enough to refuse everybody.
const togetherInGroup = `
	SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object('accelerator', s.uuid, 'name', s.accelerator,
	    'holder', CASE WHEN s.kind IS NOT NULL THEN jsonb_build_object('kind', s.kind, 'id', s.holder) END,
	    'left', s.abandoned, 'unclean', CASE WHEN s.kind IS NULL AND s.unclean THEN true END, 'operation_id', s.operation))
	    ORDER BY s.kind IS NULL, s.unclean, s.abandoned, s.id) AS held
	FROM (SELECT * FROM (
		SELECT e.*, row_number() OVER (PARTITION BY e.kind, e.holder, e.unclean ORDER BY e.abandoned, e.id) AS place
		FROM (
			SELECT DISTINCT ON (o.id, t.kind, t.holder) o.id, o.uuid, o.accelerator, t.kind, t.holder, t.abandoned, coalesce(t.unclean, false) AS unclean, t.operation
			FROM deployables o LEFT JOIN LATERAL (
				SELECT coalesce(holder_kind, unconfirmed_kind) AS kind, coalesce(holder_id, unconfirmed_id) AS holder,
				       unconfirmed_kind IS NOT NULL AS abandoned, holder_kind IS NULL AND unconfirmed_kind IS NULL AS unclean,
				       coalesce(operation_id, unconfirmed_operation) AS operation
				FROM attach_handles WHERE deployable_uuid = o.uuid AND (holder_kind IS NOT NULL OR unconfirmed_kind IS NOT NULL OR unclean <> '')) AS t ON true
			WHERE d.same_holder <> '' AND o.host = d.host AND o.same_holder = d.same_holder AND o.same_holder <> ''
			  AND (t.kind IS NOT NULL OR t.unclean OR o.nova_spec IS NOT NULL)
			ORDER BY o.id, t.kind, t.holder, t.abandoned) AS e) AS n
		WHERE n.place <= 2 ORDER BY n.kind IS NOT NULL, n.place, n.id LIMIT 8) AS s`

// excludedWith is an SQL query of what nobody may have while somebody has the deployable
// d: the names of these accelerators, and in the form of cyborg.OtherHeld those that
// somebody has, each with one of its holders, or that are unclean. Where nothing at all excludes anything,
// PostgreSQL finds that out once for a page.
const excludedWith = `
	SELECT (array_agg(o.accelerator ORDER BY o.id))[:256] AS names,
	       to_jsonb((array_agg(jsonb_strip_nulls(jsonb_build_object('accelerator', o.uuid, 'name', o.accelerator,
	           'holder', CASE WHEN t.kind IS NOT NULL THEN jsonb_build_object('kind', t.kind, 'id', t.holder) END,
	           'left', t.abandoned, 'unclean', CASE WHEN t.kind IS NULL AND t.unclean THEN true END, 'operation_id', t.operation))
	           ORDER BY t.kind IS NULL, o.nova_spec IS NULL, t.abandoned, o.id)
	           FILTER (WHERE t.kind IS NOT NULL OR t.unclean OR o.nova_spec IS NOT NULL))[:8]) AS held
	FROM excluded_with(d.uuid) AS e (uuid) JOIN deployables o ON o.uuid = e.uuid
	LEFT JOIN LATERAL (
		SELECT coalesce(holder_kind, unconfirmed_kind) AS kind, coalesce(holder_id, unconfirmed_id) AS holder,
		       unconfirmed_kind IS NOT NULL AS abandoned, unclean <> '' AS unclean, coalesce(operation_id, unconfirmed_operation) AS operation
		FROM attach_handles WHERE deployable_uuid = o.uuid AND (holder_kind IS NOT NULL OR unconfirmed_kind IS NOT NULL OR unclean <> '')
		ORDER BY holder_kind IS NULL, unconfirmed_kind IS NULL, id LIMIT 1) AS t ON true
	WHERE (SELECT EXISTS (SELECT FROM deployables WHERE excludes <> '{}'))`

// sinceWhen returns conditions with the times since when they are there, by their codes.
func sinceWhen(conditions []cyborg.Condition, since map[string]time.Time) []cyborg.Condition {
	out := slices.Clone(conditions) // the parsed value belongs to all rows that are the same
	for i := range out {
		out[i].Since = since[out[i].Code]
	}
	return out
}

// others returns one entry for each holder, of accelerators other than this one.
func others(accelerator uuid.UUID, held []cyborg.OtherHeld) []cyborg.OtherHeld {
	var out []cyborg.OtherHeld
	for _, h := range held {
		known := slices.ContainsFunc(out, func(o cyborg.OtherHeld) bool {
			return o.Unclean == h.Unclean && (o.Holder == nil && h.Holder == nil || o.Holder != nil && !h.Precludes(*o.Holder))
		})
		if h.Accelerator != accelerator && !known {
			out = append(out, h)
		}
	}
	return out
}

// Maintained is an SQL condition: the deployable d is in maintenance now. A
// maintenance whose time is over has ended, even where Reconcile has not
// recorded that yet.
const Maintained = "(d.administration = 'maintaining' AND (d.maintain_until > clock_timestamp()) IS NOT FALSE)"

// Accelerator is a public accelerator together with what guards and agents need
// to know about it.
type Accelerator struct {
	cyborg.Accelerator
	device      string               // the identity of its device on the host
	fingerprint cyborg.Fingerprint   // of its device, as far as it is known
	ErrorKind   cyborg.OperationKind // the kind of the operation that left it in error
	MovedBy     uuid.UUID            // the operation that put it into its lifecycle state; zero where none did

	// unheard is for how long its host has been waited for in the present epoch; nil
	// where the host was heard in it. Only QueueLockAccelerators reads it; see Heard.
	unheard *time.Duration
	// revoked says that the certificates of its host were revoked. Only
	// QueueLockAccelerators reads it; see Enrolled.
	revoked bool
}

// acceleratorRows scans the rows of one read of selectAccelerators. Its fields
// are scan targets that the rows share: they reuse memory, and values that were
// decoded for an earlier row.
type acceleratorRows struct {
	specs      records.Parsed[cyborg.Specs]
	set        records.Parsed[cyborg.SpecsPatch]
	attributes records.Parsed[[]cyborg.Attribute]
	nova       records.Parsed[*cyborg.NovaSpec]
	together   records.Parsed[[]cyborg.OtherHeld]
	excluded   records.Parsed[[]cyborg.OtherHeld]
	conditions records.Parsed[[]cyborg.Condition]
	since      records.Parsed[map[string]time.Time] // by the code of the condition
	pending    records.Parsed[*cyborg.PendingImage]
	prepared   records.Parsed[*cyborg.Preparation]
	cleaning   records.Parsed[*cyborg.Cleaning]
	image      records.Parsed[cyborg.Image]
	print      records.Parsed[cyborg.Fingerprint]
	handles    []handleRecord
	infos      map[string]map[string]string // decoded infos and parameters of handles, by their JSON text
}

// scan reads one row into an accelerator.
func (r *acceleratorRows) scan(row pgx.CollectableRow) (Accelerator, error) {
	var (
		a           Accelerator
		maintenance cyborg.Maintenance
		fence       cyborg.Fence
		claim       cyborg.Claim
		lost        cyborg.LostImage
	)

	r.handles = r.handles[:0]
	err := row.Scan(&a.ID, &a.UUID, &a.Name, &a.ProviderName, &a.LocalName, &a.ProviderUUID, &a.DeviceUUID, &a.Host, &a.device,
		&a.Backend, &a.Driver, (*string)(&a.DeviceType), &r.specs, &r.set, &r.attributes, &a.BitstreamID, &r.pending, &a.ProgramSet, &a.Protected,
		&a.SameHolder, &r.together, &a.Excludes, &r.excluded, &r.conditions, &r.since, &r.prepared, &r.cleaning, (*string)(&a.Lifecycle), &a.Reason, (*string)(&a.ErrorKind), (*zeronull.UUID)(&a.MovedBy), (*string)(&a.Admin),
		&maintenance.Reason, &maintenance.By,
		(*zeronull.Timestamptz)(&maintenance.Until), (*string)(&a.Presence), (*zeronull.Timestamptz)(&a.MissingAt), &fence.Reason,
		(*zeronull.UUID)(&fence.Operation), (*zeronull.UUID)(&claim.Operation), (*string)(&claim.Kind), (*handleRecords)(r),
		&a.SpecVersion, &r.nova, &r.image, &lost.BitstreamID, (*zeronull.Timestamptz)(&lost.FoundAt),
		(*zeronull.Timestamptz)(&a.UninstallPending), &a.CreatedAt, &a.UpdatedAt, &r.print, &a.ReplacedBy, &a.NUMANode)
	if err != nil {
		return a, err
	}

	a.Attributes, a.Nova, a.PendingImage, a.Preparation, a.Cleaning = r.attributes.Value, r.nova.Value, r.pending.Value, r.prepared.Value, r.cleaning.Value
	a.Conditions = sinceWhen(r.conditions.Value, r.since.Value)
	a.fingerprint, a.HeldTogether, a.ExcludedBy = r.print.Value, others(a.UUID, r.together.Value), r.excluded.Value

	// What an operator set takes precedence over what the driver reports.
	if a.Specs, err = r.specs.Value.With(r.set.Value); err != nil {
		return a, fmt.Errorf("the specs set for accelerator %s: %w", a.UUID, err)
	}

	// The parts below are pointers in the public type: nil means that there is
	// none.
	if a.Admin == cyborg.AdministrationMaintaining {
		a.Maintenance = &maintenance
	}
	lost.Image = r.image.Value
	if !lost.FoundAt.IsZero() {
		a.LostImage = &lost
	}
	if fence.Reason != "" {
		a.Fence = &fence
	}
	if claim.Operation != uuid.Nil {
		a.Claim = &claim
	}

	a.Handles = make([]cyborg.AttachHandle, len(r.handles))
	for i := range r.handles {
		a.Handles[i] = r.handles[i].handle()
	}

	return a, nil
}

// handleRecords receives the array of handles of one row; pgx calls it as a
// pgtype.ArraySetter.
type handleRecords acceleratorRows

// SetDimensions makes room for the handles of a row; NULL means that there are
// none.
func (r *handleRecords) SetDimensions(dimensions []pgtype.ArrayDimension) error {
	n := 0
	if len(dimensions) > 0 {
		n = int(dimensions[0].Length)
	}

	r.handles = slices.Grow(r.handles[:0], n)[:n]
	if r.infos == nil {
		r.infos = map[string]map[string]string{}
	}

	// The records of an earlier row are overwritten as a whole, so that nothing of
	// it is left in this one.
	for i := range r.handles {
		r.handles[i] = handleRecord{
			info: records.Parsed[map[string]string]{Known: r.infos}, parameters: records.Parsed[map[string]string]{Known: r.infos},
		}
	}

	return nil
}

// ScanIndex returns the scan target of the i-th handle.
func (r *handleRecords) ScanIndex(i int) any { return &r.handles[i] }

// ScanIndexType returns the type of a handle, for pgx to plan the scan.
func (r *handleRecords) ScanIndexType() any { return new(handleRecord) }

// handleRecord receives one handle, field by field in the order of
// selectAccelerators.
type handleRecord struct {
	cyborg.AttachHandle

	holder      cyborg.Holder
	unconfirmed cyborg.Holder
	undone      cyborg.Undone
	unclean     cyborg.Unclean
	cleaned     records.Parsed[*cyborg.Evidence]
	lost        bool // an accelerator request lost it when its host booted
	info        records.Parsed[map[string]string]
	parameters  records.Parsed[map[string]string]
}

// ScanNull refuses a NULL in the place of a handle.
func (h *handleRecord) ScanNull() error { return errors.New("a handle is NULL") }

// ScanIndex returns the scan target of the i-th field.
func (h *handleRecord) ScanIndex(i int) any {
	switch i {
	// The handle itself.
	case 0:
		return &h.ID
	case 1:
		return &h.UUID
	case 2:
		return (*string)(&h.Kind)
	case 3:
		return &h.info
	case 4:
		return &h.Identity
	case 5:
		return (*string)(&h.Presence)

	// Who holds it, and since when.
	case 6:
		return (*zeronull.Text)(&h.holder.Kind)
	case 7:
		return (*zeronull.Text)(&h.holder.ID)
	case 8:
		return (*zeronull.UUID)(&h.Operation)
	case 9:
		return (*zeronull.Timestamptz)(&h.AttachedAt)

	// Whose it may still be on the host.
	case 10:
		return (*zeronull.Text)(&h.unconfirmed.Kind)
	case 11:
		return (*zeronull.Text)(&h.unconfirmed.ID)

	// Why its host has it no longer.
	case 12:
		return (*zeronull.Text)(&h.undone.Reason)
	case 13:
		return (*zeronull.Timestamptz)(&h.undone.Since)

	// What goes with it, and what its host does for its holder.
	case 14:
		return &h.With
	case 15:
		return &h.Prepared
	case 16:
		return &h.parameters

	// Whether it is clean.
	case 17:
		return (*string)(&h.Clean)
	case 18:
		return (*string)(&h.unclean.Method)
	case 19:
		return (*zeronull.Timestamptz)(&h.unclean.Since)
	case 20:
		return &h.cleaned

	default:
		return &h.lost
	}
}

// handle returns the public form of the handle.
func (h *handleRecord) handle() cyborg.AttachHandle {
	if h.holder.Kind != "" {
		h.Holder = &cyborg.Holder{Kind: h.holder.Kind, ID: h.holder.ID}
	}
	if h.unconfirmed.Kind != "" {
		h.Unconfirmed = &cyborg.Holder{Kind: h.unconfirmed.Kind, ID: h.unconfirmed.ID}
	}
	if h.undone.Reason != "" {
		h.Undone = &cyborg.Undone{Reason: h.undone.Reason, Since: h.undone.Since}
	}
	if h.unclean.Method != "" {
		h.Unclean = &cyborg.Unclean{Method: h.unclean.Method, Since: h.unclean.Since}
	}
	if h.lost {
		h.Health = cyborg.HealthLostAtBoot
	}

	h.Info, h.Parameters, h.Cleaned = h.info.Value, h.parameters.Value, h.cleaned.Value
	return h.AttachHandle
}

// ReadAccelerators runs selectAccelerators with the rest of the statement after
// it.
func ReadAccelerators(ctx context.Context, q records.Querier, rest string, values ...any) ([]Accelerator, error) {
	rows, err := q.Query(ctx, selectAccelerators+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, new(acceleratorRows).scan)
}

// QueueRead is ReadAccelerators for a queued statement; check gets what it has
// found. See records.Queue.
func QueueRead(tx pgx.Tx, check func(found []Accelerator) error, rest string, values ...any) {
	records.Queue(tx, selectAccelerators+rest, values...).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, new(acceleratorRows).scan)
		if err != nil {
			return err
		}
		return check(found)
	})
}

// Accelerators lists accelerators in the order in which they were found, or the nearest
// first.
func (s *Store) Accelerators(ctx context.Context, filter AcceleratorFilter, page records.Page) ([]cyborg.Accelerator, error) {
	c, order := filter.clause(), "d.id"
	var near nearTo
	if filter.Near != "" {
		var err error
		if near, err = s.locate(ctx, filter.Near, filter.Hosts); err != nil {
			return nil, err
		}
		c.And("d.host = ?", near.host)
		order = near.orderSQL(c) + ", d.id"
	}

	if page.Marker != "" {
		var id int64
		var node *int
		if err := page.Place(ctx, s.db.Pool, "SELECT d.id, v.numa_node FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE d.uuid = $1::uuid",
			&id, &node); err != nil {
			return nil, s.db.Failure(ctx, err)
		}

		if filter.Near == "" {
			c.And("d.id > ?", id)
		} else {
			c.And("("+order+") > (?, ?)", near.rank(node), id)
		}
	}

	found, err := ReadAccelerators(ctx, s.db.Pool, c.String()+" ORDER BY "+order+page.LimitSQL(), c.Values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	accelerators := Public(found)
	if filter.Near != "" {
		for i := range accelerators {
			accelerators[i].NUMADistance = near.to(accelerators[i].NUMANode)
		}
	}
	return accelerators, nil
}

// Public drops what only the store needs to know.
func Public(in []Accelerator) []cyborg.Accelerator {
	out := make([]cyborg.Accelerator, len(in))
	for i := range in {
		out[i] = in[i].Accelerator
	}
	return out
}

// Accelerator reads one accelerator. The error is of kind ErrNotFound where
// there is none.
func (s *Store) Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	found, err := ReadAccelerators(ctx, s.db.Pool, " WHERE d.uuid = $1", id)
	if err != nil {
		return cyborg.Accelerator{}, s.db.Failure(ctx, err)
	}
	if len(found) == 0 {
		return cyborg.Accelerator{}, NoAccelerator(id)
	}

	return found[0].Accelerator, nil
}

// clause returns the conditions of the filter for selectAccelerators.
func (f *AcceleratorFilter) clause() *records.Clause {
	c := &records.Clause{}
	records.AndAny(c, "d.uuid", f.UUIDs)
	records.AndAmong(c, "d.uuid", f.UUIDRange)
	records.AndAny(c, "d.accelerator", f.Names)
	records.AndAny(c, "d.host", f.Hosts)
	records.AndAny(c, "v.driver", f.Drivers)
	records.AndAny(c, "v.backend", f.Backends)
	records.AndAny(c, "v.type", records.Texts(f.DeviceTypes))
	records.AndAny(c, "d.device_uuid", f.Devices)

	if f.Holder != nil {
		c.And("d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE holder_kind = ? AND holder_id = ?)",
			string(f.Holder.Kind), f.Holder.ID)
	}

	if len(f.Statuses) > 0 {
		// The status is computed. statusNeeds adds a condition that these statuses
		// imply, by which the planner finds the few accelerators of a rare status.
		c.And(statusSQL()+" = ANY(?)", records.Texts(f.Statuses))
		c.And(statusNeeds(f.Statuses))
	}

	return c
}

// AcceleratorName has the names of an accelerator: its UUID and its name in the
// records, and the name that its driver uses on its host.
type AcceleratorName struct {
	UUID                  uuid.UUID
	Name, Host, LocalName string
}

// AcceleratorNames returns the names of all accelerators of these hosts.
func (s *Store) AcceleratorNames(ctx context.Context, hosts []string) ([]AcceleratorName, error) {
	rows, err := s.db.Pool.Query(ctx, "SELECT uuid, accelerator, host, local_name FROM deployables WHERE host = ANY($1)", hosts)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[AcceleratorName])
	return found, s.db.Failure(ctx, err)
}

// Unprovisioned lists the accelerators that were found and never taken into
// service, on hosts that are neither silent nor revoked, the oldest first. Where
// inventory.admission is auto, a Provision is admitted for each. What has appeared on a
// device of which nobody knows how it is divided is left out: it may not be all of it.
func (s *Store) Unprovisioned(ctx context.Context, limit int) ([]uuid.UUID, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT d.uuid FROM deployables d JOIN hosts h ON h.name = d.host JOIN devices v ON v.uuid = d.device_uuid
		WHERE d.untouched AND d.lifecycle = 'inactive' AND d.presence = 'present' AND NOT `+Maintained+`
		  AND d.fence_reason IS NULL AND d.protected = '' AND NOT d.unready AND `+records.Within("h.last_seen", "$2::interval")+`
		  AND NOT `+RevokedSQL("h")+` AND NOT EXISTS (SELECT FROM claims WHERE deployable_uuid = d.uuid)
		  AND v.layout_doubt_operation IS NULL
		  AND NOT EXISTS (SELECT FROM deployables o WHERE o.device_uuid = d.device_uuid AND o.lifecycle = 'error' AND o.error_kind = $3)
		ORDER BY d.id LIMIT $1`, records.Limit(limit), s.db.Options.SilentAfter, string(cyborg.OperationPartition))
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	found, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	return found, s.db.Failure(ctx, err)
}

// UniqueName is the constraint that accelerators have different names.
const UniqueName = "deployables_accelerator_key"
