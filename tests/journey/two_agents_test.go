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

// TestTwoAgentsUnderOneName copies a machine with its state directory, and
// starts the copy's agent under the same name. The second agent is refused and
// takes no steps while the first one lives. After a kill of the first it takes
// over the host, and the first is refused when it is started again.
func TestTwoAgentsUnderOneName(t *testing.T) {
	t.Parallel()
	s, first, cards := startRack(t, "CYBORG_CONDUCTOR_SILENT_AFTER=30s")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	instance := hostOf(ctx, t, s).Instance
	second := first.Clone(t)
	second.Launch(t)

	// Both agents learn of each other.
	heardOf := func(host cyborg.Host) error {
		if len(host.DuplicateAgents) != 1 {
			return fmt.Errorf("host %s has the duplicate agents %v, not one", host.Name, host.DuplicateAgents)
		}
		return nil
	}

	harness.Until(t, ctx, "recorded as a duplicate agent", func() error { return heardOf(hostOf(ctx, t, s)) })
	harness.Until(t, ctx, "logged by both", func() error {
		if !strings.Contains(second.Output(), "this agent takes no steps") || !strings.Contains(first.Output(), "a second agent speaks for this host") {
			return fmt.Errorf("one of the two agents has not logged that there is a second one")
		}
		return nil
	})

	// If the second agent took steps, it would get one of these.
	for _, card := range cards {
		_, err := s.API.MakeReady(ctx, card.UUID)
		require.NoError(t, err)
	}
	require.NotContains(t, second.Output(), "taking steps from Temporal")

	// The host still belongs to the first agent, and the lists show the second one.
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

	// After the death of the first agent the roles are exchanged.
	first.Kill(t)
	second.WaitHeard(t)
	require.NotEqual(t, instance, hostOf(ctx, t, s).Instance)

	first.Launch(t)
	harness.Until(t, ctx, "refused", func() error {
		if !strings.Contains(first.Output(), "this agent takes no steps") {
			return fmt.Errorf("the first agent has not logged that it takes no steps")
		}
		return nil
	})

	_, err = s.API.Discover(ctx, rack)
	require.NoError(t, err, "the second agent takes steps")
}

// hostOf returns rack as the API shows it.
func hostOf(ctx context.Context, t *testing.T, s *harness.Standalone) cyborg.Host {
	t.Helper()
	host, err := s.API.Host(ctx, rack)
	require.NoError(t, err)
	return host
}
