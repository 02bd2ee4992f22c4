package v1

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
)

// maintain takes an accelerator out of use. What is attached stays attached;
// nothing new is.
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

// readMaintenance reads a request to take something out of use: the reason, and
// when the maintenance ends by itself.
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
		o.fail("reason is missing; others will want to know why the accelerator is out of use")
	case span > 0 && !maintenance.Until.IsZero():
		o.fail("the body has both until and for; give one")
	case span > 0: // the database computes the end, by its own clock
		maintenance.For = span
	}

	return id, maintenance, o.done()
}

// enable ends the maintenance of an accelerator.
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

// readEnable reads the UUID of what is to be enabled. It refuses a request that
// says anything else.
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
