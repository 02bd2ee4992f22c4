package agents

import (
	"net"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// host answers whether the host is bound to the agent of whom the request is,
// and which duplicate agents are refused. It tells no instance.
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

	asked := r.Header.Values(agentapi.InstanceHeader)
	reply := agentapi.HostReply{
		Address: found.Address, LastSeen: found.LastSeen, Silent: found.Silent,
		GrantsOff:  e.config.GrantsValid == 0,
		OtherAgent: len(asked) > 0 && found.Instance != "" && !slices.Contains(asked, found.Instance),
	}
	for _, duplicate := range found.DuplicateAgents {
		reply.DuplicateAgents = append(reply.DuplicateAgents, agentapi.DuplicateAgent{Address: duplicate.Address})
	}

	return web.WriteJSON(w, http.StatusOK, reply)
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
