package journey_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// A machine is copied with its state directory, and its agent is started under the same name. It is refused and takes no
// steps while the first one lives, and takes its place after that was killed; then the first one, started again, is refused.
func TestTwoAgentsUnderOneName(t *testing.T) {
	t.Parallel()
	s, first, cards := startRack(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	instance := hostOf(ctx, t, s).Instance
	second := first.Clone(t)
	second.Launch(t)
	heardOf := func(host cyborg.Host) error {
		if len(host.DuplicateAgents) != 1 {
			return fmt.Errorf("host %s has the rivals %v", host.Name, host.DuplicateAgents)
		}
		return nil
	}
	harness.Until(t, ctx, "the second is seen", func() error { return heardOf(hostOf(ctx, t, s)) })
	harness.Until(t, ctx, "both are told", func() error {
		if !strings.Contains(second.Output(), "this agent takes no steps") || !strings.Contains(first.Output(), "a second agent speaks for this host") {
			return fmt.Errorf("one of them has not logged it")
		}
		return nil
	})
	for _, card := range cards { // each of which would be taken by the second sooner or later
		_, err := s.API.MakeReady(ctx, card.UUID)
		require.NoError(t, err)
	}
	require.NotContains(t, second.Output(), "taking steps from Temporal")
	host := hostOf(ctx, t, s)
	require.Equal(t, instance, host.Instance)
	require.Equal(t, len(cards), host.Devices)
	require.NoError(t, heardOf(host))
	services, err := apiclient.Collect(s.API.Services(ctx, apiclient.Page{}))
	require.NoError(t, err)
	refused := 0
	for _, service := range services {
		if service.Refused {
			refused++
			require.Equal(t, rack, service.Host)
		}
	}
	require.Equal(t, 1, refused)
	out, _, code := s.CLI(t, "doctor")
	require.Equal(t, 1, code)
	require.Contains(t, out, "a second agent speaks for a host and is refused: "+rack)
	harness.RequireSound(t, s)

	first.Kill(t)
	second.WaitHeard(t)
	require.NotEqual(t, instance, hostOf(ctx, t, s).Instance)
	first.Launch(t)
	harness.Until(t, ctx, "the first is seen", func() error {
		if !strings.Contains(first.Output(), "this agent takes no steps") {
			return fmt.Errorf("it has not logged it")
		}
		return nil
	})
	_, err = s.API.Discover(ctx, rack)
	require.NoError(t, err, "the second takes steps")
}

func hostOf(ctx context.Context, t *testing.T, s *harness.Standalone) cyborg.Host {
	t.Helper()
	host, err := s.API.Host(ctx, rack)
	require.NoError(t, err)
	return host
}
