package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ListedDeployable is what a list of all deployables shows of one.
type ListedDeployable struct {
	UUID         uuid.UUID
	Name         string
	Accelerators int
	Device       int64  // the small integer
	Attributes   []byte // JSON: what the driver reports, and then what was set
	ProviderUUID uuid.UUID
	Driver       string
	BitstreamID  string
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// DeployableFilter chooses deployables; empty fields choose all. Fields are ANDed, values of one field ORed.
type DeployableFilter struct {
	UUIDs   []uuid.UUID
	IDs     []int64
	Names   []string // resource providers' names
	Hosts   []string
	Devices []int64
}

func (f DeployableFilter) clause() *clause {
	c := &clause{}
	andAny(c, "d.uuid", f.UUIDs)
	andAny(c, "d.id", f.IDs)
	andAny(c, "d.name", f.Names)
	andAny(c, "d.host", f.Hosts)
	andAny(c, "v.id", f.Devices)
	return c
}

func sortedDeployables() sorted {
	return sorted{table: "deployables d JOIN devices v ON v.uuid = d.device_uuid", id: "d.id", uuid: "d.uuid", keys: map[string]string{
		"uuid": "d.uuid", "name": "d.name", "device_id": "v.id", "driver_name": "v.driver", "bitstream_id": "d.bitstream_id",
		"rp_uuid": "d.provider_uuid", "created_at": "d.created_at", "updated_at": "d.updated_at",
	}}
}

// allAttributes is what the driver reports of a deployable d, and then what was set.
const allAttributes = "CASE WHEN d.attributes_set = '[]' THEN d.attributes ELSE d.attributes || d.attributes_set END"

// EachDeployable tells of every deployable that the filter chooses, with one statement; what it tells of is another one's
// at the next call.
func (s *Store) EachDeployable(ctx context.Context, filter DeployableFilter, listing Listing, tell func(*ListedDeployable)) error {
	c := filter.clause()
	order, err := listing.order(ctx, s.pool, c, sortedDeployables())
	if err != nil {
		return s.failure(ctx, err)
	}
	rows, err := s.pool.Query(ctx, `
		SELECT d.uuid, d.name, coalesce((d.specs_set->>'num')::int, (d.specs->>'num')::int, 0), v.id, `+allAttributes+`,
		       d.provider_uuid, v.driver, d.bitstream_id, d.created_at, d.updated_at
		FROM deployables d JOIN devices v ON v.uuid = d.device_uuid`+c.String()+order, c.values...)
	if err != nil {
		return s.failure(ctx, err)
	}
	var (
		d     ListedDeployable
		known = words{}
	)
	_, err = pgx.ForEachRow(rows, []any{
		(*[16]byte)(&d.UUID), &d.Name, &d.Accelerators, &d.Device, (*jsonText)(&d.Attributes), (*[16]byte)(&d.ProviderUUID),
		known.into(&d.Driver), known.into(&d.BitstreamID),
		&d.CreatedAt, &d.UpdatedAt,
	}, func() error { tell(&d); return nil })
	return s.failure(ctx, err)
}
