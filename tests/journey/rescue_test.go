package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// instanceHost is rack with two instances, each of which has an accelerator.
type instanceHost struct {
	*harness.Standalone

	agent     *harness.Agent
	nova      *novatest.Nova
	instances []uuid.UUID
	arqs      []string // the request of each instance
	cards     []apiclient.Accelerator
}

// startInstanceHost runs a standalone, a model of Nova and rack, and binds an
// accelerator to each of two instances.
func startInstanceHost(t *testing.T, env ...string) *instanceHost {
	t.Helper()
	return startPreparedHost(t, func(*harness.Standalone, apiclient.Accelerator) {}, env...)
}

// startPreparedHost is like startInstanceHost. It calls prepare with each
// accelerator before it is bound.
func startPreparedHost(t *testing.T, prepare func(s *harness.Standalone, card apiclient.Accelerator), env ...string) *instanceHost {
	t.Helper()
	keystone := openstacktest.NewKeystone(t)
	n := novatest.New(keystone.IsOwn)
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	keystone.Serve("compute", server.URL+"/v2.1")

	s, agent, cards := startRack(t, append([]string{
		"CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL, "CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword,
	}, env...)...)

	v := &instanceHost{Standalone: s, agent: agent, nova: n, cards: cards}
	profile(t, s, "one", map[string]string{"resources:FPGA": "1"})

	for i := range 2 {
		_, err := s.API.MakeReady(t.Context(), cards[i].UUID)
		require.NoError(t, err)
		prepare(s, cards[i])

		who := uuid.New()
		n.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: rack})

		arq := makeRequest(t, s, "one")
		_, status := patchRequest(t, s, arq, cards[i], who.String())
		require.Equal(t, http.StatusAccepted, status)
		requireResolved(t, s) // a bind may take longer than its request waits
		require.Equal(t, cyborg.ARQBound, stateOf(t, s, arq))

		v.instances, v.arqs = append(v.instances, who), append(v.arqs, arq)
	}

	return v
}

// boot boots the host, and returns when its agent has reported.
func (v *instanceHost) boot(t *testing.T) {
	t.Helper()
	v.agent.Kill(t)
	v.agent.Reboot(t)
	v.agent.Restart(t)
}

// health returns the health of an accelerator request, as OpenStack's clients
// see it.
func (v *instanceHost) health(t *testing.T, arq string) any {
	t.Helper()
	status, _, body := request(t, v.Standalone, "GET", requestsPath+"/"+arq, nil)
	require.Equal(t, http.StatusOK, status)

	return body["health"]
}

// until waits until check returns nil; what names the awaited state.
func (v *instanceHost) until(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, what, check)
}

// TestRescueAfterHostBoot boots a host where the instances are to be rebooted
// automatically. Each is rebooted once, although the standalone is killed
// during the rescue.
func TestRescueAfterHostBoot(t *testing.T) {
	t.Parallel()
	v := startInstanceHost(t, "CYBORG_NOVA_RESCUE_AFTER_HOST_BOOT=hard-reboot")
	ctx, h := t.Context(), newHistorian(t, v.Standalone)

	// Nova does not finish the reboots before Release, so that the rescue stays
	// under way.
	v.nova.Hold()
	v.boot(t)
	v.until(t, "Nova is asked", func() error {
		for _, who := range v.instances {
			if v.nova.Reboots(who) == 0 {
				return fmt.Errorf("Nova has not been asked to reboot instance %s", who)
			}
		}
		return nil
	})

	for i, arq := range v.arqs {
		require.Equal(t, "lost_at_boot", v.health(t, arq), v.instances[i])
	}

	// After a kill the same operation continues.
	v.Kill(t)
	v.Restart(t)

	ops, err := apiclient.Collect(v.API.Operations(ctx, apiclient.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationRescue}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, ops, 1)
	require.Equal(t, cyborg.OperationRunning, ops[0].State)
	require.Equal(t, "cyborg", ops[0].Actor.Name)

	v.nova.Release("Success")
	h.end("succeeded", cyborg.OperationSucceeded, ops[0].ID)

	for i, who := range v.instances {
		require.Equal(t, 1, v.nova.Reboots(who))
		require.Nil(t, v.health(t, v.arqs[i]))
	}

	op, err := v.API.Operation(ctx, ops[0].ID)
	require.NoError(t, err)
	require.Len(t, op.Result["instances"], 2)

	harness.RequireSound(t, v.Standalone)
	h.replay()
}

// TestRescueByHand boots a host where an operator decides. The possible loss is
// shown in health, drift and history, until Nova shows that the instance has
// its accelerator again or the operator has it rebooted.
func TestRescueByHand(t *testing.T) {
	t.Parallel()
	v := startInstanceHost(t)
	ctx, h := t.Context(), newHistorian(t, v.Standalone)
	_, _, code := v.CLI(t, "host", "rescue", rack, "--yes")
	require.Zero(t, code, "a rescue without anything to do succeeds")

	v.boot(t)
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]))

	out, _, code := v.CLI(t, "drift", "list", "--class", "lost_at_boot")
	require.Zero(t, code)
	require.Contains(t, out, v.instances[0].String())
	require.Contains(t, out, v.instances[1].String())

	v.until(t, "in the history", func() error {
		if out, _, _ := v.CLI(t, "accelerator", "history", v.cards[0].Name); !strings.Contains(out, "may be lost to instance "+v.instances[0].String()) {
			return fmt.Errorf("the history does not name the loss: %s", out)
		}
		return nil
	})

	// An instance that is shut off gets its accelerator when it is started, so its
	// loss is over. Nobody reboots the other one.
	v.nova.Set(novatest.Instance{ID: v.instances[1], Status: novatest.ShutOff, Host: rack})
	v.until(t, "no longer lost", func() error {
		if health := v.health(t, v.arqs[1]); health != nil {
			return fmt.Errorf("the health is still %v", health)
		}
		return nil
	})
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]))
	require.Zero(t, v.nova.Reboots(v.instances[0]))

	_, errs, code := v.CLI(t, "host", "rescue", rack)
	require.NotZero(t, code, "a rescue needs --yes where nobody can be asked")
	require.Contains(t, errs, v.instances[0].String())

	v.nova.Set(novatest.Instance{ID: v.instances[0], Status: "PAUSED", Host: rack})
	h.play("left", cyborg.OperationFailed, func() (apiclient.Answer, error) { return v.API.Rescue(ctx, rack, apiclient.Async()) })
	require.Zero(t, v.nova.Reboots(v.instances[0]))

	v.nova.Hold()
	v.nova.Set(novatest.Instance{ID: v.instances[0], Status: novatest.Active, Host: rack})

	answer, err := v.API.Rescue(ctx, rack, apiclient.Async())
	require.NoError(t, err)

	v.until(t, "Nova is asked", func() error {
		if v.nova.Reboots(v.instances[0]) == 0 {
			return fmt.Errorf("Nova has not been asked to reboot the instance")
		}
		return nil
	})

	_, err = v.API.Rescue(ctx, rack, apiclient.Async())
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)

	_, err = v.API.CancelOperation(ctx, answer.Operation.ID)
	require.NoError(t, err)
	h.end("cancelled", cyborg.OperationCancelled, answer.Operation.ID)
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]), "the outcome of the reboot is unknown")

	v.nova.Release("Success")

	out, _, code = v.CLI(t, "host", "rescue", rack, "--yes")
	require.Zero(t, code)
	require.Contains(t, out, v.instances[0].String()+": rebooted")
	require.Equal(t, 2, v.nova.Reboots(v.instances[0]))
	require.Nil(t, v.health(t, v.arqs[0]))
	require.Zero(t, v.nova.Reboots(v.instances[1]))
	harness.RequireSound(t, v.Standalone)
	h.replay()
}
