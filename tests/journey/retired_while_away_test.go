package journey_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestRetiredWhileAway: a card that is off the bus when it is retired, and comes
// back, is uninstalled then, as soon as nobody uses it. Its history tells that.
func TestRetiredWhileAway(t *testing.T) {
	t.Parallel()
	s, ctx := harness.Start(t, harness.Options{
		Hosts: []string{"h=fake:1xfpga"}, Env: []string{"CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s"},
	}), t.Context()
	found := s.Accelerators(t)[0]
	_, err := s.API.MakeReady(ctx, found.UUID)
	require.NoError(t, err)
	device, err := s.API.Device(ctx, found.DeviceUUID)
	require.NoError(t, err)

	see := func(presence cyborg.Presence) {
		harness.Until(t, ctx, string(presence), func() error {
			_, err := s.API.Discover(ctx, "h")
			require.NoError(t, err)
			a, _, err := s.API.Accelerator(ctx, found.UUID)
			if err == nil && a.Presence != presence {
				err = fmt.Errorf("it is %s", a.Presence)
			}
			return err
		})
	}

	// retires returns how the retires have ended that Cyborg itself has asked for.
	retires := func() (ended []cyborg.OperationState) {
		for _, op := range s.Operations(t) {
			if op.Kind == cyborg.OperationRetire && op.Actor.Name == "cyborg" && op.State.Ended() {
				ended = append(ended, op.State)
			}
		}
		slices.Reverse(ended)
		return ended
	}

	bench := s.Bench("h")
	require.NoError(t, bench.Vanish(ctx, device.Identity))
	see(cyborg.PresenceMissing)
	_, err = s.API.Retire(ctx, found.UUID)
	require.NoError(t, err)
	away, _, err := s.API.Accelerator(ctx, found.UUID)
	require.NoError(t, err)
	require.Equal(t, cyborg.LifecycleInactive, away.Lifecycle)
	require.NotZero(t, away.UninstallPending)

	// While it is in maintenance, it is left alone.
	_, err = s.API.Maintain(ctx, found.UUID, apiclient.Maintaining{Reason: "the card is being looked at"})
	require.NoError(t, err)
	require.NoError(t, bench.Return(ctx, device.Identity))
	see(cyborg.PresencePresent)
	require.NoError(t, bench.Use(ctx, device.Identity, found.Handles[0].Identity, "qemu"))
	_, err = s.API.Enable(ctx, found.UUID)
	require.NoError(t, err)
	harness.Until(t, ctx, "refused", func() error {
		if ended := retires(); !slices.Equal(ended, []cyborg.OperationState{cyborg.OperationFailed}) {
			return fmt.Errorf("%s", ended)
		}
		return nil
	})
	card, err := bench.Card(ctx, device.Identity)
	require.NoError(t, err)
	for _, region := range card.Deployables {
		require.True(t, region.Installed, "it is in use")
	}

	require.NoError(t, bench.Use(ctx, device.Identity, found.Handles[0].Identity, ""))
	harness.RequireSound(t, s)
	require.Equal(t, []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationSucceeded}, retires())

	terminal{s, t}.tells([]string{
		"took it out of service; it could not be uninstalled, because the host did not show it",
		"in use by qemu",
		"cyborg took it out of service",
	}, "accelerator", "history", found.UUID.String())
	_, err = s.API.MakeReady(ctx, found.UUID)
	require.NoError(t, err)
	harness.RequireSound(t, s)
}
