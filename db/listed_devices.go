package db

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// ListedDevice is what a list of all devices shows of one.
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

func sortedDevices() sorted {
	return sorted{table: "devices v", id: "v.id", uuid: "v.uuid", keys: map[string]string{
		"uuid": "v.uuid", "type": "v.type", "vendor": "v.vendor_id", "model": "v.model", "hostname": "v.host", "created_at": "v.created_at",
		"updated_at": "v.updated_at",
	}}
}

// maintainedDevices says of a device v whether all its accelerators are in maintenance. Few are, so of a list those are
// looked for first; of one device its own are looked at.
const (
	maintainedDevices = "v.uuid IN (SELECT device_uuid FROM deployables WHERE administration = 'maintaining') AND " + nothingEnabled
	maintainedDevice  = "EXISTS (SELECT FROM deployables d WHERE d.device_uuid = v.uuid) AND " + nothingEnabled
	nothingEnabled    = "NOT EXISTS (SELECT FROM deployables d WHERE d.device_uuid = v.uuid AND d.administration <> 'maintaining')"
)

// EachDevice tells of every device that the filter chooses, with one statement; what it tells of is another one's at the
// next call.
func (s *Store) EachDevice(ctx context.Context, filter DeviceFilter, listing Listing, tell func(*ListedDevice)) error {
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
		known = words{}
	)
	_, err = pgx.ForEachRow(rows, []any{
		(*[16]byte)(&d.UUID), known.into((*string)(&d.Type)), known.into(&d.VendorID), known.into(&d.ProductID), known.into(&d.Vendor),
		known.into(&d.Model), (*jsonText)(&d.BoardInfo), known.into(&d.Host), &d.Maintained, &d.CreatedAt, &d.UpdatedAt,
	}, func() error { tell(&d); return nil })
	return s.failure(ctx, err)
}

// words are the texts that came before in the same read: rows are often alike, and each text is kept once.
type words map[string]string

func (w words) into(place *string) *word { return &word{known: w, place: place} }

// word is where one column of a row goes.
type word struct {
	known words
	place *string
}

// ScanBytes reads the text of one row.
func (w *word) ScanBytes(text []byte) error {
	known, ok := w.known[string(text)]
	if !ok {
		known = string(text)
		w.known[known] = known
	}
	*w.place = known
	return nil
}

// jsonText takes the text of a JSON column as it is.
type jsonText []byte

// ScanBytes keeps a copy, in the same place again and again.
func (t *jsonText) ScanBytes(text []byte) error {
	*t = append((*t)[:0], text...)
	return nil
}
