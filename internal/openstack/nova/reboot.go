package nova

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"

	"github.com/cyborg-project/cyborg"
)

// action is an entry of an instance's action log: something that a user had
// Nova do with the instance.
type action struct {
	Action  string `json:"action"`
	Request string `json:"request_id"`
	User    string `json:"user_id"`
	Events  []struct {
		Event  string `json:"event"`
		Start  moment `json:"start_time"`
		Finish moment `json:"finish_time"`
		Result string `json:"result"`
	} `json:"events"`
}

// moment is a time in Nova's format: UTC without a zone, or null for a time
// that has not come yet.
type moment struct{ time.Time }

// UnmarshalJSON reads a time, or null.
func (m *moment) UnmarshalJSON(text []byte) (err error) {
	if string(text) == "null" {
		return nil
	}
	m.Time, err = time.Parse(`"2006-01-02T15:04:05.999999"`, string(text))
	return err
}

// recreatingActions lists the actions in which nova-compute creates the guest
// again and asks for its accelerators first, so that it has them afterwards
// whatever was lost before. A reboot is not among them: a soft reboot starts
// the guest as it was, and the log does not tell soft from hard reboots once
// they are over. HardReboot can tell while one is in progress.
func recreatingActions() []string {
	return []string{"create", "start", "rebuild", "evacuate", "unshelve"}
}

// Words of the action log.
const (
	reboot    = "reboot"
	succeeded = "Success"
)

// Created returns how long ago the instance's guest was last created, or created
// again, by Nova's clock; ever is false where the log has no such action that has
// succeeded. As far as Nova's clocks agree, the answer is up to a second too long,
// and not too short: nova-conductor notes when an action began, and the API, or a
// proxy before it, says what time it is. Errors are those of Instance.
func (n *Nova) Created(ctx context.Context, instance uuid.UUID) (ago time.Duration, ever bool, _ error) {
	actions, now, err := n.actions(ctx, instance)
	if err != nil {
		return 0, false, err
	}

	for _, a := range actions {
		if !slices.Contains(recreatingActions(), a.Action) {
			continue
		}

		a, err = n.action(ctx, instance, a.Request)
		if err != nil {
			return 0, false, err
		}

		// The action may still be in progress, or have failed; only a success counts.
		for _, e := range a.Events {
			if since := now.Sub(e.Start.Time); e.Result == succeeded && (!ever || since < ago) {
				ago, ever = since, true
			}
		}
		if ever { // the other actions are older
			break
		}
	}

	return ago, ever, nil
}

// hardRebootTasks lists the task states of a hard reboot
// (nova/compute/task_states.py, hard_reboot_states).
func hardRebootTasks() []string {
	return []string{"rebooting_hard", "reboot_pending_hard", "reboot_started_hard"}
}

// HardReboot returns the request id of the hard reboot that is in progress for
// the instance; "" where there is none. The newest reboot in the action log is
// the right one, because Nova accepts no soft reboot during a hard one. Errors
// are those of Instance.
func (n *Nova) HardReboot(ctx context.Context, instance uuid.UUID) (string, error) {
	found, err := n.Instance(ctx, instance)
	if err != nil || !slices.Contains(hardRebootTasks(), found.Task) {
		return "", err
	}

	actions, _, err := n.actions(ctx, instance)
	for _, a := range actions {
		if a.Action == reboot {
			return a.Request, err
		}
	}

	return "", err
}

// OwnReboots returns the request ids of the reboots that our own user has asked
// for. All of them are hard reboots, because this service asks for no others.
func (n *Nova) OwnReboots(ctx context.Context, instance uuid.UUID) ([]string, error) {
	user, err := n.session.User(ctx)
	if err != nil {
		return nil, err
	}

	actions, _, err := n.actions(ctx, instance)
	if err != nil {
		return nil, err
	}

	var requests []string
	for _, a := range actions {
		if a.Action == reboot && a.User == user {
			requests = append(requests, a.Request)
		}
	}

	return requests, nil
}

// RebootHard has Nova create the instance's guest again, with its accelerators.
// It returns once Nova has accepted that. Errors: ErrNotFound; ErrBusy while
// Nova has another task for the instance; ErrUnavailable, after which Nova may
// have accepted the reboot nevertheless.
func (n *Nova) RebootHard(ctx context.Context, instance uuid.UUID) error {
	client, err := n.client(ctx)
	if err != nil {
		return err
	}

	body := map[string]any{reboot: map[string]string{"type": "HARD"}}
	_, err = client.Post(ctx, client.ServiceURL("servers", instance.String(), "action"), body, nil, //nolint:bodyclose // there is none
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusAccepted}})

	switch {
	case err == nil:
		return nil
	case gophercloud.ResponseCodeIs(err, http.StatusNotFound):
		return noInstance(instance)
	case gophercloud.ResponseCodeIs(err, http.StatusConflict):
		return cyborg.Errorf(cyborg.ErrBusy, "Nova does not reboot instance %s now: %w", instance, err)
	}

	return unavailable(err)
}

// Rebooted reports whether the reboot of that request is over, and, if it has
// failed, how.
func (n *Nova) Rebooted(ctx context.Context, instance uuid.UUID, request string) (over bool, failure string, _ error) {
	a, err := n.action(ctx, instance, request)
	if err != nil {
		return false, "", err
	}

	for _, e := range a.Events {
		if e.Finish.IsZero() {
			continue
		}

		if e.Result == succeeded {
			return true, "", nil
		}
		return true, "Nova's " + e.Event + " ended with " + e.Result, nil
	}

	return false, "", nil
}

// actions returns the instance's action log without events, the newest action
// first, and the time of Nova's clock.
func (n *Nova) actions(ctx context.Context, instance uuid.UUID) (list []action, now time.Time, err error) {
	var found struct {
		Actions []action `json:"instanceActions"`
	}
	header, err := n.read(ctx, instance, &found, "servers", instance.String(), "os-instance-actions")
	return found.Actions, clockOf(header), err
}

// clockOf returns the time of the clock of whoever has answered for Nova (RFC 9110,
// Date). The header has whole seconds, so this is the latest that it can mean.
// Without the header, it is the time of our own clock.
func clockOf(header http.Header) time.Time {
	sent, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return time.Now()
	}
	return sent.Add(time.Second)
}

// action returns one action of the instance's log with its events.
func (n *Nova) action(ctx context.Context, instance uuid.UUID, request string) (action, error) {
	var one struct {
		Action action `json:"instanceAction"`
	}
	_, err := n.read(ctx, instance, &one, "servers", instance.String(), "os-instance-actions", request)
	return one.Action, err
}

// read reads something that belongs to an instance, and returns the header of the
// answer. Errors are those of Instance, so a 404 is ErrNotFound only if the
// instance itself does not exist.
func (n *Nova) read(ctx context.Context, instance uuid.UUID, into any, path ...string) (http.Header, error) {
	client, err := n.client(ctx)
	if err != nil {
		return nil, err
	}

	response, err := client.Get(ctx, client.ServiceURL(path...), into, nil) //nolint:bodyclose // gophercloud closes what it decodes
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		// Perhaps only the action is unknown, or hidden from our user.
		if _, gone := n.Instance(ctx, instance); gone != nil {
			return nil, gone
		}
	}

	if err != nil {
		return nil, unavailable(err)
	}
	return response.Header, nil
}
