package v1

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// retire takes an accelerator out of service. The accelerator keeps its name.
func (a *API) retire(w http.ResponseWriter, r *http.Request) error {
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
		request: db.Admission{Request: cyborg.RetireRequest{Accelerator: id}},
		done:    a.showSubject,
	})
}
