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

// action is an entry of an instance's action log. Its end is zero while it is
// in progress.
type action struct {
	instance       uuid.UUID
	name, event    string
	request, user  string
	started, ended time.Time
	result         string
}

const succeeded = "Success"

// Act adds a finished, successful action to an instance's log.
func (n *Nova) Act(id uuid.UUID, name, user string, at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.actions = append(n.actions, &action{
		instance: id, name: name, event: "compute_" + name + "_instance", request: "req-" + uuid.NewString(), user: user,
		started: at, ended: at.Add(time.Second), result: succeeded,
	})
}

// HideActions answers 404 to requests for action logs.
func (n *Nova) HideActions() {
	n.Disturb(func(w http.ResponseWriter, r *http.Request) bool {
		hidden := strings.Contains(r.URL.Path, "/os-instance-actions")
		if hidden {
			answer(w, http.StatusNotFound, fault("itemNotFound", http.StatusNotFound, "The resource could not be found."))
		}

		return hidden
	})
}

// Hold keeps reboots in progress until Release.
func (n *Nova) Hold() {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.held = true
}

// Release ends the reboots in progress with that result, Success or Error.
// Later reboots end at once with the same result.
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

// Reboots returns how many reboots of the instance were asked for.
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

// finish ends a reboot. A failed one leaves the instance in ERROR. The caller
// holds the lock.
func (n *Nova) finish(a *action) {
	a.ended, a.result = n.now(), n.outcome
	if i := n.instances[a.instance]; i != nil {
		i.Task, i.Status = "", Active
		if a.result != succeeded {
			i.Status = "ERROR"
		}
	}
}

// RebootHard has a user ask for a hard reboot, and returns the id of that
// request.
func (n *Nova) RebootHard(id uuid.UUID, user string) (request string) {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.begin(n.instances[id], user)
}

// begin starts a hard reboot, which ends at once unless reboots are held. The
// caller holds the lock.
func (n *Nova) begin(i *Instance, user string) (request string) {
	a := &action{
		instance: i.ID, name: "reboot", event: "compute_reboot_instance", request: "req-" + uuid.NewString(), user: user, started: n.now(),
	}

	n.actions = append(n.actions, a)
	i.Status, i.Task = "HARD_REBOOT", "rebooting_hard"
	if !n.held {
		n.finish(a)
	}

	return a.request
}

// reboot starts a hard reboot for our own user. It rejects soft ones, because
// the server asks for none.
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

// listActions answers with the instance's actions, newest first, without their
// events.
func (n *Nova) listActions(w http.ResponseWriter, _ *http.Request, i *Instance) {
	list := []any{}
	for _, a := range slices.Backward(n.actions) {
		if a.instance == i.ID {
			list = append(list, a.view())
		}
	}

	answer(w, http.StatusOK, map[string]any{"instanceActions": list})
}

// showAction answers with one action and its events.
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

// moment formats a time as Nova does.
func moment(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return at.UTC().Format("2006-01-02T15:04:05.000000")
}
