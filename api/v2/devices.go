package v2

import (
	"bytes"
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// deviceWriter writes devices as JSON. See text for why they are not
// marshalled.
type deviceWriter struct {
	list

	link   string            // address of a device, without its UUID
	status bool              // whether the request's microversion has the member status
	boards map[string]string // results of board
}

// deviceWriter returns a writer that fits the request's links and microversion.
func (a *API) deviceWriter(r *http.Request) *deviceWriter {
	return &deviceWriter{
		list: a.newList(), link: escaped(a.base(r) + linkPrefix + "/devices/"), status: minorOf(r.Context()) >= minorStatus, boards: map[string]string{},
	}
}

// device appends one device. The order of the members is upstream's.
func (w *deviceWriter) device(d *db.ListedDevice) {
	id := idOf(d.UUID)

	w.raw(`{"uuid":`)
	w.id(&id)
	w.raw(`,"type":`)
	w.string(string(d.Type))
	w.raw(`,"vendor":`)
	w.string(d.VendorID)
	w.raw(`,"model":`)
	w.string(d.Model)
	w.raw(`,"std_board_info":`)
	w.raw(w.board(d))
	w.raw(`,"vendor_board_info":`)
	w.orNull(d.Vendor)
	w.raw(`,"hostname":`)
	w.string(d.Host)

	if w.status {
		if d.Maintained {
			w.raw(`,"status":"maintaining"`)
		} else {
			w.raw(`,"status":"enabled"`)
		}
	}

	w.raw(`,"links":[`)
	w.text.link(w.link, &id, "self")
	w.raw(`],"created_at":`)
	w.instant(d.CreatedAt)
	w.raw(`,"updated_at":`)
	w.since(d.CreatedAt, d.UpdatedAt)
	w.raw("}")
}

// board returns what is known about the board: a JSON object that is itself
// encoded as a JSON text. There are few kinds of boards, so results are kept
// for the rest of the list.
func (w *deviceWriter) board(d *db.ListedDevice) string {
	key := d.ProductID + "\x00" + string(d.BoardInfo)
	if known, ok := w.boards[key]; ok {
		return known
	}

	var inner, out text

	inner.raw(`{"product_id": `)
	inner.string(d.ProductID)

	// The product id becomes the first member of the object that the records have.
	if rest, ok := bytes.CutPrefix(bytes.TrimSpace(d.BoardInfo), []byte("{")); ok && len(rest) > 1 {
		inner.raw(", ")
		inner.raw(string(rest))
	} else {
		inner.raw("}")
	}

	out.string(string(inner))

	w.boards[key] = string(out)
	return string(out)
}

// listDevices answers with the devices that match the query.
func (a *API) listDevices(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, append(listingArguments(), "type", "vendor", "hostname", filterFields, filterValues)...)
	filters := q.filters()

	filter := db.DeviceFilter{}

	if q.filled("type") {
		filter.Types = []cyborg.DeviceType{cyborg.DeviceType(q.text("type"))}
	}
	if q.filled("vendor") {
		filter.Vendors = []string{cyborg.PCIID(q.text("vendor"))}
	}
	if q.filled("hostname") {
		filter.Hosts = []string{q.text("hostname")}
	}

	listing := q.listing(filters || q.filled("type") || q.filled("vendor") || q.filled("hostname"))
	if q.err != nil {
		return q.err
	}

	out := a.deviceWriter(r)
	out.raw(`{"devices":[`)

	first := len(out.text)
	err := a.store.EachDevice(r.Context(), filter, listing, func(d *db.ListedDevice) {
		if len(out.text) > first {
			out.raw(",")
		}
		out.device(d)
	})
	if err != nil {
		return err
	}

	out.raw("]}")
	return a.write(w, out.text)
}

// showDevice answers with one device, by its UUID or its number.
func (a *API) showDevice(w http.ResponseWriter, r *http.Request) error {
	filter, err := a.chooseDevice(r)
	if err != nil {
		return err
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}

	out := a.deviceWriter(r)
	if err := a.store.EachDevice(r.Context(), filter, db.Listing{}, out.device); err != nil {
		return err
	}

	if len(out.text) == 0 {
		return noDevice(pathText(r, "device"))
	}

	return a.write(w, out.text)
}

// chooseDevice reads the UUID or the number of a device from the path.
func (a *API) chooseDevice(r *http.Request) (db.DeviceFilter, error) {
	text := pathText(r, "device")

	if id, ok := parseUUID(text); ok {
		return db.DeviceFilter{UUIDs: []uuid.UUID{id}}, nil
	}
	if number, ok := parseNumber(text); ok {
		return db.DeviceFilter{IDs: []int64{number}}, nil
	}

	return db.DeviceFilter{}, noDevice(text)
}

// noDevice is the error for a device that does not exist, in upstream's words.
func noDevice(text string) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "Device not found with uuid=%s", web.Shorten(text))
}

// disableDevice puts all accelerators of the device into maintenance, as /v1
// does.
func (a *API) disableDevice(w http.ResponseWriter, r *http.Request) error {
	return a.administer(w, r, func(id uuid.UUID) (cyborg.Device, error) {
		return a.store.MaintainDevice(r.Context(), id, cyborg.Maintenance{
			Reason: "disabled through OpenStack's API", By: auth.CallerOf(r.Context()).Name,
		}, actor(r))
	})
}

// enableDevice ends the maintenance of all accelerators of the device.
func (a *API) enableDevice(w http.ResponseWriter, r *http.Request) error {
	return a.administer(w, r, func(id uuid.UUID) (cyborg.Device, error) { return a.store.EnableDevice(r.Context(), id, actor(r)) })
}

// administer enables or disables the device in the path, with the given change.
// A device without accelerators cannot be administered; the error is then of
// kind ErrChanged.
func (a *API) administer(w http.ResponseWriter, r *http.Request, change func(id uuid.UUID) (cyborg.Device, error)) error {
	filter, err := a.chooseDevice(r)
	if err != nil {
		return err
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}
	if err := a.ignoredBody(w, r); err != nil {
		return err
	}

	// The changes need the UUID; the path may have the device's number.
	id := uuid.Nil
	if err := a.store.EachDevice(r.Context(), filter, db.Listing{}, func(d *db.ListedDevice) { id = d.UUID }); err != nil {
		return err
	}

	if id == uuid.Nil {
		return noDevice(pathText(r, "device"))
	}

	// The store changes what can be changed and returns the device, so a device
	// without deployables shows only here.
	device, err := change(id)
	switch {
	case err != nil:
		return err
	case len(device.Deployables) == 0:
		return cyborg.Errorf(cyborg.ErrChanged, "device %s has no deployable that could be enabled or disabled", id)
	}

	return writeEmpty(w, http.StatusNoContent)
}
