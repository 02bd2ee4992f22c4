package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// operationEvents streams the events of an operation from its beginning, and
// ends the stream when the operation ends.
func (a *API) operationEvents(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "id")
	if err != nil {
		return err
	}

	q := readQuery(r, "after")
	after, _ := cursor(r, q)
	if q.err != nil {
		return q.err
	}

	// A stream of an unknown operation would wait for ever, so it is refused at
	// once.
	if _, err := a.store.Operation(r.Context(), id); err != nil {
		return err
	}

	// The filter selects what the operation caused, and what happened to the
	// operation itself.
	s := &stream{
		api: a, after: after, operation: id,
		filter: db.EventFilter{
			Operation: id,
			Subjects:  []cyborg.Subject{{Kind: cyborg.SubjectOperation, ID: id.String()}},
		},
	}

	return s.serve(w, r)
}

// events streams the events of everything, from now on, or from the place where
// the caller was.
func (a *API) events(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "after", "host", "accelerator", "device", "operation")
	s := &stream{api: a, filter: db.EventFilter{Hosts: q.texts("host"), Operation: q.uuid("operation")}}

	for name, kind := range map[string]cyborg.SubjectKind{
		"accelerator": cyborg.SubjectAccelerator, "device": cyborg.SubjectDevice,
	} {
		for _, id := range q.uuids(name) {
			s.filter.Subjects = append(s.filter.Subjects, cyborg.Subject{Kind: kind, ID: id.String()})
		}
	}

	after, given := cursor(r, q)
	if q.err != nil {
		return q.err
	}

	s.after = after
	if !given {
		newest, err := a.store.LastCursor(r.Context())
		if err != nil {
			return err
		}
		s.after = newest
	}

	return s.serve(w, r)
}

// cursor reads the place after which a stream begins: from the header
// Last-Event-ID, which a browser sends when it reconnects, else from the
// parameter after. given is false if there is neither.
func cursor(r *http.Request, q *query) (at cyborg.Cursor, given bool) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = q.one("after")
	}

	at, err := cyborg.ParseCursor(text)
	if err != nil {
		q.fail(err)
	}

	return at, text != ""
}
