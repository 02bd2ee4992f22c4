package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
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
func sortedDevices() sorted {
	return sorted{table: "devices v", id: "v.id", uuid: "v.uuid", keys: map[string]string{
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
func (s *Store) EachDevice(ctx context.Context, filter DeviceFilter, listing Listing, visit func(*ListedDevice)) error {
	c := filter.clause("v.")
	order, err := listing.order(ctx, s.pool, c, sortedDevices())
	if err != nil {
		return s.failure(ctx, err)
	}

	maintained := maintainedDevices
	if len(filter.UUIDs)+len(filter.IDs) > 0 {
		maintained = maintainedDevice
	}

	rows, err := s.pool.Query(ctx, `
		SELECT v.uuid, v.type, v.vendor_id, v.product_id, v.vendor, v.model, v.board_info, v.host, `+maintained+`,
		       v.created_at, v.updated_at
		FROM devices v`+c.String()+order, c.values...)
	if err != nil {
		return s.failure(ctx, err)
	}

	var (
		d     ListedDevice
		known = textCache{}
	)

	_, err = pgx.ForEachRow(rows, []any{
		(*[16]byte)(&d.UUID), known.into((*string)(&d.Type)), known.into(&d.VendorID), known.into(&d.ProductID), known.into(&d.Vendor),
		known.into(&d.Model), (*jsonText)(&d.BoardInfo), known.into(&d.Host), &d.Maintained, &d.CreatedAt, &d.UpdatedAt,
	}, func() error { visit(&d); return nil })
	return s.failure(ctx, err)
}

// textCache holds the texts of the rows that were read before. Rows are often
// alike, and this way each text is allocated once for a whole list.
type textCache map[string]string

// into returns the destination of a column whose text is stored there.
func (w textCache) into(place *string) *cachedText { return &cachedText{known: w, place: place} }

// cachedText is the destination of one column; its text is shared through
// known.
type cachedText struct {
	known textCache
	place *string
}

// ScanBytes stores the text of one row.
func (w *cachedText) ScanBytes(text []byte) error {
	known, ok := w.known[string(text)]
	if !ok {
		known = string(text)
		w.known[known] = known
	}
	*w.place = known
	return nil
}

// jsonText receives the text of a JSON column undecoded.
type jsonText []byte

// ScanBytes copies the text. It reuses the memory of the row before.
func (t *jsonText) ScanBytes(text []byte) error {
	*t = append((*t)[:0], text...)
	return nil
}
