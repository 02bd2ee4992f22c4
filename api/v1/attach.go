package v1

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// holderProperties maps the names of properties and parameters that name a
// holder to the kind of that holder.
func holderProperties() map[string]cyborg.HolderKind {
	return map[string]cyborg.HolderKind{
		"instance": cyborg.HolderInstance, "host": cyborg.HolderHost, "service": cyborg.HolderService,
	}
}

// attach gives a free handle of the accelerator to an instance, a service, or
// the accelerator's own host. It attaches to the host if the body names no
// holder. The body may choose parameters of the handle.
func (a *API) attach(w http.ResponseWriter, r *http.Request, o *object) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	// The name and the UUID choose nothing here; they only confirm that the caller
	// means the accelerator in the path.
	name, same := o.name("name", maxName), o.uuid("uuid")
	holder, parameters := attachHolder(o), o.parameters("parameters")
	if same != uuid.Nil && same != id {
		o.fail("uuid is %s, but the path says %s", same, id)
	}

	if err := o.done(); err != nil {
		return err
	}

	choose := func(ctx context.Context) (cyborg.Request, error) {
		holder, err := a.chooseHolder(ctx, id, name, holder)
		return cyborg.AttachRequest{Accelerator: id, Holder: holder, Parameters: parameters}, err
	}

	return a.operate(w, r, work{choose: choose, body: o.canonical, done: a.showSubject})
}

// chooseHolder returns who is to get the handle: the accelerator's own host if
// the request names nobody. The name confirms which accelerator is meant; it may
// be empty.
func (a *API) chooseHolder(ctx context.Context, id uuid.UUID, name string, holder cyborg.Holder) (cyborg.Holder, error) {
	accelerator, err := a.store.Accelerator(ctx, id)
	if err != nil {
		return holder, err
	}

	if name != "" && name != accelerator.Name {
		return holder, cyborg.Errorf(cyborg.ErrChanged, "accelerator %s has the name %q, not %q", id, accelerator.Name, name)
	}

	switch {
	case holder.ID == "":
		holder = cyborg.Holder{Kind: cyborg.HolderHost, ID: accelerator.Host}
	case holder.Kind == cyborg.HolderHost && holder.ID != accelerator.Host:
		return holder, cyborg.Errorf(cyborg.ErrInvalid, "host is %q, but accelerator %s is on host %q", web.Shorten(holder.ID), id, accelerator.Host).
			WithHint("Leave host out to attach it to its own host.")
	}

	return holder, nil
}

// attachHolder reads who is to get the handle. It returns the zero holder if
// the body names nobody; naming two is an error.
func attachHolder(o *object) cyborg.Holder {
	var holder cyborg.Holder
	take := func(property string, kind cyborg.HolderKind, id string) {
		switch {
		case id == "":
		case holder.ID != "":
			o.fail("%s is %q, but the request also names %s %q; name one", property, web.Shorten(id), holder.Kind, web.Shorten(holder.ID))
		default:
			holder = cyborg.Holder{Kind: kind, ID: id}
		}
	}

	if instance := o.uuid("instance"); instance != uuid.Nil {
		take("instance", cyborg.HolderInstance, instance.String())
	}
	take("host", cyborg.HolderHost, o.name("host", maxName))
	take("service", cyborg.HolderService, o.name("service", maxName))

	return holder
}

// detach takes back the handles of one holder, or of all holders. With force,
// the handles are freed in the records alone, for a host that cannot do it
// itself; the hardware stays as it is, which is why force needs the role Admin.
func (a *API) detach(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	q := readQuery(r, "instance", "host", "service", "force")
	holder := q.holder(holderProperties())
	force := q.boolean("force")
	if q.err != nil {
		return q.err
	}

	request := cyborg.DetachRequest{Accelerator: id, Holder: holder, Force: force != nil && *force}
	if request.Force {
		if err := auth.Require(r.Context(), auth.Admin, "detach by force"); err != nil {
			return err
		}
	}

	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	return a.operate(w, r, work{
		request: db.Admission{Request: request},
		done:    noContent,
	})
}

// detachRole returns the role that a detach needs.
func detachRole(request cyborg.Request) auth.Role {
	if detach, ok := request.(cyborg.DetachRequest); ok && !detach.Force {
		return auth.Member
	}

	return auth.Admin
}

// noContent answers 204 for an operation that succeeded.
func noContent(w http.ResponseWriter, _ *http.Request, _ cyborg.Operation) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
