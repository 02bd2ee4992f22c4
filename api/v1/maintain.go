package v1

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
)

func (a *API) maintain(w http.ResponseWriter, r *http.Request) error {
	id, maintenance, err := a.readMaintenance(w, r)
	if err != nil {
		return err
	}
	accelerator, err := a.store.Maintain(r.Context(), id, maintenance, actor(r))
	if err != nil {
		return err
	}
	return writeAccelerator(w, accelerator)
}

// maintainDevice takes all accelerators of a device out of use, all or none.
func (a *API) maintainDevice(w http.ResponseWriter, r *http.Request) error {
	id, maintenance, err := a.readMaintenance(w, r)
	if err != nil {
		return err
	}
	device, err := a.store.MaintainDevice(r.Context(), id, maintenance, actor(r))
	if err != nil {
		return err
	}
	return web.WriteJSON(w, http.StatusOK, viewDevice(device))
}

func (a *API) readMaintenance(w http.ResponseWriter, r *http.Request) (uuid.UUID, cyborg.Maintenance, error) {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return id, cyborg.Maintenance{}, err
	}
	if q := readQuery(r); q.err != nil {
		return id, cyborg.Maintenance{}, q.err
	}
	o, err := a.body(w, r)
	if err != nil {
		return id, cyborg.Maintenance{}, err
	}
	maintenance := cyborg.Maintenance{
		Reason: o.name("reason", maxReason), Until: o.time("until"), By: auth.CallerOf(r.Context()).Name,
	}
	span := o.duration("for")
	switch {
	case maintenance.Reason == "":
		o.fail("reason is missing; say why, for whoever finds the accelerator out of use")
	case span > 0 && !maintenance.Until.IsZero():
		o.fail("the body has both until and for; give one")
	case span > 0: // whether it is over the database decides, by its clock
		maintenance.For = span
	}
	return id, maintenance, o.done()
}

func (a *API) enable(w http.ResponseWriter, r *http.Request) error {
	id, err := a.readEnable(w, r)
	if err != nil {
		return err
	}
	accelerator, err := a.store.Enable(r.Context(), id, actor(r))
	if err != nil {
		return err
	}
	return writeAccelerator(w, accelerator)
}

// enableDevice ends the maintenance of all accelerators of a device.
func (a *API) enableDevice(w http.ResponseWriter, r *http.Request) error {
	id, err := a.readEnable(w, r)
	if err != nil {
		return err
	}
	device, err := a.store.EnableDevice(r.Context(), id, actor(r))
	if err != nil {
		return err
	}
	return web.WriteJSON(w, http.StatusOK, viewDevice(device))
}

func (a *API) readEnable(w http.ResponseWriter, r *http.Request) (uuid.UUID, error) {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return id, err
	}
	if q := readQuery(r); q.err != nil {
		return id, q.err
	}
	return id, a.emptyBody(w, r)
}
