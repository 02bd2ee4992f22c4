package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// listDevices lists the devices that match all filters, one page at a time.
func (a *API) listDevices(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "uuid_prefix", "host", "type", "vendor_id", "limit", "marker")
	filter := db.DeviceFilter{UUIDRange: q.uuidRange("uuid_prefix"), Hosts: q.texts("host")}

	for _, text := range q.texts("vendor_id") {
		filter.Vendors = append(filter.Vendors, cyborg.PCIID(text))
	}
	for _, text := range q.texts("type") {
		filter.Types = append(filter.Types, cyborg.DeviceType(text))
	}

	page := q.uuidPage()
	if q.err != nil {
		return q.err
	}

	devices, err := a.store.Devices(r.Context(), filter, page)
	if err != nil {
		return err
	}

	return writeList(w, r, "device", each(devices, viewDevice), page.Limit,
		func(d deviceView) string { return d.UUID.String() })
}

// showDevice answers with one device and its accelerators.
func (a *API) showDevice(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	device, err := a.store.Device(r.Context(), id)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, viewDevice(device))
}
