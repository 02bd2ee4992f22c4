package journey_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// prepares has the fake driver of the rack prepare the handles of its cards for
// whoever gets one.
func prepares(t *testing.T, s *harness.Standalone) {
	t.Helper()
	_, err := s.API.UpdateDriver(t.Context(), rack, "fake", cyborg.JSONObject{"park": "5xfpga", "prepares": true})
	require.NoError(t, err)

	harness.Until(t, t.Context(), "reported", func() error { // on a busy machine the report comes after the answer
		for _, a := range s.Accelerators(t) {
			if a.Host == rack && a.Preparation == nil {
				return fmt.Errorf("%s is not prepared yet", a.Name)
			}
		}
		return nil
	})
}

// requirePrepared requires that the first handle of the card is prepared with these
// parameters; nil means that it is as neutral as a new one.
func requirePrepared(ctx context.Context, t *testing.T, s *harness.Standalone, device string, parameters map[string]string) {
	t.Helper()
	harness.Until(t, ctx, "prepared", func() error {
		card, err := s.Bench(rack).Card(ctx, device)
		if err != nil {
			return err
		}
		handle := card.Deployables["r0"].Handles[device]
		if handle.Attached != (parameters != nil) || !maps.Equal(handle.Parameters, parameters) {
			return fmt.Errorf("the handle is %+v, not prepared with %v", *handle, parameters)
		}
		return nil
	})
}

// TestPreparedForAnInstance: an instance gets a handle with what was chosen for it. A
// wrong choice is refused before anything is done. A boot of the host undoes it, and
// the host prepares it again. What is taken back has nothing of it.
func TestPreparedForAnInstance(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=24h")
	prepares(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	p, id, device := terminal{s, t}, cards[0].UUID, deviceOf(t, s, cards[0])
	instance := uuid.NewString()
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)

	stdout, _ := p.run(exitOK, "accelerator", "show", id.String())
	require.Contains(t, stdout, "vlan")
	_, stderr := p.run(exitUsage, "accelerator", "attach", id.String(), "--instance", instance, "--parameter", "vlan=5000")
	require.Contains(t, stderr, "a whole number from 0 to 4094")
	_, stderr = p.run(exitUsage, "accelerator", "attach", id.String(), "--instance", instance, "--parameter", "colour=red")
	require.Contains(t, stderr, `no parameter "colour": it has mac, `)
	requirePrepared(ctx, t, s, device, nil)

	chosen := map[string]string{"mac": "52:54:00:12:34:56", "vlan": "7"}
	p.run(exitOK, "accelerator", "attach", id.String(), "--instance", instance, "--parameter", "mac=52:54:00:12:34:56", "--parameter", "vlan=7")
	requirePrepared(ctx, t, s, device, chosen)
	found, _, err := s.API.Accelerator(ctx, id)
	require.NoError(t, err)
	require.Equal(t, cyborg.StatusAttached, found.Status)
	require.True(t, found.Handles[0].Prepared)
	require.Equal(t, chosen, found.Handles[0].Parameters)
	harness.RequireSound(t, s)

	a.Kill(t)
	a.Reboot(t)
	a.Restart(t)
	requirePrepared(ctx, t, s, device, chosen)
	harness.Until(t, ctx, "settled", func() error { return isStatus(ctx, s, id, cyborg.StatusAttached) })
	harness.RequireSound(t, s)

	require.NoError(t, s.Bench(rack).Use(ctx, device, device, "qemu"))
	_, stderr = p.run(exitConflict, "accelerator", "detach", id.String(), "--yes")
	require.Contains(t, stderr, "in use by qemu")
	requirePrepared(ctx, t, s, device, chosen)
	require.NoError(t, s.Bench(rack).Use(ctx, device, device, ""))
	p.run(exitOK, "accelerator", "detach", id.String(), "--yes")
	requirePrepared(ctx, t, s, device, nil)

	stdout, _ = p.run(exitOK, "accelerator", "history", id.String())
	require.Contains(t, stdout, "mac=52:54:00:12:34:56")
	harness.RequireSound(t, s)
}

// isStatus returns an error while the accelerator has another status.
func isStatus(ctx context.Context, s *harness.Standalone, id uuid.UUID, want cyborg.Status) error {
	found, _, err := s.API.Accelerator(ctx, id)
	if err == nil && found.Status != want {
		err = fmt.Errorf("it is %s, and not %s", found.Status, want)
	}
	return err
}

// TestPreparedRequests: a request's handle is prepared with what its profile chooses.
// When Nova deletes the requests of an instance, which needs no host, the next instance
// gets the handle once the host has taken it back, and with its own choice.
func TestPreparedRequests(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=24h")
	prepares(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	id, device := cards[0].UUID, deviceOf(t, s, cards[0])
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	profile(t, s, "seven", map[string]string{"resources:FPGA": "1", "accel:parameter:vlan": "7"})
	profile(t, s, "eight", map[string]string{"resources:FPGA": "1", "accel:parameter:vlan": "8"})
	profile(t, s, "unknown", map[string]string{"resources:FPGA": "1", "accel:parameter:colour": "red"})

	bind := func(profile, instance string) string {
		t.Helper()
		arq := makeRequest(t, s, profile)
		patchRequest(t, s, arq, cards[0], instance)
		return arq
	}
	becomes := func(arq string, want cyborg.ARQState) {
		t.Helper()
		harness.Until(t, ctx, "state of the request", func() error {
			if got := stateOf(t, s, arq); got != want {
				return fmt.Errorf("it is %q, and not %q", got, want)
			}
			return nil
		})
	}

	becomes(bind("unknown", uuid.NewString()), cyborg.ARQBindFailed)
	requirePrepared(ctx, t, s, device, nil)

	first := uuid.NewString()
	becomes(bind("seven", first), cyborg.ARQBound)
	requirePrepared(ctx, t, s, device, map[string]string{"vlan": "7"})
	harness.RequireSound(t, s)

	// At once, as Nova does.
	status, _, _ := request(t, s, "DELETE", requestsPath+"?instance="+first, nil)
	require.Equal(t, http.StatusNoContent, status)
	second := bind("eight", uuid.NewString())
	becomes(second, cyborg.ARQBound)
	requirePrepared(ctx, t, s, device, map[string]string{"vlan": "8"})
	harness.RequireSound(t, s)

	// With the host away, the handle waits for it.
	a.Kill(t)
	status, _, _ = request(t, s, "DELETE", requestsPath+"?arqs="+second, nil)
	require.Equal(t, http.StatusNoContent, status)
	found, _, err := s.API.Accelerator(ctx, id)
	require.NoError(t, err)
	require.Equal(t, cyborg.StatusAttached, found.Status)
	a.Restart(t)
	requirePrepared(ctx, t, s, device, nil)
	harness.Until(t, ctx, "free", func() error { return isStatus(ctx, s, id, cyborg.StatusReady) })

	// An unbind asks the host itself.
	third := bind("seven", uuid.NewString())
	becomes(third, cyborg.ARQBound)
	patchRequest(t, s, third, cards[0], "")
	becomes(third, cyborg.ARQUnbound)
	requirePrepared(ctx, t, s, device, nil)
	harness.RequireSound(t, s)
}

// TestKillsWhileHandlesArePrepared kills the agent and the standalone while a handle is
// prepared for an instance, and while it is taken back. Both go on afterwards.
func TestKillsWhileHandlesArePrepared(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_OPERATIONS_AGENT_WAIT=5m") // the agent is away until both are back
	prepares(t, s)
	instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	i := 0

	for _, stage := range stages(rack) {
		switch stage.activity {
		case workflows.AttachActivity:
			stage.begin = func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
				return s.API.Attach(ctx, id, instance, apiclient.Async())
			}
			stage.after = func(t *testing.T, a apiclient.Accelerator) {
				t.Helper()
				require.Equal(t, []cyborg.Holder{instance}, a.Holders)
			}
		case workflows.DetachActivity:
			stage.before = func(t *testing.T, s *harness.Standalone, id uuid.UUID) {
				t.Helper()
				_, err := s.API.MakeReady(t.Context(), id)
				require.NoError(t, err)
				_, err = s.API.Attach(t.Context(), id, instance)
				require.NoError(t, err)
			}
		default:
			continue
		}

		c := catch(t, s, stage, cards[i].UUID)
		i++
		a.Kill(t)
		s.Kill(t)
		c.hurry(t, s)
		a.Launch(t)
		s.Restart(t)
		a.WaitHeard(t)
		c.requireDone(t, s)
	}
	require.Equal(t, 2, i)
}
