package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// TestHostBootLosesAccelerators boots the host of an instance. A real Nova is
// asked to reboot the instance once, because it may run without its
// accelerator. An instance that is shut off is not rebooted: it gets its
// accelerator when it is started.
func TestHostBootLosesAccelerators(t *testing.T) {
	t.Parallel()
	c, agent, host := bootable(t, "hard-reboot")
	id := c.create(t, c.profile(t, fpga()))
	require.Equal(t, host, c.wait(t, id, active).Host)

	boot := func() {
		agent.Kill(t)
		agent.Reboot(t)
		agent.Restart(t)
	}

	rescues := func(ctx context.Context) ([]apiclient.Operation, error) {
		return apiclient.Collect(c.API.Operations(ctx, apiclient.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationRescue}}, apiclient.Page{}))
	}

	well := func(ctx context.Context, wanted int) error {
		all, err := rescues(ctx)
		if err != nil {
			return err
		}

		if len(all) != wanted || wanted > 0 && all[0].State != cyborg.OperationSucceeded {
			return fmt.Errorf("there are not %d successful rescues: %+v", wanted, all)
		}

		lost, err := apiclient.Collect(c.API.Drift(ctx, apiclient.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLostAtBoot}}, apiclient.Page{}))
		if err == nil && len(lost) > 0 {
			err = fmt.Errorf("the instance still counts as without its accelerator: %+v", lost)
		}
		return err
	}

	boot()
	c.until(t, "rebooted", func(ctx context.Context) error { return well(ctx, 1) })
	require.Equal(t, active, c.wait(t, id, active).Status)
	require.Equal(t, 1, c.reboots(t, id))
	c.requireAgreement(t, map[string]int{id: 1})

	c.act(t, "demo", id, object{"os-stop": nil})
	c.wait(t, id, shutOff)

	before, err := c.API.Host(t.Context(), host)
	require.NoError(t, err)
	boot()

	after, err := c.API.Host(t.Context(), host)
	require.NoError(t, err)
	require.NotEqual(t, before.BootID, after.BootID)

	c.until(t, "found to be off", func(ctx context.Context) error {
		all, err := rescues(ctx)
		if err != nil {
			return err
		}
		return well(ctx, len(all)) // a rescue or the regular comparison may have found it
	})

	require.Equal(t, shutOff, c.wait(t, id, shutOff).Status)
	require.Equal(t, 1, c.reboots(t, id))

	c.act(t, "demo", id, object{"os-start": nil})
	c.wait(t, id, active)
	c.requireAgreement(t, map[string]int{id: 1})

	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// bootable starts a cloud where the agent of one of Nova's hosts is a process
// of its own, so that a test can boot that host. policy is the value of
// nova.rescue_after_host_boot.
func bootable(t *testing.T, policy string) (c *cloud, agent *harness.Agent, host string) {
	t.Helper()
	const apart = "apart-from-nova" // the standalone needs a host of its own
	c = start(t, cloudOptions{part: rig.Nova, hosts: []string{apart}, cards: 1, handles: 1, env: []string{
		"CYBORG_PLACEMENT_ENABLED=true", "CYBORG_NOVA_RESCUE_AFTER_HOST_BOOT=" + policy,
		"CYBORG_AGENT_HEARTBEAT=1s",
	}})

	host = c.rig.Computes[0]
	c.clear(t, []string{host})
	c.takeDown(t, host)() // a restart makes nova-compute forget the providers that were deleted; with one missing, it cannot build instances
	t.Cleanup(func() { c.clear(t, []string{host}) })

	agent = c.StartAgent(t, host, "1xfpga")
	c.waitReady(t, 2, 1)
	c.requireAgreement(t, nil)
	return c, agent, host
}

// TestRescueAfterHostBoot lets the owner reboot an instance whose host has
// booted. It has its accelerator again after a hard reboot, but not after a
// soft one.
func TestRescueAfterHostBoot(t *testing.T) {
	t.Parallel()
	c, agent, host := bootable(t, "report")
	id := c.create(t, c.profile(t, fpga()))
	require.Equal(t, host, c.wait(t, id, active).Host)

	agent.Kill(t)
	agent.Reboot(t)
	agent.Restart(t)

	lost := func(ctx context.Context) ([]apiclient.Drift, error) {
		return apiclient.Collect(c.API.Drift(ctx, apiclient.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLostAtBoot}}, apiclient.Page{}))
	}

	c.until(t, "recorded as lost", func(ctx context.Context) error {
		found, err := lost(ctx)
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("the accelerators that count as lost are %+v", found)
		}
		return err
	})

	for _, how := range []string{"SOFT", "HARD"} {
		found, err := lost(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 1, "before the %s reboot", how)

		c.act(t, "demo", id, object{"reboot": object{"type": how}})
		c.wait(t, id, active)
	}

	c.until(t, "no longer lost", func(ctx context.Context) error {
		found, err := lost(ctx)
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("the accelerators that count as lost are %+v", found)
		}
		return err
	})

	require.Equal(t, 2, c.reboots(t, id), "reboots of the instance: only the owner's two")
	c.requireAgreement(t, map[string]int{id: 1})
	c.remove(t, id)
	c.requireAgreement(t, nil)
}

// reboots returns how often Nova was asked to reboot an instance.
func (c *cloud) reboots(t *testing.T, id string) int {
	t.Helper()
	var list struct {
		Actions []struct{ Action string } `json:"instanceActions"`
	}
	c.send(t, "admin", http.MethodGet, c.rig.Nova+"/servers/"+id+"/os-instance-actions", nil, computeVersion).expect(t, http.StatusOK).into(t, &list)

	count := 0
	for _, a := range list.Actions {
		if a.Action == "reboot" {
			count++
		}
	}
	return count
}
