// Package novatest is a Nova for tests: it has instances, takes events of them, and reboots them as the real one does (version 2.1
// of the Compute API, Zed). Only tests import it.
package novatest

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"github.com/google/uuid"
)

// Nova is one with its instances. It is served below /v2.1.
type Nova struct {
	routes  *http.ServeMux
	trusted func(token string) bool

	mu        sync.Mutex
	instances map[uuid.UUID]*Instance
	events    []Event
	actions   []*action
	held      bool
	outcome   string // of reboots
	disturb   func(w http.ResponseWriter, r *http.Request) bool
}

// The states of instances that tests set.
const (
	Active  = "ACTIVE"
	ShutOff = "SHUTOFF"
)

// Instance is one of Nova's.
type Instance struct {
	ID         uuid.UUID
	Project    string
	Status     string
	Task       string
	Host       string // empty for none
	HostStatus string // UP where it is empty
	// Partial is one of which only the status is known, as where its cell is down.
	Partial bool
}

// Event is one that was sent, whether or not there is such an instance.
type Event struct {
	Name     string    `json:"name"`
	Instance uuid.UUID `json:"server_uuid"`
	Tag      string    `json:"tag"`
	Status   string    `json:"status"`
	Code     int       `json:"code"` // that it was answered with
}

// New returns one without instances, for those who have a good token.
func New(trusted func(token string) bool) *Nova {
	n := &Nova{routes: http.NewServeMux(), trusted: trusted, instances: map[uuid.UUID]*Instance{}, outcome: succeeded}
	n.routes.HandleFunc("POST /v2.1/os-server-external-events", n.take)
	n.routes.HandleFunc("GET /v2.1/servers/detail", n.list)
	n.routes.HandleFunc("GET /v2.1/servers/{id}", n.of(n.show))
	n.routes.HandleFunc("POST /v2.1/servers/{id}/action", n.of(n.reboot))
	n.routes.HandleFunc("GET /v2.1/servers/{id}/os-instance-actions", n.of(n.listActions))
	n.routes.HandleFunc("GET /v2.1/servers/{id}/os-instance-actions/{request}", n.of(n.showAction))
	return n
}

// Boot makes an instance that runs.
func (n *Nova) Boot(instance uuid.UUID, project string) {
	n.Set(Instance{ID: instance, Project: project, Status: Active})
}

// Set has an instance be so.
func (n *Nova) Set(i Instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.instances[i.ID] = &i
}

// Delete deletes an instance.
func (n *Nova) Delete(instance uuid.UUID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.instances, instance)
}

// Events are all that were sent, oldest first.
func (n *Nova) Events() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.events)
}

// Disturb answers requests in the model's place where it returns true; nil ends that.
func (n *Nova) Disturb(with func(w http.ResponseWriter, r *http.Request) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disturb = with
}

// ServeHTTP answers as Nova does.
func (n *Nova) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	disturb := n.disturb
	n.mu.Unlock()
	if disturb != nil && disturb(w, r) {
		return
	}
	if !n.trusted(r.Header.Get("X-Auth-Token")) {
		answer(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": http.StatusUnauthorized, "message": "The request you have made requires authentication."}})
		return
	}
	n.routes.ServeHTTP(w, r)
}

// take answers each event with a code of its own: 404 where there is no such instance.
func (n *Nova) take(w http.ResponseWriter, r *http.Request) {
	var sent struct {
		Events []Event `json:"events"`
	}
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || len(sent.Events) == 0 {
		answer(w, http.StatusBadRequest, fault("badRequest", http.StatusBadRequest, "Invalid input"))
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	gone := 0
	for i := range sent.Events {
		e := &sent.Events[i]
		if e.Code = http.StatusOK; n.instances[e.Instance] == nil {
			e.Code = http.StatusNotFound
			gone++
		}
		n.events = append(n.events, *e)
	}
	switch gone {
	case 0:
		answer(w, http.StatusOK, sent)
	case len(sent.Events):
		answer(w, http.StatusNotFound, fault("itemNotFound", http.StatusNotFound, "No instances found for any event"))
	default:
		answer(w, http.StatusMultiStatus, sent)
	}
}

func (n *Nova) list(w http.ResponseWriter, r *http.Request) {
	servers := []any{}
	if id, err := uuid.Parse(r.URL.Query().Get("uuid")); err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		if i := n.instances[id]; i != nil {
			servers = append(servers, server(i))
		}
	}
	answer(w, http.StatusOK, map[string]any{"servers": servers})
}

// of finds the instance that a request is about, and has it answered with the model locked.
func (n *Nova) of(handle func(w http.ResponseWriter, r *http.Request, i *Instance)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		id, err := uuid.Parse(r.PathValue("id"))
		if err != nil || n.instances[id] == nil {
			answer(w, http.StatusNotFound, fault("itemNotFound", http.StatusNotFound, "Instance "+r.PathValue("id")+" could not be found."))
			return
		}
		handle(w, r, n.instances[id])
	}
}

func (*Nova) show(w http.ResponseWriter, _ *http.Request, i *Instance) {
	answer(w, http.StatusOK, map[string]any{"server": server(i)})
}

func server(i *Instance) map[string]any {
	if i.Partial {
		return map[string]any{"id": i.ID, "tenant_id": i.Project, "status": i.Status}
	}
	return map[string]any{
		"id": i.ID, "tenant_id": i.Project, "status": i.Status, "OS-EXT-STS:task_state": orNull(i.Task),
		"OS-EXT-SRV-ATTR:hypervisor_hostname": orNull(i.Host), "OS-EXT-SRV-ATTR:host": orNull(i.Host),
		"host_status": cmp.Or(i.HostStatus, "UP"),
	}
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func fault(name string, code int, message string) map[string]any {
	return map[string]any{name: map[string]any{"code": code, "message": message}}
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) //nolint:errchkjson // a client that is gone is no matter of ours
}
