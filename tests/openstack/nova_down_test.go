package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// TestNovaWhileCyborgIsDown kills Cyborg during everything that a real Nova
// does with instances that have accelerators, and starts it again. The subtests
// describe what Nova makes of it. Afterwards everybody agrees on who has what.
func TestNovaWhileCyborgIsDown(t *testing.T) { //nolint:tparallel // one after the other, because they share the hosts
	t.Parallel()
	c := start(t, cloudOptions{part: rig.Nova, cards: 2, handles: 2, env: []string{
		"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_PLACEMENT_COMPARE_INTERVAL=10s",
	}})

	c.killProxy = c.startKillProxy(t)
	c.requireAgreement(t, nil)
	one := c.profile(t, fpga())

	for _, test := range []struct { //nolint:paralleltest // as above
		name string
		run  func(t *testing.T, c *cloud, one string)
	}{
		{"create, bound", diesWhenBound},
		{"create, before Nova asks", diesBeforeNovaAsks},
		{"hard reboot", diesInReboot},
		{"shelve", diesInShelve},
		{"unshelve", diesInUnshelve},
		{"unshelve, bound", diesWhenUnshelved},
		{"delete", diesInDelete},
		{"evacuate", diesInEvacuate},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c, one) })
	}
}

// diesWhenBound kills Cyborg before it answers the bind. Nova gives up the
// instance. The instance keeps its allocation until it is deleted, and so it
// keeps the accelerator.
func diesWhenBound(t *testing.T, c *cloud, one string) {
	t.Helper()

	var id string
	c.killDuring(t, http.MethodPatch, unanswered, func() { id = c.create(t, one) })
	c.wait(t, id, failed)

	c.Restart(t)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesBeforeNovaAsks kills Cyborg before nova-compute reads the bound request.
// Nova gives up the instance and its allocation, and its deletion of the
// request does not reach Cyborg. Other instances get what Placement gives away
// meanwhile.
func diesBeforeNovaAsks(t *testing.T, c *cloud, one string) {
	t.Helper()

	var id string
	c.killDuring(t, http.MethodGet, unread, func() { id = c.create(t, one) })
	c.wait(t, id, failed)
	c.Restart(t)

	has := map[string]int{}
	for range 8 { // all accelerators
		other := c.create(t, one)
		c.wait(t, other, active)
		has[other] = 1
	}

	c.requireAgreement(t, has)
	for other := range has {
		c.remove(t, other)
	}

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesInReboot kills Cyborg before nova-compute reads the request for a reboot.
// Nova leaves the instance as it is.
func diesInReboot(t *testing.T, c *cloud, one string) {
	t.Helper()

	id := c.create(t, one)
	c.wait(t, id, active)

	reboot := object{"reboot": object{"type": "HARD"}}
	c.killDuring(t, http.MethodGet, unread, func() { c.act(t, "demo", id, reboot) })
	c.wait(t, id, active)

	c.Restart(t)
	c.act(t, "demo", id, reboot)
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesInShelve kills Cyborg before Nova deletes the request for a shelve. Nova
// does not offload the instance.
func diesInShelve(t *testing.T, c *cloud, one string) {
	t.Helper()

	id := c.create(t, one)
	c.wait(t, id, active)
	c.killDuring(t, http.MethodDelete, unread, func() { c.act(t, "demo", id, object{"shelve": nil}) })
	c.wait(t, id, "SHELVED")

	c.Restart(t)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesInDelete kills Cyborg before Nova deletes the request of a deleted
// instance. Nova removes the instance and its allocation. Cyborg deletes the
// request when it is back, and other instances get what Placement gives away
// meanwhile.
func diesInDelete(t *testing.T, c *cloud, one string) {
	t.Helper()

	var ids []string
	for range 8 { // one after the other, because the scheduler may fail where several compete
		ids = append(ids, c.create(t, one))
		c.wait(t, ids[len(ids)-1], active)
	}

	c.killDuring(t, http.MethodDelete, unread, func() {
		c.send(t, "demo", http.MethodDelete, c.rig.Nova+"/servers/"+ids[0], nil, computeVersion).expect(t, http.StatusNoContent)
	})
	c.remove(t, ids[1])
	c.waitGone(t, ids[0])

	c.Restart(t)
	has := map[string]int{}
	for i := range ids {
		if i < 2 {
			ids[i] = c.create(t, one)
			c.wait(t, ids[i], active)
		}
		has[ids[i]] = 1
	}

	c.requireAgreement(t, has)

	for _, id := range ids {
		c.remove(t, id)
	}
	c.requireAgreement(t, nil)
}

// diesInUnshelve kills Cyborg before Nova creates the request for an unshelve.
// Nova leaves the instance shelved, with its allocation, and can repeat the
// unshelve.
func diesInUnshelve(t *testing.T, c *cloud, one string) {
	t.Helper()

	id := c.create(t, one)
	c.wait(t, id, active)
	c.act(t, "demo", id, object{"shelve": nil})
	c.wait(t, id, offloaded)

	c.killDuring(t, http.MethodPost, unread, func() { c.act(t, "demo", id, object{"unshelve": nil}) })
	c.wait(t, id, offloaded)

	c.Restart(t)
	c.act(t, "demo", id, object{"unshelve": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesWhenUnshelved kills Cyborg before it answers the bind of an unshelve.
// Nova leaves the instance shelved, and can repeat the unshelve: the
// accelerator of the first try is released.
func diesWhenUnshelved(t *testing.T, c *cloud, one string) {
	t.Helper()

	id := c.create(t, one)
	c.wait(t, id, active)
	c.act(t, "demo", id, object{"shelve": nil})
	c.wait(t, id, offloaded)

	c.killDuring(t, http.MethodPatch, unanswered, func() { c.act(t, "demo", id, object{"unshelve": nil}) })
	c.wait(t, id, offloaded)

	c.Restart(t)
	c.act(t, "demo", id, object{"unshelve": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// leftInRebuild returns an error unless nova-conductor has given up an
// evacuation and has left the instance in REBUILD.
func (c *cloud) leftInRebuild(ctx context.Context, token, id string) error {
	var (
		shown   struct{ Server server }
		actions struct {
			List []struct {
				Action  string
				Request string `json:"request_id"`
			} `json:"instanceActions"`
		}
		newest struct {
			Action struct {
				Events []struct{ Event, Result string }
			} `json:"instanceAction"`
		}
	)

	url := c.rig.Nova + "/servers/" + id
	if err := read(ctx, token, url+"/os-instance-actions", &actions); err != nil {
		return err
	}

	if actions.List[0].Action != "evacuate" {
		return fmt.Errorf("the newest action is no evacuation: %+v", actions)
	}

	if err := read(ctx, token, url+"/os-instance-actions/"+actions.List[0].Request, &newest); err != nil {
		return err
	}

	for _, e := range newest.Action.Events {
		if e.Event != "rebuild_server" || e.Result != "Error" {
			return fmt.Errorf("the evacuation has an event other than a failed rebuild: %+v", e)
		}
	}

	if err := read(ctx, token, url, &shown); err != nil {
		return err
	}

	if now := shown.Server; len(newest.Action.Events) != 1 || now.Status != "REBUILD" || now.Task != "rebuilding" {
		return fmt.Errorf("the instance is %s (%s) with the events %+v", now.Status, now.Task, newest.Action.Events)
	}
	return nil
}

// diesInEvacuate kills Cyborg during an evacuation. nova-conductor gives up at
// the first request without an answer, and leaves the instance in REBUILD.
// After an operator has reset its state, the evacuation can be repeated.
func diesInEvacuate(t *testing.T, c *cloud, one string) {
	t.Helper()
	for _, dies := range []struct {
		method string
		at     deathPoint
	}{{http.MethodDelete, unread}, {http.MethodPatch, unanswered}} {
		id := c.create(t, one)
		from := c.wait(t, id, active).Host
		up := c.takeDown(t, from)

		c.killDuring(t, dies.method, dies.at, func() { c.act(t, "admin", id, object{"evacuate": object{}}) })
		token := c.token(t, "admin")
		c.until(t, "given up", func(ctx context.Context) error { return c.leftInRebuild(ctx, token, id) })

		c.Restart(t)
		require.NoError(t, c.leftInRebuild(t.Context(), token, id), "Nova does not continue when Cyborg is back")

		c.act(t, "admin", id, object{"os-resetState": object{"state": "error"}})
		c.act(t, "admin", id, object{"evacuate": object{}})
		c.waitEvacuated(t, id, from)
		up()

		c.requireAgreement(t, map[string]int{id: 1})
		c.remove(t, id)
		c.requireAgreement(t, nil)
	}
}
