package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// cleans has the fake driver of the rack clean its handles after every holder.
func cleans(t *testing.T, s *harness.Standalone, options cyborg.JSONObject) {
	t.Helper()
	options["park"] = "5xfpga"
	_, err := s.API.UpdateDriver(t.Context(), rack, "fake", options)
	require.NoError(t, err)

	want, _ := options["clean"].(string)
	harness.Until(t, t.Context(), "reported", func() error { // on a busy machine the report comes after the answer
		for _, a := range s.Accelerators(t) {
			if a.Host == rack && (a.Cleaning == nil || string(a.Cleaning.After) != want) {
				return fmt.Errorf("%s is not cleaned yet", a.Name)
			}
		}
		return nil
	})
}

// residueOf reads what was left on the first handle of the card.
func residueOf(t *testing.T, s *harness.Standalone, device string) fake.Residue {
	t.Helper()
	card, err := s.Bench(rack).Card(t.Context(), device)
	require.NoError(t, err)
	return card.Deployables["r0"].Handles[device].Residue
}

// evidenceOf waits until the first handle of the accelerator is clean, and returns how it was
// cleaned.
func evidenceOf(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID) cyborg.Evidence {
	t.Helper()
	var evidence cyborg.Evidence
	harness.Until(t, ctx, "clean", func() error {
		found, _, err := s.API.Accelerator(ctx, id)
		if err != nil {
			return err
		}
		h := found.Handles[0]
		if h.Holder != nil || h.Unclean != nil || h.Cleaned == nil || found.Claim != nil {
			return fmt.Errorf("the handle is %+v", h)
		}
		evidence = *h.Cleaned
		return nil
	})
	return evidence
}

// TestCleanedBetweenInstances: nobody finds what the holder before him has left, whoever both
// are, although the agent and the servers are killed in the middle.
func TestCleanedBetweenInstances(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=24h", "CYBORG_OPERATIONS_AGENT_WAIT=5m")
	cleans(t, s, cyborg.JSONObject{"clean": "reset"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	id, device := cards[0].UUID, deviceOf(t, s, cards[0])
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	profile(t, s, "plain", map[string]string{"resources:FPGA": "1"})
	profile(t, s, "secret", map[string]string{"resources:FPGA": "1", "accel:clean": "scrub"})

	bind := func(profile, instance string) {
		t.Helper()
		var arq string
		harness.Until(t, ctx, "bound", func() error {
			if arq == "" {
				arq = makeRequest(t, s, profile)
				patchRequest(t, s, arq, cards[0], instance)
			}
			switch got := stateOf(t, s, arq); got {
			case cyborg.ARQBound:
				return nil
			case cyborg.ARQBindFailed: // on a busy machine, a clean takes longer than a bind waits for it
				status, _, _ := request(t, s, "DELETE", requestsPath+"?arqs="+arq, nil)
				require.Equal(t, http.StatusNoContent, status)
				arq = ""
				return fmt.Errorf("it has failed")
			default:
				return fmt.Errorf("it is %q", got)
			}
		})
	}
	first, second := uuid.NewString(), uuid.NewString()
	bind("secret", first)
	require.NoError(t, s.Bench(rack).Leave(ctx, device, device, "instance "+first))

	// At once, as Nova does. The next bind waits for the clean.
	status, _, _ := request(t, s, "DELETE", requestsPath+"?instance="+first, nil)
	require.Equal(t, http.StatusNoContent, status)
	bind("plain", second)
	require.Zero(t, residueOf(t, s, device))
	found, _, err := s.API.Accelerator(ctx, id)
	require.NoError(t, err)
	require.Equal(t, cyborg.CleanScrub, found.Handles[0].Cleaned.Method)
	require.Equal(t, cyborg.CleanReset, found.Handles[0].Clean)
	require.NoError(t, s.Bench(rack).Leave(ctx, device, device, "instance "+second))
	status, _, _ = request(t, s, "DELETE", requestsPath+"?instance="+second, nil)
	require.Equal(t, http.StatusNoContent, status)
	require.Equal(t, cyborg.CleanReset, evidenceOf(ctx, t, s, id).Method)
	require.Empty(t, residueOf(t, s, device).Registers)
	require.NotEmpty(t, residueOf(t, s, device).Stored, "a reset removes nothing that is stored")

	// A scrub of all that is free, which takes long enough to be killed in the middle.
	cleans(t, s, cyborg.JSONObject{"clean": "scrub", "clean_latency": "12s"})
	_, err = s.API.Clean(ctx, id, apiclient.Cleaning{Method: cyborg.CleanScrub}, apiclient.Async())
	require.NoError(t, err)
	harness.Until(t, ctx, "in the middle", func() error {
		card, err := s.Bench(rack).Card(ctx, device)
		if err != nil {
			return err
		}
		if h := card.Deployables["r0"].Handles[device]; h.Scrubbed == 0 && h.Residue.Stored != "" {
			return fmt.Errorf("nothing is scrubbed yet")
		}
		return nil
	})
	a.Kill(t)
	s.Kill(t)
	a.Launch(t)
	s.Restart(t)
	a.WaitHeard(t)
	evidence := evidenceOf(ctx, t, s, id)
	require.Equal(t, cyborg.CleanScrub, evidence.Method)
	require.Zero(t, residueOf(t, s, device))

	p := terminal{s, t}
	stdout, _ := p.run(exitOK, "accelerator", "history", id.String())
	require.Contains(t, stdout, "to be cleaned (scrub) before somebody gets it")
	require.Contains(t, stdout, "clean (reset by fake reset; read back: ")
	require.Contains(t, stdout, "clean (scrub by fake scrub; read back: ")
	_, stderr := p.run(exitOK, "accelerator", "clean", id.String())
	require.Contains(t, stderr, "There was nothing to do")
	harness.RequireSound(t, s)
}

// TestNobodyGetsWhatCannotBeCleaned: what cannot be cleaned stays unclean, with the reason in
// the operation, until somebody has removed the cause, or declares that it is clean.
func TestNobodyGetsWhatCannotBeCleaned(t *testing.T) {
	t.Parallel()
	s, _, cards := startRack(t)
	cleans(t, s, cyborg.JSONObject{"clean": "reset"})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	p, id, device := terminal{s, t}, cards[0].UUID, deviceOf(t, s, cards[0])
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	sticks := func(sticks bool) {
		t.Helper()
		require.NoError(t, s.Bench(rack).Edit(ctx, device, func(card *fake.Card) { card.Deployables["r0"].Handles[device].Sticks = sticks }))
	}

	sticks(true)
	p.run(exitOK, "accelerator", "attach", id.String())
	p.run(exitOK, "accelerator", "detach", id.String(), "--yes")
	failed := func() error {
		found, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationClean}}, apiclient.Page{}))
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return fmt.Errorf("no clean was begun")
		case found[0].State != cyborg.OperationFailed:
			return fmt.Errorf("the clean is %s", found[0].State)
		}
		return nil
	}
	harness.Until(t, ctx, "failed", failed)
	harness.Until(t, ctx, "refused", func() error { // a conductor may be trying again just now
		_, err := s.API.Attach(ctx, id, cyborg.Holder{Kind: cyborg.HolderHost, ID: rack})
		require.Error(t, err)
		if !strings.Contains(err.Error(), "has still to be cleaned (reset)") {
			return err
		}
		return nil
	})

	// In maintenance, nobody but the operator cleans it.
	maintain := func() {
		t.Helper()
		harness.Until(t, ctx, "in maintenance", func() error {
			_, err := s.API.Maintain(ctx, id, apiclient.Maintaining{Reason: "cleaning day"})
			if err == nil {
				found, _, failed := s.API.Accelerator(ctx, id)
				if err = failed; err == nil && found.Claim != nil {
					err = fmt.Errorf("operation %s works on it", found.Claim.Operation)
				}
			}
			return err
		})
	}
	maintain()
	sticks(false)
	stdout, _ := p.run(exitOK, "accelerator", "clean", id.String())
	require.Contains(t, stdout, "cleaned at ")
	require.Empty(t, residueOf(t, s, device).Registers)
	p.run(exitOK, "accelerator", "enable", id.String())

	sticks(true)
	p.run(exitOK, "accelerator", "attach", id.String())
	maintain()
	p.run(exitOK, "accelerator", "detach", id.String(), "--yes")
	_, err = s.API.Clean(ctx, id, apiclient.Cleaning{})
	require.Error(t, err)
	p.run(exitOK, "accelerator", "clean", id.String(), "--declare", "wiped by hand")
	stdout, _ = p.run(exitOK, "accelerator", "show", id.String())
	require.Contains(t, stdout, ": wiped by hand")
	p.run(exitOK, "accelerator", "enable", id.String())

	// The host does not insist on what it had begun.
	p.run(exitOK, "accelerator", "attach", id.String())
	harness.RequireSound(t, s)
}
