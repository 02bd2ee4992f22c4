package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The states of Nova's instances that the tests wait for.
const (
	active    = "ACTIVE"
	shutOff   = "SHUTOFF"
	failed    = "ERROR"
	offloaded = "SHELVED_OFFLOADED"
)

// server is an instance of Nova.
type server struct {
	ID     string
	Status string
	Task   string `json:"OS-EXT-STS:task_state"`
	Host   string `json:"OS-EXT-SRV-ATTR:hypervisor_hostname"`
	Fault  struct{ Message string }
}

// profile creates a device profile of these groups and a flavor that asks for
// it, and returns the flavor's id.
func (c *cloud) profile(t *testing.T, groups ...object) (flavor string) {
	t.Helper()
	name := "p-" + uuid.NewString()[:8]
	c.send(t, "admin", http.MethodPost, c.URL+"/v2/device_profiles", []object{{"name": name, "groups": groups}}).expect(t, http.StatusCreated)
	return c.flavor(t, name)
}

// flavor creates a flavor that asks for a device profile, and returns its id.
func (c *cloud) flavor(t *testing.T, profile string) (flavor string) {
	t.Helper()
	flavor = "f-" + uuid.NewString()[:8]

	c.send(t, "admin", http.MethodPost, c.rig.Nova+"/flavors", object{"flavor": object{"name": flavor, "id": flavor, "ram": 64, "vcpus": 1, "disk": 1}}, computeVersion).
		expect(t, http.StatusOK)

	c.send(t, "admin", http.MethodPost, c.rig.Nova+"/flavors/"+flavor+"/os-extra_specs",
		object{"extra_specs": object{"accel:device_profile": profile, "group_policy": "none"}}, computeVersion).expect(t, http.StatusOK)

	return flavor
}

// create requests an instance, as a member of the project, and returns its id.
func (c *cloud) create(t *testing.T, flavor string) string {
	t.Helper()
	a := c.send(t, "demo", http.MethodPost, c.rig.Nova+"/servers", object{"server": object{
		"name": t.Name(), "imageRef": c.rig.Image, "flavorRef": flavor, "networks": "none",
	}}, computeVersion).expect(t, http.StatusAccepted)

	var created struct{ Server server }
	a.into(t, &created)

	t.Cleanup(func() {
		if t.Failed() {
			c.discard(t, created.Server.ID)
		}
	})

	return created.Server.ID
}

// discard deletes an instance of a failed test, so that it does not disturb the
// next one.
func (c *cloud) discard(t *testing.T, id string) {
	t.Helper()
	_, err := send(context.Background(), http.MethodDelete, c.rig.Nova+"/servers/"+id, nil, "X-Auth-Token: "+c.tokens["admin"], computeVersion)
	if err != nil {
		t.Log(err)
	}
}

// act requests an action on an instance.
func (c *cloud) act(t *testing.T, who, id string, action object) {
	t.Helper()

	a := c.send(t, who, http.MethodPost, c.rig.Nova+"/servers/"+id+"/action", action, computeVersion)
	require.Contains(t, []int{http.StatusOK, http.StatusAccepted}, a.status, "%s: %s", a.what, a.body)
}

// wait waits until an instance has this status and no task, and returns it.
func (c *cloud) wait(t *testing.T, id, status string) server {
	t.Helper()
	var now server

	token := c.token(t, "admin")
	c.until(t, "server "+id+" "+status, func(ctx context.Context) error {
		var shown struct{ Server server }
		a, err := send(ctx, http.MethodGet, c.rig.Nova+"/servers/"+id, nil, "X-Auth-Token: "+token, computeVersion)
		if err != nil {
			return err
		}

		a.into(t, &shown)
		now = shown.Server
		if now.Status == failed && status != failed {
			t.Fatalf("instance %s has failed: %s", id, now.Fault.Message)
		}

		if now.Status != status || now.Task != "" {
			return fmt.Errorf("it is %s (%s), not %s", now.Status, now.Task, status)
		}
		return nil
	})
	return now
}

// remove deletes an instance, and returns when it is gone.
func (c *cloud) remove(t *testing.T, id string) {
	t.Helper()
	c.send(t, "demo", http.MethodDelete, c.rig.Nova+"/servers/"+id, nil, computeVersion).expect(t, http.StatusNoContent)
	c.waitGone(t, id)
}

// waitGone waits until Nova has no instance with this id.
func (c *cloud) waitGone(t *testing.T, id string) {
	t.Helper()

	token := c.token(t, "admin")
	c.until(t, "server "+id+" gone", func(ctx context.Context) error {
		a, err := send(ctx, http.MethodGet, c.rig.Nova+"/servers/"+id, nil, "X-Auth-Token: "+token, computeVersion)
		if err == nil && a.status != http.StatusNotFound {
			err = fmt.Errorf("Nova still answers %d: %s", a.status, a.body)
		}
		return err
	})
}
