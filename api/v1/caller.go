package v1

import (
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
)

// callerView is the answer of GET /caller: who asks, and the time of this
// server's clock.
type callerView struct {
	Name string    `json:"name"`
	Role auth.Role `json:"role"`
	Time time.Time `json:"time"`
}

// showCaller tells callers under which name and role this server knows them.
func (a *API) showCaller(w http.ResponseWriter, r *http.Request) error {
	if q := readQuery(r); q.err != nil {
		return q.err
	}

	caller := auth.CallerOf(r.Context())
	return web.WriteJSON(w, http.StatusOK, callerView{Name: caller.Name, Role: caller.Role, Time: time.Now().UTC()})
}
