package v1

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// provision takes an accelerator into service under a name: the accelerator in
// the path or the body, or else the best one that fits the specs.
func (a *API) provision(w http.ResponseWriter, r *http.Request) error {
	if q := readQuery(r); q.err != nil {
		return q.err
	}

	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	request := cyborg.ProvisionRequest{
		Name:        o.name("name", maxName),
		Accelerator: o.uuid("uuid"),
		Specs:       o.specs("acc_specs"),
		Host:        o.name("host", maxName),
	}

	if request.Name == "" {
		o.missing("name")
	}

	if err := o.done(); err != nil {
		return err
	}

	// The seed contract has a route with the UUID in the path, and another without.
	if chi.URLParam(r, "uuid") != "" {
		id, err := pathUUID(r, "uuid")
		if err != nil {
			return err
		}
		if request.Accelerator != uuid.Nil && request.Accelerator != id {
			return cyborg.Errorf(cyborg.ErrInvalid, "uuid is %s, but the path says %s", request.Accelerator, id)
		}
		request.Accelerator = id
	}

	return a.operate(w, r, work{
		request: db.Admission{Request: request}, body: o.canonical, done: created,
	})
}

// created answers 201, with the accelerator's location, when it is in service.
func created(w http.ResponseWriter, _ *http.Request, op cyborg.Operation) error {
	id, err := acceleratorOf(op)
	if err != nil {
		return err
	}

	w.Header().Set("Location", acceleratorLocation(id.String()))
	w.WriteHeader(http.StatusCreated)
	return nil
}

// makeReady takes an accelerator into service under its present name.
func (a *API) makeReady(w http.ResponseWriter, r *http.Request) error {
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

	return a.operate(w, r, work{
		request: db.Admission{Request: cyborg.ProvisionRequest{Accelerator: id}},
		done:    a.showSubject,
	})
}

// showSubject answers with the accelerator as it is after the operation. If it
// has gone since, which only a repeated request finds, the answer is the
// operation.
func (a *API) showSubject(w http.ResponseWriter, r *http.Request, op cyborg.Operation) error {
	id, err := acceleratorOf(op)
	if err != nil {
		return err
	}

	accelerator, err := a.store.Accelerator(r.Context(), id)
	switch {
	case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound:
		return writeAccepted(w, op)
	case err != nil:
		return err
	}

	return writeAccelerator(w, accelerator)
}

// acceleratorOf returns the accelerator on which an operation works.
func acceleratorOf(op cyborg.Operation) (uuid.UUID, error) {
	if id := op.Accelerator(); id != "" {
		return uuid.Parse(id)
	}
	return uuid.Nil, cyborg.Errorf(cyborg.ErrInternal, "operation %s is about no accelerator", op.ID)
}
