// Package novatest is a Nova for tests. It has instances, receives external
// events for them, and reboots them as the real one does (version 2.1 of the
// Compute API, Zed). Only tests import it.
package novatest

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Nova is the service with its instances. It serves paths below /v2.1. Its
// methods are safe for concurrent use.
type Nova struct {
	routes  *http.ServeMux
	trusted func(token string) bool

	mu        sync.Mutex // guards the fields below
	instances map[uuid.UUID]*Instance
	events    []Event
	actions   []*action
	ahead     time.Duration // of this machine's clock
	held      bool          // reboots do not end
	outcome   string        // result of reboots
	disturb   func(w http.ResponseWriter, r *http.Request) bool
}

// The statuses of instances that tests use.
const (
	Active  = "ACTIVE"
	ShutOff = "SHUTOFF"
)

// Instance is an instance.
type Instance struct {
	ID         uuid.UUID
	Project    string
	Status     string
	Task       string
	Host       string // empty: on no host
	HostStatus string // empty: UP
	// Partial hides everything but the status, as Nova does while the instance's
	// cell is down.
	Partial bool
}

// Event is an event that was sent, whether or not its instance exists.
type Event struct {
	Name     string    `json:"name"`
	Instance uuid.UUID `json:"server_uuid"`
	Tag      string    `json:"tag"`
	Status   string    `json:"status"`
	Code     int       `json:"code"` // code of the answer
}

// New returns a Nova without instances. It answers requests whose token is
// trusted.
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

// Boot creates an active instance.
func (n *Nova) Boot(instance uuid.UUID, project string) {
	n.Set(Instance{ID: instance, Project: project, Status: Active})
}

// Set creates or replaces an instance.
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

// Events returns all events that were sent, oldest first.
func (n *Nova) Events() []Event {
	n.mu.Lock()
	defer n.mu.Unlock()

	return slices.Clone(n.events)
}

// Disturb sets a function that may answer requests instead: where it returns
// true, it has answered. nil removes it.
func (n *Nova) Disturb(with func(w http.ResponseWriter, r *http.Request) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.disturb = with
}

// SetClock sets Nova's clock ahead of this machine's.
func (n *Nova) SetClock(ahead time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.ahead = ahead
}

// now is the time of Nova's clock. The caller holds the lock.
func (n *Nova) now() time.Time { return time.Now().Add(n.ahead) }

// ServeHTTP answers as Nova does.
func (n *Nova) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	disturb := n.disturb
	w.Header().Set("Date", n.now().UTC().Format(http.TimeFormat))
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

// take answers each event with a code of its own: 404 if its instance does not
// exist.
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
		e.Code = http.StatusOK
		if n.instances[e.Instance] == nil {
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

// list answers with the instance of the argument uuid, if it exists.
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

// of finds the instance in the path and calls the handler with the model
// locked.
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

// server returns an instance as the Compute API shows it.
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
