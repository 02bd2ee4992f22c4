package v1

import (
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
)

// callerView is the answer of GET /caller: who asks, the time of this server's
// clock, and for admins, what its set-up leaves open.
type callerView struct {
	Name string    `json:"name"`
	Role auth.Role `json:"role"`
	Time time.Time `json:"time"`

	Warnings []Warning `json:"warnings,omitempty"`
}

// Warning is one thing that a server's set-up leaves open.
type Warning struct {
	Check string `json:"check"` // what was looked at
	Found string `json:"found"`
	Do    string `json:"do"` // the remedy
}

// showCaller tells callers under which name and role this server knows them.
func (a *API) showCaller(w http.ResponseWriter, r *http.Request) error {
	if q := readQuery(r); q.err != nil {
		return q.err
	}

	caller := auth.CallerOf(r.Context())
	view := callerView{Name: caller.Name, Role: caller.Role}
	if caller.Role == auth.Admin && a.config.Warnings != nil {
		view.Warnings = a.config.Warnings(r.Context())
	}
	view.Time = time.Now().UTC() // last: whoever asks compares it with the time of the answer
	return web.WriteJSON(w, http.StatusOK, view)
}
