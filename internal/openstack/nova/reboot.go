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

// action is one thing that somebody had Nova do with an instance.
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

// moment is a time as Nova writes it: in UTC, without a zone; null before it has come.
type moment struct{ time.Time }

// UnmarshalJSON reads it.
func (m *moment) UnmarshalJSON(text []byte) (err error) {
	if string(text) == "null" {
		return nil
	}
	m.Time, err = time.Parse(`"2006-01-02T15:04:05.999999"`, string(text))
	return err
}

// recreating are the actions in which nova-compute makes the guest anew, and asks for its accelerators before: what the guest
// had before does not matter. A reboot is none of them: a soft one starts the guest as it was, and Nova does not tell the two
// apart when they are over. HardReboot does while one goes on.
func recreating() []string { return []string{"create", "start", "rebuild", "evacuate", "unshelve"} }

const (
	reboot    = "reboot"
	succeeded = "Success"
)

// RecreatedSince says whether somebody had Nova make the instance's guest anew since that moment, by Nova's clock.
func (n *Nova) RecreatedSince(ctx context.Context, instance uuid.UUID, since time.Time) (bool, error) {
	actions, err := n.actions(ctx, instance)
	if err != nil {
		return false, err
	}
	for _, a := range actions {
		if !slices.Contains(recreating(), a.Action) {
			continue
		}
		if a, err = n.action(ctx, instance, a.Request); err != nil {
			return false, err
		}
		for _, e := range a.Events {
			if e.Start.After(since) && e.Result == succeeded {
				return true, nil
			}
		}
	}
	return false, nil
}

// rebootingHard are the tasks of a hard reboot (nova/compute/task_states.py, hard_reboot_states).
func rebootingHard() []string {
	return []string{"rebooting_hard", "reboot_pending_hard", "reboot_started_hard"}
}

// HardReboot is the request of the hard reboot that Nova is at with the instance; empty where it is at none. Until that is over Nova
// takes no soft one, so it is the newest. Errors are those of Instance.
func (n *Nova) HardReboot(ctx context.Context, instance uuid.UUID) (string, error) {
	found, err := n.Instance(ctx, instance)
	if err != nil || !slices.Contains(rebootingHard(), found.Task) {
		return "", err
	}
	actions, err := n.actions(ctx, instance)
	for _, a := range actions {
		if a.Action == reboot {
			return a.Request, err
		}
	}
	return "", err
}

// OwnReboots are the requests with which our own user had Nova reboot the instance. It never asks for a soft one.
func (n *Nova) OwnReboots(ctx context.Context, instance uuid.UUID) ([]string, error) {
	user, err := n.session.User(ctx)
	if err != nil {
		return nil, err
	}
	actions, err := n.actions(ctx, instance)
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

// RebootHard has Nova make the instance's guest anew, with its accelerators. Errors: ErrNotFound; Busy where something else is done
// with it; Unavailable, and then perhaps it will be.
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

// Rebooted says whether the reboot of a request is over, and why where it has failed.
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

// actions lists what was done with an instance, the newest first.
func (n *Nova) actions(ctx context.Context, instance uuid.UUID) ([]action, error) {
	var list struct {
		Actions []action `json:"instanceActions"`
	}
	err := n.read(ctx, instance, &list, "servers", instance.String(), "os-instance-actions")
	return list.Actions, err
}

func (n *Nova) action(ctx context.Context, instance uuid.UUID, request string) (action, error) {
	var one struct {
		Action action `json:"instanceAction"`
	}
	err := n.read(ctx, instance, &one, "servers", instance.String(), "os-instance-actions", request)
	return one.Action, err
}

// read reads of an instance. Errors are those of Instance; Unavailable where there is one, and Nova does not find what is asked for.
func (n *Nova) read(ctx context.Context, instance uuid.UUID, into any, path ...string) error {
	client, err := n.client(ctx)
	if err != nil {
		return err
	}
	_, err = client.Get(ctx, client.ServiceURL(path...), into, nil) //nolint:bodyclose // gophercloud closes what it decodes
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		// It may be that only the action is unknown, or hidden from us.
		if _, gone := n.Instance(ctx, instance); gone != nil {
			return gone
		}
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}
