package agents

import (
	"net"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// host answers an agent with the record of its host: which agent the host is
// bound to, and which duplicate agents are refused.
func (e *endpoint) host(w http.ResponseWriter, r *http.Request) error {
	name := chi.URLParam(r, "host")
	if err := cyborg.CheckHostName(name); err != nil {
		return err
	}

	if err := e.authorizeHost(r, name); err != nil {
		return err
	}

	found, err := e.deps.Records.Host(r.Context(), name)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, found)
}

// address returns the address that a request came from, without the port. An
// agent in this process is on this machine.
func address(r *http.Request) string {
	if inProcess(r) {
		return "127.0.0.1"
	}

	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}

	return host
}
