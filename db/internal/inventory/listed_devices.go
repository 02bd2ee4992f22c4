package inventory

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// ListedDevice is one device in a list of all of them.
type ListedDevice struct {
	UUID       uuid.UUID
	Type       cyborg.DeviceType
	VendorID   string
	ProductID  string
	Vendor     string
	Model      string
	BoardInfo  []byte // JSON
	Host       string
	Maintained bool // all its accelerators are in maintenance
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// sortedDevices describes by what lists of devices can be sorted.
func sortedDevices() records.Sorted {
	return records.Sorted{Table: "devices v", ID: "v.id", UUID: "v.uuid", Keys: map[string]string{
		"uuid": "v.uuid", "type": "v.type", "vendor": "v.vendor_id", "model": "v.model", "hostname": "v.host", "created_at": "v.created_at",
		"updated_at": "v.updated_at",
	}}
}

// maintainedDevices and maintainedDevice are SQL conditions on a device v: it
// has accelerators, and all of them are in maintenance. Few devices are. For a
// list of all devices the first one finds those with an accelerator in
// maintenance at once; for single devices the second one looks only at their
// own accelerators.
const (
	maintainedDevices = "v.uuid IN (SELECT device_uuid FROM deployables WHERE administration = 'maintaining') AND " + nothingEnabled
	maintainedDevice  = "EXISTS (SELECT FROM deployables d WHERE d.device_uuid = v.uuid) AND " + nothingEnabled
	nothingEnabled    = "NOT EXISTS (SELECT FROM deployables d WHERE d.device_uuid = v.uuid AND d.administration <> 'maintaining')"
)

// EachDevice calls visit for every device that the filter chooses. It reads
// them with one statement, and reuses the ListedDevice: visit must not keep it
// or its BoardInfo.
func (s *Store) EachDevice(ctx context.Context, filter DeviceFilter, listing records.Listing, visit func(*ListedDevice)) error {
	c := filter.clause("v.")
	order, err := listing.Order(ctx, s.db.Pool, c, sortedDevices())
	if err != nil {
		return s.db.Failure(ctx, err)
	}

	maintained := maintainedDevices
	if len(filter.UUIDs)+len(filter.IDs) > 0 {
		maintained = maintainedDevice
	}

	rows, err := s.db.Pool.Query(ctx, `
		SELECT v.uuid, v.type, v.vendor_id, v.product_id, v.vendor, v.model, v.board_info, v.host, `+maintained+`,
		       v.created_at, v.updated_at
		FROM devices v`+c.String()+order, c.Values...)
	if err != nil {
		return s.db.Failure(ctx, err)
	}

	var (
		d     ListedDevice
		known = records.TextCache{}
	)

	_, err = pgx.ForEachRow(rows, []any{
		(*[16]byte)(&d.UUID), known.Into((*string)(&d.Type)), known.Into(&d.VendorID), known.Into(&d.ProductID), known.Into(&d.Vendor),
		known.Into(&d.Model), (*records.JSONText)(&d.BoardInfo), known.Into(&d.Host), &d.Maintained, &d.CreatedAt, &d.UpdatedAt,
	}, func() error { visit(&d); return nil })
	return s.db.Failure(ctx, err)
}
