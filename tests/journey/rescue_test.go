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

// stricken is a host with an agent of its own, and two instances on it that have an accelerator each.
type stricken struct {
	*harness.Standalone

	agent     *harness.Agent
	nova      *novatest.Nova
	instances []uuid.UUID
	arqs      []string
	cards     []apiclient.Accelerator
}

func startStricken(t *testing.T, env ...string) *stricken {
	t.Helper()
	return strike(t, func(*harness.Standalone, apiclient.Accelerator) {}, env...)
}

// strike is startStricken with something that is done to the accelerators before they are bound.
func strike(t *testing.T, prepare func(s *harness.Standalone, card apiclient.Accelerator), env ...string) *stricken {
	t.Helper()
	keystone := openstacktest.NewKeystone(t)
	n := novatest.New(keystone.IsOwn)
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	keystone.Serve("compute", server.URL+"/v2.1")
	s, agent, cards := startRack(t, append([]string{
		"CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL, "CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword,
	}, env...)...)
	v := &stricken{Standalone: s, agent: agent, nova: n, cards: cards}
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
		require.Equal(t, cyborg.ARQBound, stateOf(t, s, arq))
		v.instances, v.arqs = append(v.instances, who), append(v.arqs, arq)
	}
	return v
}

// boot has the host boot, and its agent report that.
func (v *stricken) boot(t *testing.T) {
	t.Helper()
	v.agent.Kill(t)
	v.agent.Reboot(t)
	v.agent.Restart(t)
}

// health is that of an accelerator request, as OpenStack's clients see it.
func (v *stricken) health(t *testing.T, arq string) any {
	t.Helper()
	status, _, body := request(t, v.Standalone, "GET", requestsPath+"/"+arq, nil)
	require.Equal(t, http.StatusOK, status)
	return body["health"]
}

// until waits for what check wants.
func (v *stricken) until(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, what, check)
}

// A host boots, and operators want its instances rebooted then. Each is, once, although everything is killed in the middle of it.
func TestRescueAfterHostBoot(t *testing.T) {
	t.Parallel()
	v := startStricken(t, "CYBORG_NOVA_RESCUE_AFTER_HOST_BOOT=hard-reboot")
	ctx, h := t.Context(), newHistorian(t, v.Standalone)
	v.nova.Hold()
	v.boot(t)
	v.until(t, "Nova is asked", func() error {
		for _, who := range v.instances {
			if v.nova.Reboots(who) == 0 {
				return fmt.Errorf("instance %s is not rebooted", who)
			}
		}
		return nil
	})
	for i, arq := range v.arqs {
		require.Equal(t, "lost_at_boot", v.health(t, arq), v.instances[i])
	}
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

// A host boots, and operators look at it themselves: what may be lost is told wherever somebody may look, until it is found or
// they have Nova reboot what needs it.
func TestRescueByHand(t *testing.T) {
	t.Parallel()
	v := startStricken(t)
	ctx, h := t.Context(), newHistorian(t, v.Standalone)
	_, _, code := v.CLI(t, "host", "rescue", rack, "--yes")
	require.Zero(t, code, "there is nothing to do")
	v.boot(t)
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]))
	out, _, code := v.CLI(t, "drift", "list", "--class", "lost_at_boot")
	require.Zero(t, code)
	require.Contains(t, out, v.instances[0].String())
	require.Contains(t, out, v.instances[1].String())
	v.until(t, "the history", func() error {
		if out, _, _ := v.CLI(t, "accelerator", "history", v.cards[0].Name); !strings.Contains(out, "may be lost to instance "+v.instances[0].String()) {
			return fmt.Errorf("it says %s", out)
		}
		return nil
	})

	// One does not run: it will have its accelerator when it is started. Nobody reboots the other.
	v.nova.Set(novatest.Instance{ID: v.instances[1], Status: novatest.ShutOff, Host: rack})
	v.until(t, "found", func() error {
		if health := v.health(t, v.arqs[1]); health != nil {
			return fmt.Errorf("it is %v", health)
		}
		return nil
	})
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]))
	require.Zero(t, v.nova.Reboots(v.instances[0]))

	_, errs, code := v.CLI(t, "host", "rescue", rack)
	require.NotZero(t, code, "somebody loses something, and nobody can be asked")
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
			return fmt.Errorf("not yet")
		}
		return nil
	})
	_, err = v.API.Rescue(ctx, rack, apiclient.Async())
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
	_, err = v.API.CancelOperation(ctx, answer.Operation.ID)
	require.NoError(t, err)
	h.end("cancelled", cyborg.OperationCancelled, answer.Operation.ID)
	require.Equal(t, "lost_at_boot", v.health(t, v.arqs[0]), "nobody knows how it ended")
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
