package races_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// raceToPartition divides a card into different parts while others attach, program, provision
// and retire what it offers, and give it to Nova. Whoever gets something has it at the end,
// of a card that is divided so that it is there; and whoever is refused is told why.
func (s *system) raceToPartition(t *testing.T) {
	t.Helper()
	const host = "partition"
	ctx := t.Context()
	options := optionsOf("1xfpga", 2)
	options["partition"], options["partition_latency"] = true, "10ms"
	_, err := s.API.UpdateDriver(ctx, host, "fake", options)
	require.NoError(t, err)

	var device apiclient.Device
	harness.Until(t, ctx, "divisible", func() error {
		all, err := apiclient.Collect(s.API.Devices(ctx, apiclient.DeviceFilter{Hosts: []string{host}}, apiclient.Page{}))
		if err == nil && (len(all) != 1 || all[0].Partitioning == nil) {
			err = fmt.Errorf("no card of the host can be divided: %v", all)
		}
		if err == nil {
			device = all[0]
		}
		return err
	})
	const image = "raced"
	require.NoError(t, os.WriteFile(filepath.Join(s.StateDir, "images", host, image), fake.MakeImage("FPGA", image, []byte(image)), 0o600))

	layouts := []cyborg.Layout{{"half": 2}, {"half": 1, "quarter": 2}, {"quarter": 4}, {}}
	const rounds = 8
	won := 0 // requests
	for round := range rounds {
		parts := s.partsOf(t, host)
		requests := s.rivals(t, parts, image, round)
		for i, layout := range layouts {
			requests = append(requests, httpRequest{
				method: http.MethodPost, path: "/v1/devices/" + device.UUID.String() + "/partition", async: i%2 == 1, body: map[string]any{"layout": layout},
			})
		}
		// So that now these come first, and now those.
		shift := round * len(requests) / rounds
		requests = slices.Concat(requests[shift:], requests[:shift])

		answers := s.atOnce(t, requests)
		var ops []uuid.UUID
		for _, op := range s.atRest(t, host) {
			ops = append(ops, op.ID)
		}
		for i, a := range answers {
			requirePlausible(t, requests[i], a, ops)
			if a.operation != uuid.Nil { // it was not refused, and had something to do
				won++
			}
		}
		s.requireOneDivision(t, device.UUID, host)
		s.giveBack(t, host)
	}
	require.GreaterOrEqual(t, won, rounds, "somebody wins each time")
}

// partsOf lists what the card of a host offers, by name.
func (s *system) partsOf(t *testing.T, host string) []apiclient.Accelerator {
	t.Helper()
	parts, err := apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{host}}, apiclient.Page{}))
	require.NoError(t, err)
	require.NotEmpty(t, parts)
	return parts
}

// rivals returns what others want of the parts. All but the last are in service, so that
// this one can be provisioned, and given to Nova.
func (s *system) rivals(t *testing.T, parts []apiclient.Accelerator, image string, round int) []httpRequest {
	t.Helper()
	var all []httpRequest
	for i := range parts {
		part := parts[i].UUID
		if last := i == len(parts)-1; last && round%2 == 0 {
			if parts[i].Lifecycle == cyborg.LifecycleReady {
				_, err := s.API.Retire(t.Context(), part)
				require.NoError(t, err)
			}
			all = append(all,
				httpRequest{method: http.MethodPost, path: path(part) + "/ready"},
				httpRequest{
					method: http.MethodPost, path: "/v1/hosts/" + parts[i].Host + "/nova-whitelist",
					body: map[string]any{"devices": []any{map[string]any{"device": part.String()}}, "apply": true},
				})
			continue
		}

		if parts[i].Lifecycle != cyborg.LifecycleReady {
			_, err := s.API.MakeReady(t.Context(), part)
			require.NoError(t, err)
		}
		all = append(all,
			httpRequest{method: http.MethodPut, path: path(part), body: map[string]any{"service": fmt.Sprintf("s-%d-%d", round, i)}},
			httpRequest{method: http.MethodPut, path: path(part), body: map[string]any{}},
			httpRequest{method: http.MethodPatch, path: path(part) + "/program", body: map[string]any{"image": map[string]any{"source": image, "id": image}}},
			httpRequest{method: http.MethodPost, path: path(part) + "/retire"})
	}
	return all
}

// requirePlausible asserts that a request has won, or was refused because of another
// operation, or because what it names has left the records meanwhile.
func requirePlausible(t *testing.T, r httpRequest, a answer, ops []uuid.UUID) {
	t.Helper()
	switch {
	case a.status < 300, a.status == http.StatusNotFound && a.problem.Kind == cyborg.ErrNotFound:
	default:
		require.Equal(t, http.StatusConflict, a.status, "%s: %s", r, a.text)
		require.Contains(t, []cyborg.ErrorKind{cyborg.ErrClaimed, cyborg.ErrInUse, cyborg.ErrChanged}, a.problem.Kind, "%s: %s", r, a.text)
		if a.problem.Operation != uuid.Nil {
			require.Contains(t, ops, a.problem.Operation, "%s: %s", r, a.text)
		}
	}
}

// requireOneDivision asserts that the records, and all who were given something, agree with
// the card: it has just those parts, and no trip was noted.
func (s *system) requireOneDivision(t *testing.T, device uuid.UUID, host string) {
	t.Helper()
	now, err := s.API.Device(t.Context(), device)
	require.NoError(t, err)
	if now.WantedLayout != nil {
		require.True(t, now.WantedLayout.Equal(now.Partitioning.Layout), "wanted %s, divided into %s", now.WantedLayout, now.Partitioning.Layout)
	}

	shown := 0
	for _, count := range now.Partitioning.Layout {
		shown += count
	}
	parts := s.partsOf(t, host)
	require.Len(t, parts, max(shown, 1))

	bench := s.Bench(host)
	for i := range parts {
		require.Equal(t, cyborg.PresencePresent, parts[i].Presence)
		for _, h := range parts[i].Handles {
			if h.Holder != nil {
				require.NoError(t, bench.Hold(t.Context(), now.Identity, h.Identity, h.Holder.String(), h.Holder.Kind != cyborg.HolderHost))
			}
		}
	}
	trips, err := bench.Trips()
	require.NoError(t, err)
	require.Empty(t, trips)
}

// giveBack takes everything of a host back from whoever has it.
func (s *system) giveBack(t *testing.T, host string) {
	t.Helper()
	_, err := s.API.ApplyWhitelist(t.Context(), host, []apiclient.WhitelistDevice{}, true)
	require.NoError(t, err)
	for _, part := range s.partsOf(t, host) {
		device, err := s.API.Device(t.Context(), part.DeviceUUID)
		require.NoError(t, err)
		for _, h := range part.Handles {
			require.NoError(t, s.Bench(host).Hold(t.Context(), device.Identity, h.Identity, "", false))
		}
		if len(part.Holders) > 0 {
			_, err := s.API.Detach(t.Context(), part.UUID, cyborg.Holder{})
			require.NoError(t, err)
		}
	}
}
