package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// A history lists the events of something, oldest first. It outlives its
// subject: it can be read as long as the events are kept.

// acceleratorHistory lists the events of an accelerator and of its handles.
func (a *API) acceleratorHistory(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	// An accelerator that is gone has no handles to ask for, but its own events.
	accelerator, err := a.store.Accelerator(r.Context(), id)
	accelerator.UUID = id

	return a.history(w, r, db.EventFilter{Subjects: subjects(accelerator)}, err)
}

// deviceHistory lists the events of a device, and of its accelerators and their
// handles.
func (a *API) deviceHistory(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	device, err := a.store.Device(r.Context(), id)
	filter := db.EventFilter{Subjects: []cyborg.Subject{{Kind: cyborg.SubjectDevice, ID: id.String()}}}

	for _, accelerator := range device.Deployables {
		filter.Subjects = append(filter.Subjects, subjects(accelerator)...)
	}

	return a.history(w, r, filter, err)
}

// hostHistory lists the events of everything on a host.
func (a *API) hostHistory(w http.ResponseWriter, r *http.Request) error {
	name, err := pathText(r, "host")
	if err != nil {
		return err
	}

	_, err = a.store.Host(r.Context(), name)
	return a.history(w, r, db.EventFilter{Hosts: []string{name}}, err)
}

// operationHistory lists the events that an operation caused.
func (a *API) operationHistory(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}

	_, err = a.store.Operation(r.Context(), id)
	return a.history(w, r, db.EventFilter{Operation: id}, err)
}

// subjects returns an accelerator and its handles as subjects of events.
func subjects(accelerator cyborg.Accelerator) []cyborg.Subject {
	all := []cyborg.Subject{{Kind: cyborg.SubjectAccelerator, ID: accelerator.UUID.String()}}

	for _, handle := range accelerator.Handles {
		all = append(all, cyborg.Subject{Kind: cyborg.SubjectHandle, ID: handle.UUID.String()})
	}

	return all
}

// history answers with a page of the events that the filter selects. lookupErr
// is the error with which their subject was read: if the subject is gone but
// has events, the history is still shown.
func (a *API) history(w http.ResponseWriter, r *http.Request, filter db.EventFilter, lookupErr error) error {
	q := readQuery(r, "limit", "marker")
	limit := q.limit()

	after, err := cyborg.ParseCursor(q.one("marker"))
	if err != nil {
		q.fail(err)
	}

	if q.err != nil {
		return q.err
	}

	if lookupErr != nil && cyborg.ErrorKindOf(lookupErr) != cyborg.ErrNotFound {
		return lookupErr
	}

	events, err := a.store.Events(r.Context(), filter, after, limit)
	if err != nil {
		return err
	}

	// No events on the first page: nothing of that name ever was, so the answer is
	// the error of kind ErrNotFound.
	if lookupErr != nil && len(events) == 0 && after == (cyborg.Cursor{}) {
		return lookupErr
	}

	return writeList(w, r, "event", events, limit, func(e cyborg.Event) string { return e.Cursor.String() })
}
