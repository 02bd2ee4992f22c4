package v1

import (
	"crypto/rand"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// Invitation is what a host must know to enroll, besides its token.
type Invitation struct {
	// Pin returns the pin of the authority that signs the certificates of hosts. The
	// error is of kind ErrNotFound where there is none. Nil is as good.
	Pin func() (string, error)
	// Server is a URL of the agent endpoint; empty where this process knows none.
	Server string
}

// invitedFor is how long a token is good.
const invitedFor = 15 * time.Minute

// invitationView is the answer to whoever invites a host. It is the only place
// where the token is ever shown.
type invitationView struct {
	Host      string    `json:"host"`
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
	Pin       string    `json:"pin"`
	Server    string    `json:"server,omitempty"`
}

// enroll invites a host to enroll: it makes a token that is good for one
// certificate of the host, which need not be known yet.
func (a *API) enroll(w http.ResponseWriter, r *http.Request) error {
	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	host, err := a.hostName(r)
	if err != nil {
		return err
	}

	if a.config.Invitation.Pin == nil {
		return cyborg.Errorf(cyborg.ErrNotFound, "no host can enroll here")
	}
	pin, err := a.config.Invitation.Pin()
	if err != nil {
		return err
	}

	token := rand.Text()
	until, err := a.store.InviteHost(r.Context(), host, token, invitedFor, actor(r))
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, invitationView{
		Host: host, Token: token, ExpiresAt: until.UTC(), Pin: pin, Server: a.config.Invitation.Server,
	})
}

// revoke makes the certificates that a host has got until now count no more.
func (a *API) revoke(w http.ResponseWriter, r *http.Request) error {
	host, err := a.hostName(r)
	if err != nil {
		return err
	}

	o, err := a.body(w, r)
	if err != nil {
		return err
	}
	reason := o.name("reason", maxReason)
	if err := o.done(); err != nil {
		return err
	}

	if err := a.store.RevokeHost(r.Context(), host, reason, actor(r)); err != nil {
		return err
	}

	w.WriteHeader(http.StatusNoContent)
	return nil
}

// hostName reads the name in the path of a host that need not be known, for
// requests without parameters.
func (a *API) hostName(r *http.Request) (string, error) {
	name, err := pathText(r, "host")
	if err != nil {
		return "", err
	}

	if q := readQuery(r); q.err != nil {
		return "", q.err
	}
	return name, cyborg.CheckHostName(name)
}
