package inventory

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// DeviceFilter chooses devices in the same way as AcceleratorFilter does.
type DeviceFilter struct {
	UUIDs     []uuid.UUID
	IDs       []int64
	UUIDRange *records.UUIDRange
	Hosts     []string
	Types     []cyborg.DeviceType
	Vendors   []string // vendor ids
}

// selectDevices reads devices without their accelerators.
const selectDevices = `
	SELECT id, uuid, host, backend, driver, identity, type, vendor_id, product_id, vendor, model, numa_node, board_info,
	       control_path_kind, control_path_info, fingerprint, partitioning, wanted_layout, presence, coalesce(replaced_by, ''), created_at, updated_at FROM devices`

// readDevices runs selectDevices with the rest of the statement after it.
func readDevices(ctx context.Context, q records.Querier, rest string, values ...any) ([]cyborg.Device, error) {
	rows, err := q.Query(ctx, selectDevices+rest, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d cyborg.Device, err error) {
		err = row.Scan(&d.ID, &d.UUID, &d.Host, &d.Backend, &d.Driver, &d.Identity, &d.Type, &d.VendorID, &d.ProductID, &d.Vendor,
			&d.Model, &d.NUMANode, &d.BoardInfo, &d.ControlPath.Kind, &d.ControlPath.Info,
			&d.Fingerprint, &d.Partitioning, &d.WantedLayout, &d.Presence, &d.ReplacedBy, &d.CreatedAt, &d.UpdatedAt)
		return d, err
	})
}

// Devices lists devices, without their accelerators, in the order in which they
// were found.
func (s *Store) Devices(ctx context.Context, filter DeviceFilter, page records.Page) ([]cyborg.Device, error) {
	// The marker is a UUID, but pages are read by the small id, which is in the
	// order in which devices were found.
	c := filter.clause("")
	if page.Marker != "" {
		var id int64
		if err := page.Place(ctx, s.db.Pool, "SELECT id FROM devices WHERE uuid = $1::uuid", &id); err != nil {
			return nil, s.db.Failure(ctx, err)
		}
		c.And("id > ?", id)
	}

	found, err := readDevices(ctx, s.db.Pool, c.String()+" ORDER BY id"+page.LimitSQL(), c.Values...)
	return found, s.db.Failure(ctx, err)
}

// clause returns the conditions of the filter; alias is the prefix of the
// columns, with its dot, or empty.
func (f *DeviceFilter) clause(alias string) *records.Clause {
	c := &records.Clause{}
	records.AndAny(c, alias+"uuid", f.UUIDs)
	records.AndAny(c, alias+"id", f.IDs)
	records.AndAmong(c, alias+"uuid", f.UUIDRange)
	records.AndAny(c, alias+"host", f.Hosts)
	records.AndAny(c, alias+"type", records.Texts(f.Types))
	records.AndAny(c, alias+"vendor_id", f.Vendors)
	return c
}

// Device reads one device with its accelerators. The error is of kind
// ErrNotFound where there is none.
func (s *Store) Device(ctx context.Context, id uuid.UUID) (cyborg.Device, error) {
	found, err := readDevice(ctx, s.db.Pool, id)
	return found, s.db.Failure(ctx, err)
}

// readDevice reads one device with its accelerators, perhaps within a
// transaction.
func readDevice(ctx context.Context, q records.Querier, id uuid.UUID) (cyborg.Device, error) {
	found, err := readDevices(ctx, q, " WHERE uuid = $1", id)
	if err != nil {
		return cyborg.Device{}, err
	}

	if len(found) == 0 {
		return cyborg.Device{}, noDevice(id)
	}

	parts, err := ReadAccelerators(ctx, q, " WHERE d.device_uuid = $1 ORDER BY d.id", id)
	if err != nil {
		return cyborg.Device{}, err
	}

	found[0].Deployables = Public(parts)
	return found[0], nil
}
