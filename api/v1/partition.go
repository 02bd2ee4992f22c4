package v1

import (
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// partition divides a device into the parts of a layout, or makes it whole again. That
// decides what the device offers to everybody, and all that its former parts had is lost;
// therefore a partition needs the role Admin.
func (a *API) partition(w http.ResponseWriter, r *http.Request) error {
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

	request := cyborg.PartitionRequest{Device: id, Layout: o.layout("layout")}
	if err := o.done(); err != nil {
		return err
	}

	return a.operate(w, r, work{
		request: db.Admission{Request: request}, body: o.canonical, done: a.showPartitioned(id),
	})
}

// layout reads into how many parts of each kind a device is to be divided. It must be given,
// because the empty layout takes all parts away. Which kinds there are is known only where
// the device is.
func (o *object) layout(name string) cyborg.Layout {
	given := o.object(name)
	if given == nil {
		o.missing(name)
		return nil
	}

	kinds := slices.Sorted(maps.Keys(given.unread))
	if len(kinds) > cyborg.MaxPartKinds {
		o.fail("%s has %d kinds of parts, which are more than %d", given.path, len(kinds), cyborg.MaxPartKinds)
		return nil
	}

	layout := cyborg.Layout{}
	for _, kind := range kinds {
		if !cyborg.IsPartKind(kind) {
			o.fail("%s has %q, which is no name of a kind of parts, such as vf", given.path, web.Shorten(kind))
		}

		value, _ := given.take(kind)
		count, ok := value.(int64)
		if !ok || count < 1 || count > cyborg.MaxParts {
			o.fail("%s is %s, not a whole number from 1 to %d; the layout {} is the whole device", given.at(kind), web.Describe(value), cyborg.MaxParts)
		}
		layout[kind] = int(count)
	}

	_ = given.done() // the outer object returns the error
	return layout
}

// showPartitioned answers with the device as it is after the operation. If it has gone
// since, which only a repeated request finds, the answer is the operation.
func (a *API) showPartitioned(id uuid.UUID) func(http.ResponseWriter, *http.Request, cyborg.Operation) error {
	return func(w http.ResponseWriter, r *http.Request, op cyborg.Operation) error {
		device, err := a.store.Device(r.Context(), id)
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound:
			return writeAccepted(w, op)
		case err != nil:
			return err
		}

		return web.WriteJSON(w, http.StatusOK, viewDevice(device))
	}
}
