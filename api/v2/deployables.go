package v2

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// deployableWriter writes deployables as JSON. See text for why they are not
// marshalled.
type deployableWriter struct {
	list

	self, bookmark string // links, without the UUID

	attributes map[string]string // results of attributesList, by its argument

	err error // the first row that could not be written
}

// deployableWriter returns a writer whose links fit the request.
func (a *API) deployableWriter(r *http.Request) *deployableWriter {
	base := a.base(r)

	return &deployableWriter{
		list: a.newList(), self: escaped(base + linkPrefix + "/deployables/"), bookmark: escaped(base + "/accelerator/deployables/"),
		attributes: map[string]string{},
	}
}

// deployable appends one deployable. The order of the members is upstream's.
func (w *deployableWriter) deployable(d *db.ListedDeployable) {
	id, provider := idOf(d.UUID), idOf(d.ProviderUUID)

	w.raw(`{"uuid":`)
	w.id(&id)
	w.raw(`,"parent_id":null,"root_id":null,"name":`)
	w.string(d.Name)
	w.raw(`,"num_accelerators":`)
	w.number(int64(d.Accelerators))
	w.raw(`,"device_id":`)
	w.number(d.Device)
	w.raw(`,"attributes_list":`)
	w.raw(w.attributesList(d.Attributes))
	w.raw(`,"rp_uuid":`)
	w.id(&provider)
	w.raw(`,"driver_name":`)
	w.orNull(d.Driver)
	w.raw(`,"bitstream_id":`)
	w.orNull(d.BitstreamID)
	w.raw(`,"links":[`)
	w.link(w.self, &id, "self")
	w.raw(",")
	w.link(w.bookmark, &id, "bookmark")
	w.raw(`],"created_at":`)
	w.instant(d.CreatedAt)
	w.raw(`,"updated_at":`)
	w.since(d.CreatedAt, d.UpdatedAt)
	w.raw("}")
}

// attributesList returns the attributes as upstream lists them: a JSON list
// with one object for each attribute, itself encoded as a JSON text. Many
// deployables have the same attributes, so results are kept for the rest of the
// list.
func (w *deployableWriter) attributesList(attributes []byte) string {
	if known, ok := w.attributes[string(attributes)]; ok {
		return known
	}

	var parsed []cyborg.Attribute
	if err := json.Unmarshal(attributes, &parsed); err != nil {
		w.err = cyborg.Errorf(cyborg.ErrInternal, "the attributes of a deployable: %w", err)
		return "null"
	}

	// inner is the list; out is the list as a JSON text. The spaces are those of
	// Python's json.dumps.
	var inner, out text

	inner.raw("[")
	for i, a := range parsed {
		if i > 0 {
			inner.raw(", ")
		}
		inner.raw("{")
		inner.string(a.Key)
		inner.raw(": ")
		inner.string(a.Value)
		inner.raw("}")
	}
	inner.raw("]")
	out.string(string(inner))

	w.attributes[string(attributes)] = string(out)
	return string(out)
}

// listDeployables answers with the deployables that match the query.
func (a *API) listDeployables(w http.ResponseWriter, r *http.Request) error {
	q := readArguments(r, append(listingArguments(), "name", "hostname", "device_id", filterFields, filterValues)...)
	filters := q.filters()

	var filter db.DeployableFilter
	if q.has("name") {
		filter.Names = []string{q.text("name")}
	}
	if q.has("hostname") {
		filter.Hosts = []string{q.text("hostname")}
	}
	if q.has("device_id") {
		filter.Devices = []int64{int64(q.whole("device_id"))}
	}

	listing := q.listing(filters)
	if q.err != nil {
		return q.err
	}

	out := a.deployableWriter(r)
	// The rows are written while the database returns them; see text.
	out.raw(`{"deployables":[`)

	first := len(out.text)
	err := a.store.EachDeployable(r.Context(), filter, listing, func(d *db.ListedDeployable) {
		if len(out.text) > first {
			out.raw(",")
		}
		out.deployable(d)
	})
	if err != nil || out.err != nil {
		return firstError(err, out.err)
	}

	out.raw("]}")
	return a.write(w, out.text)
}

// showDeployable answers with one deployable, by its UUID or its number.
func (a *API) showDeployable(w http.ResponseWriter, r *http.Request) error {
	filter, err := chooseDeployable("the deployable in the path", pathText(r, "deployable"))
	if err != nil {
		return err
	}

	if q := readArguments(r); q.err != nil {
		return q.err
	}

	return a.writeDeployable(w, r, filter)
}

// writeDeployable answers with one deployable, or with 404.
func (a *API) writeDeployable(w http.ResponseWriter, r *http.Request, filter db.DeployableFilter) error {
	out := a.deployableWriter(r)
	if err := a.store.EachDeployable(r.Context(), filter, db.Listing{}, out.deployable); err != nil || out.err != nil {
		return firstError(err, out.err)
	}
	if len(out.text) == 0 {
		return noDeployable(filter)
	}
	return a.write(w, out.text)
}

// firstError returns the first error that is not nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// chooseDeployable reads the UUID or the number of a deployable. place says in
// an error where the text was found.
func chooseDeployable(place, text string) (db.DeployableFilter, error) {
	if id, ok := parseUUID(text); ok {
		return db.DeployableFilter{UUIDs: []uuid.UUID{id}}, nil
	}
	if number, ok := parseNumber(text); ok {
		return db.DeployableFilter{IDs: []int64{number}}, nil
	}
	return db.DeployableFilter{}, cyborg.Errorf(cyborg.ErrInvalid, "Expected a uuid but received %s, in %s", web.Shorten(text), place)
}

// noDeployable is the error for a deployable that does not exist, in upstream's
// words.
func noDeployable(filter db.DeployableFilter) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "Deployable not found with uuid=%s", filter)
}
