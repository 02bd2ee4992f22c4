package inventory

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/records"
)

// ListedDeployable is one deployable in a list of all of them. It has fewer
// fields than an Accelerator, so that long lists are read quickly.
type ListedDeployable struct {
	UUID         uuid.UUID
	Name         string
	Accelerators int
	Device       int64  // id of the device
	Attributes   []byte // JSON: those that the driver reports, followed by those that were set
	ProviderUUID uuid.UUID
	Driver       string
	BitstreamID  string
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// DeployableFilter chooses deployables; empty fields choose all. Fields are
// ANDed, values of one field ORed.
type DeployableFilter struct {
	UUIDs   []uuid.UUID
	IDs     []int64
	Names   []string // names of the resource providers
	Hosts   []string
	Devices []int64
}

// clause returns the conditions of the filter.
func (f DeployableFilter) clause() *records.Clause {
	c := &records.Clause{}
	records.AndAny(c, "d.uuid", f.UUIDs)
	records.AndAny(c, "d.id", f.IDs)
	records.AndAny(c, "d.name", f.Names)
	records.AndAny(c, "d.host", f.Hosts)
	records.AndAny(c, "v.id", f.Devices)
	return c
}

// sortedDeployables describes by what lists of deployables can be sorted.
func sortedDeployables() records.Sorted {
	return records.Sorted{Table: "deployables d JOIN devices v ON v.uuid = d.device_uuid", ID: "d.id", UUID: "d.uuid", Keys: map[string]string{
		"uuid": "d.uuid", "name": "d.name", "device_id": "v.id", "driver_name": "v.driver", "bitstream_id": "d.bitstream_id",
		"rp_uuid": "d.provider_uuid", "created_at": "d.created_at", "updated_at": "d.updated_at",
	}}
}

// allAttributes is an SQL expression: the attributes that the driver reports of
// the deployable d, followed by those that were set. Nearly always none were
// set; the CASE then spares the concatenation.
const allAttributes = "CASE WHEN d.attributes_set = '[]' THEN d.attributes ELSE d.attributes || d.attributes_set END"

// EachDeployable calls visit for every deployable that the filter chooses. It
// reads them with one statement, and reuses the ListedDeployable: visit must
// not keep it or its Attributes.
func (s *Store) EachDeployable(ctx context.Context, filter DeployableFilter, listing records.Listing, visit func(*ListedDeployable)) error {
	c := filter.clause()
	order, err := listing.Order(ctx, s.db.Pool, c, sortedDeployables())
	if err != nil {
		return s.db.Failure(ctx, err)
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT d.uuid, d.name, coalesce((d.specs_set->>'num')::bigint, (d.specs->>'num')::bigint, 0), v.id, `+allAttributes+`,
		       d.provider_uuid, v.driver, d.bitstream_id, d.created_at, d.updated_at
		FROM deployables d JOIN devices v ON v.uuid = d.device_uuid`+c.String()+order, c.Values...)
	if err != nil {
		return s.db.Failure(ctx, err)
	}

	var (
		d     ListedDeployable
		known = records.TextCache{}
	)

	_, err = pgx.ForEachRow(rows, []any{
		(*[16]byte)(&d.UUID), &d.Name, &d.Accelerators, &d.Device, (*records.JSONText)(&d.Attributes), (*[16]byte)(&d.ProviderUUID),
		known.Into(&d.Driver), known.Into(&d.BitstreamID),
		&d.CreatedAt, &d.UpdatedAt,
	}, func() error { visit(&d); return nil })
	return s.db.Failure(ctx, err)
}
