package novatest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// action is one in the list of what was done with an instance; without an end while it goes on.
type action struct {
	instance       uuid.UUID
	name, event    string
	request, user  string
	started, ended time.Time
	result         string
}

const succeeded = "Success"

// Act records that somebody had something done with an instance, which is over.
func (n *Nova) Act(id uuid.UUID, name, user string, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.actions = append(n.actions, &action{
		instance: id, name: name, event: "compute_" + name + "_instance", request: "req-" + uuid.NewString(), user: user,
		started: at, ended: at.Add(time.Second), result: succeeded,
	})
}

// HideActions answers whoever asks what was done with instances with 404.
func (n *Nova) HideActions() {
	n.Disturb(func(w http.ResponseWriter, r *http.Request) bool {
		hidden := strings.Contains(r.URL.Path, "/os-instance-actions")
		if hidden {
			answer(w, http.StatusNotFound, fault("itemNotFound", http.StatusNotFound, "The resource could not be found."))
		}
		return hidden
	})
}

// Hold has reboots go on until Release.
func (n *Nova) Hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held = true
}

// Release ends the reboots that go on, and those that come, with that result: Success, or Error.
func (n *Nova) Release(result string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held, n.outcome = false, result
	for _, a := range n.actions {
		if a.ended.IsZero() {
			n.finish(a)
		}
	}
}

// Reboots is how often somebody has asked for a reboot of the instance.
func (n *Nova) Reboots(id uuid.UUID) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := 0
	for _, a := range n.actions {
		if a.instance == id && a.name == "reboot" {
			count++
		}
	}
	return count
}

func (n *Nova) finish(a *action) {
	a.ended, a.result = time.Now(), n.outcome
	if i := n.instances[a.instance]; i != nil {
		i.Task, i.Status = "", Active
		if a.result != succeeded {
			i.Status = "ERROR"
		}
	}
}

// RebootHard has somebody ask for a hard reboot, and returns the id of that request.
func (n *Nova) RebootHard(id uuid.UUID, user string) (request string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.begin(n.instances[id], user)
}

func (n *Nova) begin(i *Instance, user string) (request string) {
	a := &action{
		instance: i.ID, name: "reboot", event: "compute_reboot_instance", request: "req-" + uuid.NewString(), user: user, started: time.Now(),
	}
	n.actions = append(n.actions, a)
	if i.Status, i.Task = "HARD_REBOOT", "rebooting_hard"; !n.held {
		n.finish(a)
	}
	return a.request
}

// reboot takes hard reboots, of our own user; we ask for nothing else.
func (n *Nova) reboot(w http.ResponseWriter, r *http.Request, i *Instance) {
	var body struct {
		Reboot struct{ Type string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Reboot.Type != "HARD" {
		answer(w, http.StatusBadRequest, fault("badRequest", http.StatusBadRequest, "Invalid input"))
		return
	}
	n.begin(i, openstacktest.OwnUserID)
	w.WriteHeader(http.StatusAccepted)
}

// listActions is the newest first, without their events.
func (n *Nova) listActions(w http.ResponseWriter, _ *http.Request, i *Instance) {
	list := []any{}
	for _, a := range slices.Backward(n.actions) {
		if a.instance == i.ID {
			list = append(list, a.view())
		}
	}
	answer(w, http.StatusOK, map[string]any{"instanceActions": list})
}

func (n *Nova) showAction(w http.ResponseWriter, r *http.Request, i *Instance) {
	for _, a := range n.actions {
		if a.instance == i.ID && a.request == r.PathValue("request") {
			shown := a.view()
			shown["events"] = []any{map[string]any{
				"event": a.event, "start_time": moment(a.started), "finish_time": moment(a.ended), "result": orNull(a.result),
			}}
			answer(w, http.StatusOK, map[string]any{"instanceAction": shown})
			return
		}
	}
	answer(w, http.StatusNotFound, fault("itemNotFound", http.StatusNotFound, "Action not found"))
}

func (a *action) view() map[string]any {
	return map[string]any{"action": a.name, "request_id": a.request, "user_id": a.user, "instance_uuid": a.instance, "start_time": moment(a.started)}
}

// moment is a time as Nova writes it.
func moment(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format("2006-01-02T15:04:05.000000")
}
