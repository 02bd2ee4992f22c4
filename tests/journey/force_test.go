package journey_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// waitSilent waits until the API shows the host as silent.
func waitSilent(t *testing.T, s *harness.Standalone, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	harness.Until(t, ctx, "silent", func() error {
		now, err := s.API.Host(ctx, host)
		if err == nil && !now.Silent {
			err = fmt.Errorf("host %s was heard at %s", host, now.LastSeen)
		}
		return err
	})
}

// TestForcedDetachThenHostReturns detaches two accelerators of a dead host by
// force. Nobody gets them while the host is away, nor when it is back, until
// the host has settled them.
func TestForcedDetachThenHostReturns(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_SILENT_AFTER=20s")
	ctx := t.Context()

	// One accelerator is attached to its host, the other to an instance.
	onHost, inVM := cards[0], cards[1]
	vm := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}

	for _, card := range []apiclient.Accelerator{onHost, inVM} {
		_, err := s.API.MakeReady(ctx, card.UUID)
		require.NoError(t, err)
	}

	_, err := s.API.Attach(ctx, onHost.UUID, cyborg.Holder{})
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, inVM.UUID, vm)
	require.NoError(t, err)
	harness.RequireSound(t, s)

	// While the host answers, force is refused.
	_, err = s.API.ForceDetach(ctx, onHost.UUID, cyborg.Holder{})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "can be detached without force")

	// The agent dies. The instance keeps using its accelerator.
	a.Kill(t)
	waitSilent(t, s, rack)

	device, err := s.API.Device(ctx, inVM.DeviceUUID)
	require.NoError(t, err)
	require.NoError(t, s.Bench(rack).Use(ctx, device.Identity, inVM.Handles[0].Identity, "qemu"))

	for _, card := range []apiclient.Accelerator{onHost, inVM} {
		answer, err := s.API.ForceDetach(ctx, card.UUID, cyborg.Holder{}, apiclient.Async())
		require.NoError(t, err)

		op := ended(t, s, caught{id: answer.Operation.ID})
		require.Equal(t, cyborg.OperationSucceeded, op.State, "%+v", op.Error)
		require.Contains(t, op.Result["forced"], "host rack1 is silent since")
		require.Len(t, op.Result["not_done"], 1)
		requireFenced(t, s, card.UUID)
	}

	// The host comes back and settles its own accelerator, which is free then.
	a.Restart(t)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()

	harness.Until(t, ctx, "settled", func() error {
		now, _, err := s.API.Accelerator(ctx, onHost.UUID)
		if err == nil && now.Fence != nil {
			err = fmt.Errorf("fenced: %s", now.Fence.Reason)
		}
		return err
	})

	card, err := s.Bench(rack).Card(ctx, deviceOf(t, s, onHost))
	require.NoError(t, err)

	for _, region := range card.Deployables {
		require.False(t, region.Handles[onHost.Handles[0].Identity].Attached, "its host has detached it")
	}

	_, err = s.API.Attach(ctx, onHost.UUID, cyborg.Holder{})
	require.NoError(t, err)

	// The other one stays fenced until the instance no longer uses it.
	requireFenced(t, s, inVM.UUID)
	require.NoError(t, s.Bench(rack).Use(ctx, device.Identity, inVM.Handles[0].Identity, ""))

	harness.Until(t, ctx, "settled", func() error {
		_, err := s.API.Attach(ctx, inVM.UUID, vm)
		return err
	})

	harness.RequireSound(t, s)
}

// deviceOf returns the identity of an accelerator's device.
func deviceOf(t *testing.T, s *harness.Standalone, a apiclient.Accelerator) string {
	t.Helper()

	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)

	return device.Identity
}

// requireFenced asserts that nobody holds the accelerator, and that an attach
// is refused because its host may still have it attached.
func requireFenced(t *testing.T, s *harness.Standalone, id uuid.UUID) {
	t.Helper()

	now, _, err := s.API.Accelerator(t.Context(), id)
	require.NoError(t, err)

	require.Empty(t, now.Holders)
	require.NotNil(t, now.Fence)

	_, err = s.API.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderService, ID: "thief"})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "its host may still have it attached")
}

// TestKillDuringForce kills the whole standalone during forced detaches. Each
// detach takes effect once, and the records are sound.
func TestKillDuringForce(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_SILENT_AFTER=20s")
	_, err := s.API.MakeReady(t.Context(), cards[0].UUID)
	require.NoError(t, err)

	for range 3 {
		_, err = s.API.Attach(t.Context(), cards[0].UUID, cyborg.Holder{})
		require.NoError(t, err)

		a.Kill(t)
		waitSilent(t, s, rack)

		answer, err := s.API.ForceDetach(t.Context(), cards[0].UUID, cyborg.Holder{}, apiclient.Async())
		require.NoError(t, err)

		s.Kill(t)
		s.Restart(t)

		op := ended(t, s, caught{id: answer.Operation.ID})
		require.Equal(t, cyborg.OperationSucceeded, op.State, "%+v", op.Error)

		a.Restart(t)
		harness.RequireSound(t, s)

		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		harness.Until(t, ctx, "settled", func() error {
			now, _, err := s.API.Accelerator(ctx, cards[0].UUID)
			if err == nil && now.Fence != nil {
				err = fmt.Errorf("the accelerator is still fenced: %s", now.Fence.Reason)
			}
			return err
		})
		cancel()
	}
}

// TestForgottenHostReturns forgets a host that comes back with an accelerator
// still attached. It counts as a new host, and nobody gets the accelerator
// before the host has detached it.
func TestForgottenHostReturns(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_SILENT_AFTER=20s")
	ctx := t.Context()

	// A host that is not silent cannot be forgotten.
	_, err := s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, cards[0].UUID, cyborg.Holder{})
	require.NoError(t, err)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(s.API.ForgetHost(ctx, rack)))
	harness.RequireSound(t, s)

	// A silent host can be forgotten when none of its accelerators is held.
	a.Kill(t)
	waitSilent(t, s, rack)

	err = s.API.ForgetHost(ctx, rack)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, cards[0].Name)

	_, err = s.API.ForceDetach(ctx, cards[0].UUID, cyborg.Holder{})
	require.NoError(t, err)
	require.NoError(t, s.API.ForgetHost(ctx, rack))

	// The host and its accelerators are gone from the records; the operations stay.
	_, err = s.API.Host(ctx, rack)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)
	_, _, err = s.API.Accelerator(ctx, cards[0].UUID)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)

	operations, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{Hosts: []string{rack}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, operations, 3, "operations of the forgotten host")

	// The host comes back as a new one, and detaches what it still has attached.
	a.Restart(t)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()

	var again []apiclient.Accelerator
	harness.Until(t, ctx, "settled", func() error {
		again, err = apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{rack}}, apiclient.Page{}))
		if err != nil {
			return err
		}

		for _, one := range again {
			if one.Fence != nil {
				return fmt.Errorf("%s is fenced: %s", one.Name, one.Fence.Reason)
			}
		}
		return nil
	})

	require.Len(t, again, len(cards))

	for _, one := range again {
		require.NotEqual(t, cards[0].UUID, one.UUID)
		require.Equal(t, cyborg.StatusInactive, one.Status)

		if one.ProviderName != cards[0].ProviderName {
			continue
		}

		card, err := s.Bench(rack).Card(ctx, deviceOf(t, s, one))
		require.NoError(t, err)
		require.False(t, card.Deployables["r0"].Handles[one.Handles[0].Identity].Attached, "its host has detached it")

		_, err = s.API.MakeReady(ctx, one.UUID) // its card still has it installed from before
		require.NoError(t, err)
	}

	harness.RequireSound(t, s)
}
