package openstack_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// bindTimeout is the value of arqs.bind_timeout: half of the time that Nova
// waits.
const bindTimeout = 30 * time.Second

// TestNovaInstances has a real Nova do everything that it can do with instances
// that have accelerators, and checks after each step that everybody agrees on
// who has what.
func TestNovaInstances(t *testing.T) { //nolint:tparallel // one after the other, because they share the hosts
	t.Parallel()
	const cards, handles = 2, 2
	c := start(t, cloudOptions{part: rig.Nova, cards: cards, handles: handles, env: []string{
		"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_PLACEMENT_COMPARE_INTERVAL=10s",
		"CYBORG_ARQS_BIND_TIMEOUT=" + bindTimeout.String(),
	}})

	c.requireAgreement(t, nil)

	one, two := c.profile(t, fpga()), c.profile(t, fpga(), fpga())

	for _, test := range []struct { //nolint:paralleltest // as above
		name string
		run  func(t *testing.T, c *cloud, one, two string)
	}{
		{"life", life},
		{"two groups", twoGroups},
		{"shelve", shelve},
		{"an admin acts for the tenant", adminShelves},
		{"evacuate", evacuate},
		{"exhaustion", exhaustion},
		{"unknown profile", unknownProfile},
		{"failed bind", failedBind},
		{"used by its host", usedByItsHost},
		{"slow bind", slowBind},
		{"timeout", timeout},
		{"timeout before Nova asks", timeoutUnseen},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c, one, two) })
	}
}

// life takes an instance through the usual actions: stop, start, reboot,
// rebuild, pause, unpause, delete.
func life(t *testing.T, c *cloud, one, _ string) {
	t.Helper()

	id := c.create(t, one)
	host := c.wait(t, id, active).Host
	c.requireAgreement(t, map[string]int{id: 1})

	arqs, err := c.arqs(t.Context(), c.token(t, "demo"))
	require.NoError(t, err)
	require.Len(t, arqs, 1, "the tenant sees its request")
	require.Equal(t, host, arqs[0].Host)
	require.Equal(t, string(cyborg.HandleTestPCI), arqs[0].Kind)
	require.Equal(t, []string{"bus", "device", "domain", "function"}, slices.Sorted(maps.Keys(arqs[0].Info)))

	for _, step := range []struct {
		action object
		status string
	}{
		{object{"os-stop": nil}, shutOff},
		{object{"os-start": nil}, active},
		{object{"reboot": object{"type": "HARD"}}, active},
		{object{"rebuild": object{"imageRef": c.rig.Image}}, active},
		{object{"pause": nil}, "PAUSED"},
		{object{"unpause": nil}, active},
	} {
		c.act(t, "demo", id, step.action)
		c.wait(t, id, step.status)
		c.requireAgreement(t, map[string]int{id: 1})

		now, err := c.arqs(t.Context(), c.token(t, "demo"))
		require.NoError(t, err)
		require.Equal(t, arqs, now, "%v", step.action)
	}

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// twoGroups creates an instance with two accelerators.
func twoGroups(t *testing.T, c *cloud, _, two string) {
	t.Helper()

	id := c.create(t, two)
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 2})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// shelve shelves and unshelves an instance as its owner.
func shelve(t *testing.T, c *cloud, one, _ string) {
	t.Helper()
	shelved(t, c, one, "demo")
}

// adminShelves does the same as an administrator: the tenant keeps its
// accelerators (L4).
func adminShelves(t *testing.T, c *cloud, one, _ string) {
	t.Helper()
	shelved(t, c, one, "admin")
}

// shelved shelves and unshelves an instance as this user.
func shelved(t *testing.T, c *cloud, flavor, who string) {
	t.Helper()

	id := c.create(t, flavor)
	c.wait(t, id, active)

	c.act(t, who, id, object{"shelve": nil})
	c.wait(t, id, offloaded)
	c.requireAgreement(t, map[string]int{id: 0})

	c.act(t, who, id, object{"unshelve": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	arqs, err := c.arqs(t.Context(), c.token(t, "demo"))
	require.NoError(t, err)
	require.Len(t, arqs, 1, "the tenant sees its request")

	c.act(t, "demo", id, object{"reboot": object{"type": "HARD"}})
	c.wait(t, id, active)

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// evacuate rebuilds an instance on another host, because its own is down.
func evacuate(t *testing.T, c *cloud, one, _ string) {
	t.Helper()
	id := c.create(t, one)
	from := c.wait(t, id, active).Host
	up := c.takeDown(t, from)

	c.act(t, "admin", id, object{"evacuate": object{}})
	c.waitEvacuated(t, id, from)

	arqs, err := c.arqs(t.Context(), c.token(t, "demo"))
	require.NoError(t, err)
	require.Len(t, arqs, 1)
	require.NotEqual(t, from, arqs[0].Host)

	up()
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// takeDown stops nova-compute of a host and forces it down in Nova. up takes
// the host into service again, which frees the allocations of evacuated
// instances.
func (c *cloud) takeDown(t *testing.T, host string) (up func()) {
	t.Helper()

	service := c.compute(t, host).ID
	force := func(down bool) answer {
		return c.send(t, "admin", http.MethodPut, c.rig.Nova+"/os-services/"+service, object{"forced_down": down}, computeVersion)
	}

	c.rig.Stop(t, "nova-compute-"+host)
	force(true).expect(t, http.StatusOK)

	return func() {
		t.Helper()
		c.startCompute(t, host)
		a := force(false)
		if a.status == http.StatusBadRequest && bytes.Contains(a.body, []byte("evacuation")) {
			// Each start of nova-compute completes one evacuation of an instance, and there
			// may have been two.
			c.rig.Stop(t, "nova-compute-"+host)
			c.startCompute(t, host)
			a = force(false)
		}

		a.expect(t, http.StatusOK)
	}
}

// startCompute starts nova-compute of a host and waits until it reports. Before
// that, nova-compute would give up every instance that is being built, as if
// its own stop had interrupted the build.
func (c *cloud) startCompute(t *testing.T, host string) {
	t.Helper()

	before := c.compute(t, host).Updated
	rig.Up(t, rig.Nova)

	token := c.token(t, "admin")
	c.until(t, "nova-compute started", func(ctx context.Context) error {
		now, err := c.computeOf(ctx, token, host)
		if err == nil && now.Updated == before {
			err = fmt.Errorf("it has not reported since: %+v", now)
		}
		return err
	})
}

// waitEvacuated waits until an instance is active on another host.
func (c *cloud) waitEvacuated(t *testing.T, id, from string) {
	t.Helper()
	token := c.token(t, "admin")
	c.until(t, "evacuated", func(ctx context.Context) error {
		var shown struct{ Server server }
		if err := read(ctx, token, c.rig.Nova+"/servers/"+id, &shown); err != nil {
			return err
		}

		if s := shown.Server; s.Host == from || s.Status != active || s.Task != "" {
			return fmt.Errorf("it is %s (%s) on %s", s.Status, s.Task, s.Host)
		}
		return nil
	})
}

// computeService is a nova-compute as Nova lists it.
type computeService struct {
	ID      string
	Updated string `json:"updated_at"`
}

// compute returns the nova-compute of a host.

func (c *cloud) compute(t *testing.T, host string) computeService {
	t.Helper()
	found, err := c.computeOf(t.Context(), c.token(t, "admin"), host)
	require.NoError(t, err)
	return found
}

// computeOf is like compute and returns the error.
func (c *cloud) computeOf(ctx context.Context, token, host string) (computeService, error) {
	var list struct{ Services []computeService }

	err := read(ctx, token, c.rig.Nova+"/os-services?binary=nova-compute&host="+host, &list)
	if err == nil && len(list.Services) != 1 {
		err = fmt.Errorf("host %s has %d services nova-compute: %+v", host, len(list.Services), list)
	}

	if err != nil {
		return computeService{}, err
	}
	return list.Services[0], nil
}

// exhaustion uses all eight accelerators. Another instance gets none, and
// released accelerators can be used again at once.
func exhaustion(t *testing.T, c *cloud, one, two string) {
	t.Helper()

	var ids []string
	has := map[string]int{}

	give := func(flavor string, amount int) {
		id := c.create(t, flavor)
		c.wait(t, id, active)
		ids, has[id] = append(ids, id), amount
	}

	for range 3 {
		give(two, 2)
	}
	give(one, 1)
	give(one, 1)

	for _, flavor := range []string{one, two} {
		none := c.create(t, flavor)
		require.Contains(t, c.wait(t, none, failed).Fault.Message, "No valid host")
		c.remove(t, none)
	}

	c.requireAgreement(t, has)

	for range 3 { // one instance goes, and the next one comes
		delete(has, ids[0])
		c.remove(t, ids[0])
		ids = ids[1:]
		give(two, 2)
	}
	c.requireAgreement(t, has)

	for _, id := range ids {
		c.remove(t, id)
	}
	c.requireAgreement(t, nil)
}

// unknownProfile asks for a device profile that does not exist.
func unknownProfile(t *testing.T, c *cloud, _, _ string) {
	t.Helper()

	a := c.send(t, "demo", http.MethodPost, c.rig.Nova+"/servers", object{"server": object{
		"name": t.Name(), "imageRef": c.rig.Image, "flavorRef": c.flavor(t, "nosuch"), "networks": "none",
	}}, computeVersion).expect(t, http.StatusBadRequest)
	require.Contains(t, string(a.body), "nosuch")
	c.requireAgreement(t, nil)
}

// failedBind asks for an image that is not for the card. Nova is notified, and
// no instance boots without its accelerator.
func failedBind(t *testing.T, c *cloud, _, _ string) {
	t.Helper()
	image := c.image(t, cyborg.DeviceTypeGPU, "not-for-fpgas", nil)

	id := c.create(t, c.profile(t, fpga("accel:bitstream_id="+image)))
	c.wait(t, id, failed)
	c.remove(t, id) // until then it keeps its allocation
	c.requireAgreement(t, nil)
}

// usedByItsHost asks for a card while the hosts themselves use all of theirs. No
// instance boots with one; the cards stay free, and are given away afterwards.
func usedByItsHost(t *testing.T, c *cloud, one, _ string) {
	t.Helper()
	use := func(ctx context.Context, by string) {
		all, err := apiclient.Collect(c.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
		require.NoError(t, err)
		for i := range all {
			device, err := c.API.Device(ctx, all[i].DeviceUUID)
			require.NoError(t, err)
			for _, handle := range all[i].Handles {
				require.NoError(t, c.Bench(all[i].Host).Use(ctx, device.Identity, handle.Identity, by))
			}
		}
	}

	use(t.Context(), "swap on /dev/sdb")
	t.Cleanup(func() { use(context.Background(), "") })
	id := c.create(t, one)
	c.wait(t, id, failed)
	c.remove(t, id)
	c.requireAgreement(t, nil)

	use(t.Context(), "")
	id = c.create(t, one)
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// programming sets how long loading an image takes, until the test ends.
func (c *cloud) programming(t *testing.T, takes time.Duration) {
	t.Helper()

	set := func(ctx context.Context, takes time.Duration) {
		for _, host := range c.rig.Computes {
			_, err := c.API.UpdateDriver(ctx, host, "fake", cyborg.JSONObject{"park": "2xfpga", "handles": 2, "program_latency": takes.String()})
			require.NoError(t, err)
		}
	}

	set(t.Context(), takes)
	t.Cleanup(func() { set(context.Background(), 0) })
}

// slowBind loads an image that takes some seconds. Nova waits for the event.
func slowBind(t *testing.T, c *cloud, _, _ string) {
	t.Helper()
	c.programming(t, 2*time.Second)

	image := c.image(t, cyborg.DeviceTypeFPGA, "slow", nil)
	id := c.create(t, c.profile(t, fpga("accel:bitstream_id="+image)))
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// tooSlow creates a profile whose image takes longer to load than a bind may.
// The undo takes as long.
func (c *cloud) tooSlow(t *testing.T) (flavor string) {
	t.Helper()
	c.programming(t, 2*bindTimeout)
	return c.profile(t, fpga("accel:bitstream_id="+c.image(t, cyborg.DeviceTypeFPGA, "slower", nil)))
}

// requireTimeout asserts that the last bind ended with a timeout.
func (c *cloud) requireTimeout(t *testing.T) {
	t.Helper()

	c.requireAgreement(t, nil) // all operations have ended
	operations, err := apiclient.Collect(c.API.Operations(t.Context(), apiclient.OperationFilter{}, apiclient.Page{}))
	require.NoError(t, err)

	binds := slices.DeleteFunc(operations, func(op apiclient.Operation) bool { return op.Kind != cyborg.OperationBind })
	last := slices.MaxFunc(binds, func(x, y apiclient.Operation) int { return x.CreatedAt.Compare(y.CreatedAt) })
	require.NotNil(t, last.Error)
	require.Equal(t, cyborg.ErrTimeout, last.Error.Kind, "%v", last.Error)
}

// timeout loads an image for longer than arqs.bind_timeout. Nova is notified,
// and does not have to wait for its own timeout.
func timeout(t *testing.T, c *cloud, _, _ string) {
	t.Helper()

	id := c.create(t, c.tooSlow(t))
	c.wait(t, id, failed)
	c.remove(t, id)
	c.requireTimeout(t)
}

// timeoutUnseen lets the bind time out before nova-compute reads the request,
// so that nobody receives the event. Nova must not take the request for bound.
func timeoutUnseen(t *testing.T, c *cloud, _, _ string) {
	t.Helper()

	flavor := c.tooSlow(t)
	for _, host := range c.rig.Computes {
		c.rig.Freeze(t, "nova-compute-"+host)
		defer c.rig.Thaw(t, "nova-compute-"+host)
	}

	id := c.create(t, flavor)
	token := c.token(t, "admin")

	c.until(t, "too late", func(ctx context.Context) error {
		arqs, err := c.arqs(ctx, token)
		if err == nil && (len(arqs) != 1 || arqs[0].State != string(cyborg.ARQBindFailed)) {
			err = fmt.Errorf("there is not one failed request: %v", arqs)
		}
		return err
	})

	for _, host := range c.rig.Computes {
		c.rig.Thaw(t, "nova-compute-"+host)
	}

	c.wait(t, id, failed)
	c.remove(t, id)
	c.requireTimeout(t)
}
