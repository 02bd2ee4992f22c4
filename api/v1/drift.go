package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// driftView is a difference as the API shows it. What cannot be repaired without somebody, or is not yet, has no time at
// which it was.
type driftView struct {
	cyborg.Drift

	Repaired bool `json:"repaired"`
}

// listDrift lists in what OpenStack Placement, Nova, or the file of a host's whitelist and the records differed.
func (a *API) listDrift(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "host", "class", "repaired", "limit", "marker")
	filter := db.DriftFilter{Hosts: q.texts("host"), Classes: words(q, "class", cyborg.DriftClasses())}
	if repaired := q.boolean("repaired"); repaired != nil {
		open := !*repaired
		filter.Open = &open
	}
	page := q.page()
	if q.err != nil {
		return q.err
	}
	found, err := a.store.Drift(r.Context(), filter, page)
	if err != nil {
		return err
	}
	views := each(found, func(d cyborg.Drift) driftView { return driftView{Drift: d, Repaired: !d.RepairedAt.IsZero()} })
	return writeList(w, r, "drift", views, page.Limit, func(v driftView) string { return v.Key() })
}
