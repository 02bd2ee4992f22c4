package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// driftView is a difference as the API shows it. RepairedAt is zero while the
// difference is not repaired, or when nobody but an operator can repair it.
type driftView struct {
	cyborg.Drift

	Repaired bool `json:"repaired"`
}

// listDrift lists the differences that were found between the records and
// OpenStack Placement, Nova, the whitelist file of a host, or how its devices are divided.
func (a *API) listDrift(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "host", "class", "repaired", "limit", "marker")
	filter := db.DriftFilter{Hosts: q.texts("host"), Classes: enumFilter(q, "class", cyborg.DriftClasses())}

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
