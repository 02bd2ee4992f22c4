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

// waitSilent returns when the host counts as silent.
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

// A host dies with two of its accelerators attached. They are freed by force, and nobody gets them: not while the host is
// dead, and not when it is back, until it has settled them.
func TestForceAndTheHostComesBack(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	ctx := t.Context()
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
	_, err = s.API.ForceDetach(ctx, onHost.UUID, cyborg.Holder{})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "can be detached without force")

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

	requireFenced(t, s, inVM.UUID) // its virtual machine still runs
	require.NoError(t, s.Bench(rack).Use(ctx, device.Identity, inVM.Handles[0].Identity, ""))
	harness.Until(t, ctx, "settled", func() error {
		_, err := s.API.Attach(ctx, inVM.UUID, vm)
		return err
	})
	harness.RequireSound(t, s)
}

func deviceOf(t *testing.T, s *harness.Standalone, a apiclient.Accelerator) string {
	t.Helper()
	device, err := s.API.Device(t.Context(), a.DeviceUUID)
	require.NoError(t, err)
	return device.Identity
}

// requireFenced asserts that nobody holds the accelerator, and that nobody gets it.
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

// A forced detach is killed with the whole standalone, again and again: it happens once, and the records are sound.
func TestKillDuringForce(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
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
				err = fmt.Errorf("fenced: %s", now.Fence.Reason)
			}
			return err
		})
		cancel()
	}
}

// A host is forgotten, with everything that it has, and comes back with an accelerator attached that nobody knows of any
// more: it is a new host, and nobody gets the accelerator until it has been detached there.
func TestForgetHostThatComesBack(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	ctx := t.Context()
	_, err := s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, cards[0].UUID, cyborg.Holder{})
	require.NoError(t, err)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(s.API.ForgetHost(ctx, rack)))
	harness.RequireSound(t, s)
	a.Kill(t)
	waitSilent(t, s, rack)
	err = s.API.ForgetHost(ctx, rack)
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, cards[0].Name)
	_, err = s.API.ForceDetach(ctx, cards[0].UUID, cyborg.Holder{})
	require.NoError(t, err)
	require.NoError(t, s.API.ForgetHost(ctx, rack))
	_, err = s.API.Host(ctx, rack)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)
	_, _, err = s.API.Accelerator(ctx, cards[0].UUID)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)
	operations, err := apiclient.Collect(s.API.Operations(ctx, apiclient.OperationFilter{Hosts: []string{rack}}, apiclient.Page{}))
	require.NoError(t, err)
	require.Len(t, operations, 3, "its history stays")

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
		_, err = s.API.MakeReady(ctx, one.UUID) // as it still is on its card, from before
		require.NoError(t, err)
	}
	harness.RequireSound(t, s)
}
