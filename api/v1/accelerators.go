package v1

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// listAccelerators lists the accelerators that match all filters, one page at a
// time; with near those of one host, the nearest first.
func (a *API) listAccelerators(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "uuid", "uuid_prefix", "name", "host", "driver", "backend", "device_type", "status", "device",
		"instance", "holder_host", "holder_service", "near", "limit", "marker")
	filter := db.AcceleratorFilter{
		UUIDs:     q.uuids("uuid"),
		UUIDRange: q.uuidRange("uuid_prefix"),
		Names:     q.texts("name"),
		Hosts:     q.texts("host"),
		Drivers:   q.texts("driver"),
		Backends:  q.texts("backend"),
		Statuses:  enumFilter(q, "status", cyborg.Statuses()),
		Devices:   q.uuids("device"),
		Near:      q.one("near"),
		Holder: q.holder(map[string]cyborg.HolderKind{
			"instance": cyborg.HolderInstance, "holder_host": cyborg.HolderHost, "holder_service": cyborg.HolderService,
		}),
	}

	for _, text := range q.texts("device_type") {
		filter.DeviceTypes = append(filter.DeviceTypes, cyborg.DeviceType(text))
	}

	page := q.uuidPage()
	if q.err != nil {
		return q.err
	}

	accelerators, err := a.store.Accelerators(r.Context(), filter, page)
	if err != nil {
		return err
	}

	return writeList(w, r, "accelerator", each(accelerators, viewAccelerator), page.Limit,
		func(acc acceleratorView) string { return acc.UUID.String() })
}

// showAccelerator answers with one accelerator and the ETag of its specs.
func (a *API) showAccelerator(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	accelerator, err := a.store.Accelerator(r.Context(), id)
	if err != nil {
		return err
	}

	return writeAccelerator(w, accelerator)
}

// writeAccelerator answers with one accelerator and the ETag of its specs.
func writeAccelerator(w http.ResponseWriter, accelerator cyborg.Accelerator) error {
	w.Header().Set("ETag", specTag(accelerator.SpecVersion))
	return web.WriteJSON(w, http.StatusOK, viewAccelerator(accelerator))
}

// specTag returns the ETag of a version of the specs.
func specTag(version int64) string { return strconv.Quote(strconv.FormatInt(version, 10)) }

// attachOrSetSpecs serves the two requests that the seed contract has under one
// method and path: with acc_specs in its body the request changes the specs;
// without acc_specs it attaches.
func (a *API) attachOrSetSpecs(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	if !o.has("acc_specs") {
		return a.attach(w, r, o)
	}

	for _, name := range []string{"name", "uuid", "instance", "host", "service"} {
		if o.has(name) {
			return cyborg.Errorf(cyborg.ErrInvalid, "the body has acc_specs, which change the specs, and %s, which attaches", name).
				WithHint("Send two requests.")
		}
	}

	// The route lets members in, because they may attach.
	if err := auth.Require(r.Context(), auth.Admin, "change acc_specs"); err != nil {
		return err
	}

	return a.changeSpecs(w, r, o)
}

// setSpecs changes the specs of an accelerator; it is the route of its own for
// that.
func (a *API) setSpecs(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	return a.changeSpecs(w, r, o)
}

// changeSpecs reads the patch of the specs and applies it. With If-Match, it
// does so only if nobody has changed the specs since the caller read them.
func (a *API) changeSpecs(w http.ResponseWriter, r *http.Request, o *object) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	if !o.has("acc_specs") {
		o.missing("acc_specs")
	}
	patch := o.specs("acc_specs")
	if err := o.done(); err != nil {
		return err
	}

	version, err := ifMatch(r)
	if err != nil {
		return err
	}

	accelerator, err := a.store.UpdateSpecs(r.Context(), id, patch, version, actor(r))
	if err != nil {
		return err
	}

	return writeAccelerator(w, accelerator)
}

// ifMatch reads the version of the specs that the caller expects from the
// header If-Match; 0 if it accepts any version.
func ifMatch(r *http.Request) (int64, error) {
	header := strings.TrimSpace(r.Header.Get("If-Match"))
	if header == "" || header == "*" {
		return 0, nil
	}

	// Proxies that compress answers make an ETag weak (W/), so a weak tag is
	// accepted as well.
	text := strings.TrimPrefix(header, "W/")
	version, err := strconv.ParseInt(strings.Trim(text, `"`), 10, 64)
	if err != nil || version < 1 || len(text) < 3 || text[0] != '"' || text[len(text)-1] != '"' {
		return 0, cyborg.Errorf(cyborg.ErrInvalid, "the header If-Match is %q, not the one ETag of an accelerator", web.Shorten(header)).
			WithHint("Send the ETag of your last GET as it was.")
	}

	return version, nil
}
