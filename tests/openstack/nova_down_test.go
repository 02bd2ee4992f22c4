package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// TestNovaWithoutCyborg has Cyborg die in the middle of whatever a real Nova does with virtual machines that have accelerators, and
// start again. Nova makes of it what it can; afterwards all agree on who has what, and nothing is lost.
func TestNovaWithoutCyborg(t *testing.T) { //nolint:tparallel // one after the other: they share the hosts
	t.Parallel()
	c := start(t, cloudOptions{part: rig.Nova, cards: 2, handles: 2, env: []string{
		"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_PLACEMENT_COMPARE_INTERVAL=10s",
	}})
	c.door = c.open(t)
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

// diesWhenBound: Nova does not learn that the request is bound, and gives the virtual machine up. It keeps its allocation until it
// is deleted, and so it keeps the accelerator.
func diesWhenBound(t *testing.T, c *cloud, one string) {
	t.Helper()
	var id string
	c.dies(t, http.MethodPatch, unanswered, func() { id = c.create(t, one) })
	c.wait(t, id, failed)
	c.Restart(t)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesBeforeNovaAsks: nova-compute cannot ask what was bound, and gives the virtual machine up, with its allocation. That the
// request is deleted does not reach Cyborg. What Placement gives away meanwhile can be had.
func diesBeforeNovaAsks(t *testing.T, c *cloud, one string) {
	t.Helper()
	var id string
	c.dies(t, http.MethodGet, unread, func() { id = c.create(t, one) })
	c.wait(t, id, failed)
	c.Restart(t)
	has := map[string]int{}
	for range 8 { // all that there are
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

// diesInReboot: nova-compute cannot ask what it is to give the virtual machine, and leaves it as it is.
func diesInReboot(t *testing.T, c *cloud, one string) {
	t.Helper()
	id := c.create(t, one)
	c.wait(t, id, active)
	reboot := object{"reboot": object{"type": "HARD"}}
	c.dies(t, http.MethodGet, unread, func() { c.act(t, "demo", id, reboot) })
	c.wait(t, id, active)
	c.Restart(t)
	c.act(t, "demo", id, reboot)
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesInShelve: nova-compute cannot have the request deleted, and does not offload the virtual machine.
func diesInShelve(t *testing.T, c *cloud, one string) {
	t.Helper()
	id := c.create(t, one)
	c.wait(t, id, active)
	c.dies(t, http.MethodDelete, unread, func() { c.act(t, "demo", id, object{"shelve": nil}) })
	c.wait(t, id, "SHELVED")
	c.Restart(t)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesInDelete: Nova deletes the virtual machine and frees its allocation; its request is found when Cyborg is back, and what
// Placement gives away meanwhile can be had.
func diesInDelete(t *testing.T, c *cloud, one string) {
	t.Helper()
	var ids []string
	for range 8 { // one after the other: the scheduler may find none where several look at once
		ids = append(ids, c.create(t, one))
		c.wait(t, ids[len(ids)-1], active)
	}
	c.dies(t, http.MethodDelete, unread, func() {
		c.send(t, "demo", http.MethodDelete, c.rig.Nova+"/servers/"+ids[0], nil, computeVersion).expect(t, http.StatusNoContent)
	})
	c.remove(t, ids[1])
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

// diesInUnshelve: Nova cannot make the request, and leaves the virtual machine shelved, with what it has allocated. It can be asked
// again.
func diesInUnshelve(t *testing.T, c *cloud, one string) {
	t.Helper()
	id := c.create(t, one)
	c.wait(t, id, active)
	c.act(t, "demo", id, object{"shelve": nil})
	c.wait(t, id, offloaded)
	c.dies(t, http.MethodPost, unread, func() { c.act(t, "demo", id, object{"unshelve": nil}) })
	c.wait(t, id, offloaded)
	c.Restart(t)
	c.act(t, "demo", id, object{"unshelve": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// diesWhenUnshelved: Nova does not learn that the new request is bound, and leaves the virtual machine shelved. It can be asked again:
// what the first try has got goes.
func diesWhenUnshelved(t *testing.T, c *cloud, one string) {
	t.Helper()
	id := c.create(t, one)
	c.wait(t, id, active)
	c.act(t, "demo", id, object{"shelve": nil})
	c.wait(t, id, offloaded)
	c.dies(t, http.MethodPatch, unanswered, func() { c.act(t, "demo", id, object{"unshelve": nil}) })
	c.wait(t, id, offloaded)
	c.Restart(t)
	c.act(t, "demo", id, object{"unshelve": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// leftInRebuild is an error unless nova-conductor has given up an evacuation, and left the virtual machine in REBUILD.
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
		return fmt.Errorf("%+v", actions)
	}
	if err := read(ctx, token, url+"/os-instance-actions/"+actions.List[0].Request, &newest); err != nil {
		return err
	}
	for _, e := range newest.Action.Events {
		if e.Event != "rebuild_server" || e.Result != "Error" {
			return fmt.Errorf("%+v", e)
		}
	}
	if err := read(ctx, token, url, &shown); err != nil {
		return err
	}
	if now := shown.Server; len(newest.Action.Events) != 1 || now.Status != "REBUILD" || now.Task != "rebuilding" {
		return fmt.Errorf("it is %s (%s): %+v", now.Status, now.Task, newest.Action.Events)
	}
	return nil
}

// diesInEvacuate: nova-conductor gives up at the first request that is not answered, and leaves the virtual machine in REBUILD. After
// an operator has reset its state, it can be asked again.
func diesInEvacuate(t *testing.T, c *cloud, one string) {
	t.Helper()
	for _, dies := range []struct {
		method string
		at     moment
	}{{http.MethodDelete, unread}, {http.MethodPatch, unanswered}} {
		id := c.create(t, one)
		from := c.wait(t, id, active).Host
		up := c.takeDown(t, from)
		c.dies(t, dies.method, dies.at, func() { c.act(t, "admin", id, object{"evacuate": object{}}) })
		token := c.token(t, "admin")
		c.until(t, "given up", func(ctx context.Context) error { return c.leftInRebuild(ctx, token, id) })
		c.Restart(t)
		require.NoError(t, c.leftInRebuild(t.Context(), token, id), "Nova does not go on when Cyborg is back")
		c.act(t, "admin", id, object{"os-resetState": object{"state": "error"}})
		c.act(t, "admin", id, object{"evacuate": object{}})
		c.waitEvacuated(t, id, from)
		up()
		c.requireAgreement(t, map[string]int{id: 1})
		c.remove(t, id)
		c.requireAgreement(t, nil)
	}
}
