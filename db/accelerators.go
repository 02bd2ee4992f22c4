package db

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
)

// selectAccelerators reads accelerators with all that belongs to them in one statement. The handles are gathered below
// the joins, so that a page costs its rows and not the table's.
const selectAccelerators = `
	SELECT d.id, d.uuid, d.accelerator, d.name, d.local_name, d.provider_uuid, d.device_uuid, d.host, v.identity, v.backend,
	       v.driver, v.type, d.specs, d.specs_set, d.attributes, d.bitstream_id, d.program_set, d.protected, d.lifecycle,
	       d.reason, d.error_kind, d.administration, d.maintain_reason, d.maintain_by, d.maintain_until, d.presence,
	       d.missing_since, coalesce(d.fence_reason, ''), d.fence_operation, c.operation_id, coalesce(o.kind, ''), h.handles,
	       d.specs_version, d.created_at, d.updated_at
	FROM deployables d
	JOIN devices v ON v.uuid = d.device_uuid
	LEFT JOIN claims c ON c.deployable_uuid = d.uuid
	LEFT JOIN operations o ON o.id = c.operation_id
	CROSS JOIN LATERAL (
		SELECT count(*) AS total, count(*) FILTER (WHERE holder_kind IS NULL AND presence = 'present') AS free,
		       coalesce(json_agg(json_build_object(
		           'id', id, 'uuid', uuid, 'kind', kind, 'info', info, 'identity', identity, 'presence', presence,
		           'holder_kind', holder_kind, 'holder_id', holder_id, 'operation_id', operation_id,
		           'attached_at', attached_at) ORDER BY id), '[]') AS handles
		FROM attach_handles WHERE deployable_uuid = d.uuid) AS h`

// accelerator is what guards and agents need to know besides what everybody may see.
type accelerator struct {
	cyborg.Accelerator
	device    string               // the device's identity on its host
	errorKind cyborg.OperationKind // of the operation that left it in error
}

// handleJSON is an attach handle as selectAccelerators gathers it.
type handleJSON struct {
	ID         int64             `json:"id"`
	UUID       uuid.UUID         `json:"uuid"`
	Kind       cyborg.HandleKind `json:"kind"`
	Info       map[string]string `json:"info"`
	Identity   string            `json:"identity"`
	Presence   cyborg.Presence   `json:"presence"`
	HolderKind cyborg.HolderKind `json:"holder_kind"`
	HolderID   string            `json:"holder_id"`
	Operation  uuid.UUID         `json:"operation_id"`
	AttachedAt time.Time         `json:"attached_at"`
}

func scanAccelerator(row pgx.CollectableRow) (accelerator, error) {
	var (
		a           accelerator
		maintenance cyborg.Maintenance
		fence       cyborg.Fence
		claim       cyborg.Claim
		set         cyborg.SpecsPatch
		handles     []handleJSON
	)
	err := row.Scan(&a.ID, &a.UUID, &a.Name, &a.Deployable, &a.LocalName, &a.ProviderUUID, &a.DeviceUUID, &a.Host, &a.device,
		&a.Backend, &a.Driver, &a.DeviceType, &a.Specs, &set, &a.Attributes, &a.BitstreamID, &a.ProgramSet, &a.Protected,
		&a.Lifecycle, &a.Reason, &a.errorKind, &a.Admin, &maintenance.Reason, &maintenance.By,
		(*zeronull.Timestamptz)(&maintenance.Until), &a.Presence, (*zeronull.Timestamptz)(&a.MissingAt), &fence.Reason,
		(*zeronull.UUID)(&fence.Operation), (*zeronull.UUID)(&claim.Operation), &claim.Kind, &handles,
		&a.SpecVersion, &a.CreatedAt, &a.UpdatedAt)
	if err != nil {
		return a, err
	}
	if a.Specs, err = a.Specs.With(set); err != nil {
		return a, fmt.Errorf("the specs set for accelerator %s: %w", a.UUID, err)
	}
	if a.Admin == cyborg.Maintaining {
		a.Maintenance = &maintenance
	}
	if fence.Reason != "" {
		a.Fence = &fence
	}
	if claim.Operation != uuid.Nil {
		a.Claim = &claim
	}
	a.Handles = make([]cyborg.AttachHandle, len(handles))
	for i, h := range handles {
		a.Handles[i] = h.handle()
	}
	return a, nil
}

func (h *handleJSON) handle() cyborg.AttachHandle {
	out := cyborg.AttachHandle{
		ID: h.ID, UUID: h.UUID, Kind: h.Kind, Info: h.Info, Identity: h.Identity, Presence: h.Presence, Operation: h.Operation,
	}
	if h.HolderKind != "" {
		out.Holder = &cyborg.Holder{Kind: h.HolderKind, ID: h.HolderID}
	}
	if !h.AttachedAt.IsZero() {
		out.AttachedAt = h.AttachedAt.UTC()
	}
	return out
}

// readAccelerators runs selectAccelerators with what follows it.
func readAccelerators(ctx context.Context, q querier, rest string, values ...any) ([]accelerator, error) {
	rows, err := q.Query(ctx, selectAccelerators+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanAccelerator)
}

// Accelerators lists accelerators in the order in which they were found.
func (s *Store) Accelerators(ctx context.Context, filter AcceleratorFilter, page Page) ([]cyborg.Accelerator, error) {
	c := filter.clause()
	if page.Marker != "" {
		var id int64
		if err := page.place(ctx, s.pool, "SELECT id FROM deployables WHERE uuid = $1::uuid", &id); err != nil {
			return nil, s.failure(ctx, err)
		}
		c.and("d.id > ?", id)
	}
	found, err := readAccelerators(ctx, s.pool, c.String()+" ORDER BY d.id"+page.limit(), c.values...)
	if err != nil {
		return nil, s.failure(ctx, err)
	}
	return public(found), nil
}

func public(in []accelerator) []cyborg.Accelerator {
	out := make([]cyborg.Accelerator, len(in))
	for i := range in {
		out[i] = in[i].Accelerator
	}
	return out
}

// Accelerator reads one. The error is of kind NotFound where there is none.
func (s *Store) Accelerator(ctx context.Context, id uuid.UUID) (cyborg.Accelerator, error) {
	found, err := readAccelerators(ctx, s.pool, " WHERE d.uuid = $1", id)
	if err != nil {
		return cyborg.Accelerator{}, s.failure(ctx, err)
	}
	if len(found) == 0 {
		return cyborg.Accelerator{}, noAccelerator(id)
	}
	return found[0].Accelerator, nil
}

func (f *AcceleratorFilter) clause() *clause {
	c := &clause{}
	andAny(c, "d.uuid", f.UUIDs)
	andAny(c, "d.accelerator", f.Names)
	andAny(c, "d.host", f.Hosts)
	andAny(c, "v.driver", f.Drivers)
	andAny(c, "v.backend", f.Backends)
	andAny(c, "v.type", texts(f.DeviceTypes))
	andAny(c, "d.device_uuid", f.Devices)
	if f.Holder != nil {
		c.and("d.uuid IN (SELECT deployable_uuid FROM attach_handles WHERE holder_kind = ? AND holder_id = ?)",
			string(f.Holder.Kind), f.Holder.ID)
	}
	if len(f.Statuses) > 0 {
		c.and(statusSQL()+" = ANY(?)", texts(f.Statuses))
		c.and(statusNeeds(f.Statuses))
	}
	return c
}
