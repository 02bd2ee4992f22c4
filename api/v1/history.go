package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// A history lists what happened to something, oldest first. It outlives what it is about, as long as the events are kept.

func (a *API) acceleratorHistory(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}
	accelerator, err := a.store.Accelerator(r.Context(), id)
	accelerator.UUID = id
	return a.history(w, r, db.EventFilter{Subjects: subjects(accelerator)}, err)
}

// deviceHistory is also that of the device's accelerators.
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

func (a *API) hostHistory(w http.ResponseWriter, r *http.Request) error {
	name, err := pathText(r, "host")
	if err != nil {
		return err
	}
	_, err = a.store.Host(r.Context(), name)
	return a.history(w, r, db.EventFilter{Hosts: []string{name}}, err)
}

func (a *API) operationHistory(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}
	_, err = a.store.Operation(r.Context(), id)
	return a.history(w, r, db.EventFilter{Operation: id}, err)
}

// subjects are an accelerator and its handles.
func subjects(accelerator cyborg.Accelerator) []cyborg.Subject {
	all := []cyborg.Subject{{Kind: cyborg.SubjectAccelerator, ID: accelerator.UUID.String()}}
	for _, handle := range accelerator.Handles {
		all = append(all, cyborg.Subject{Kind: cyborg.SubjectHandle, ID: handle.UUID.String()})
	}
	return all
}

// history answers with a page of events. Missing is why what they are about could not be read; where that is because it
// is gone, its events are still told.
func (a *API) history(w http.ResponseWriter, r *http.Request, filter db.EventFilter, missing error) error {
	q := readQuery(r, "limit", "marker")
	limit := q.limit()
	after, err := cyborg.ParseCursor(q.one("marker"))
	if err != nil {
		q.fail(err)
	}
	if q.err != nil {
		return q.err
	}
	if missing != nil && cyborg.ErrorKindOf(missing) != cyborg.ErrNotFound {
		return missing
	}
	events, err := a.store.Events(r.Context(), filter, after, limit)
	if err != nil {
		return err
	}
	if missing != nil && len(events) == 0 && after == (cyborg.Cursor{}) {
		return missing
	}
	return writeList(w, r, "event", events, limit, func(e cyborg.Event) string { return e.Cursor.String() })
}
