package v1

import (
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
)

func (a *API) maintain(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}
	if q := readQuery(r); q.err != nil {
		return q.err
	}
	o, err := a.body(w, r)
	if err != nil {
		return err
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
	case span > 0:
		maintenance.Until = time.Now().Add(span)
	case !maintenance.Until.IsZero() && !maintenance.Until.After(time.Now()):
		o.fail("until is %s, which is over", since(maintenance.Until))
	}
	if err := o.done(); err != nil {
		return err
	}
	accelerator, err := a.store.Maintain(r.Context(), id, maintenance, actor(r))
	if err != nil {
		return err
	}
	return writeAccelerator(w, accelerator)
}

func (a *API) enable(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}
	if q := readQuery(r); q.err != nil {
		return q.err
	}
	if err := a.emptyBody(w, r); err != nil {
		return err
	}
	accelerator, err := a.store.Enable(r.Context(), id, actor(r))
	if err != nil {
		return err
	}
	return writeAccelerator(w, accelerator)
}
