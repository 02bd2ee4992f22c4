package journey_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestNewHardwareIsAdmittedWithoutARound adds hardware where
// inventory.admission is auto. It is taken into service when it is recorded; no
// round of Reconcile is needed.
func TestNewHardwareIsAdmittedWithoutARound(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:2xfpga"},
		Env:   []string{"CYBORG_INVENTORY_ADMISSION=auto", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1h"},
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	ready := func(want int) {
		harness.Until(t, ctx, fmt.Sprint(want, " ready"), func() error {
			found, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusReady}}, apiclient.Page{}))
			if err == nil && len(found) != want {
				err = fmt.Errorf("%d accelerators are ready, not %d", len(found), want)
			}
			return err
		})
	}

	ready(2)

	_, err := s.API.UpdateDriver(ctx, "fake", "fake", cyborg.JSONObject{"park": "3xfpga"})
	require.NoError(t, err)

	ready(3)
	harness.RequireSound(t, s)
}

// TestReconcileAdmitsNewHardwareAndEndsMaintenance runs with
// inventory.admission auto. New hardware is taken into service without a
// request, and maintenance ends at its end time.
func TestReconcileAdmitsNewHardwareAndEndsMaintenance(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:3xgpu"},
		Env:   append(shortWaits(), "CYBORG_INVENTORY_ADMISSION=auto"),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	all := func(want cyborg.Status) {
		harness.Until(t, ctx, "all "+string(want), func() error {
			accelerators, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
			if err != nil {
				return err
			}

			for _, a := range accelerators {
				if a.Status != want {
					return fmt.Errorf("%s is %s, not %s", a.Name, a.Status, want)
				}
			}
			return nil
		})
	}

	all(cyborg.StatusReady)

	for _, op := range s.Operations(t) {
		require.Equal(t, cyborg.OperationProvision, op.Kind)
		require.Equal(t, "cyborg", op.Actor.Name, "the actor of an operation that nobody requested")
	}

	for _, a := range s.Accelerators(t) {
		now, err := s.API.Maintain(ctx, a.UUID, apiclient.Maintaining{Reason: "new fans", Until: time.Now().Add(time.Minute)})
		require.NoError(t, err)
		require.Equal(t, cyborg.StatusMaintaining, now.Status)
	}

	all(cyborg.StatusReady)
	harness.RequireSound(t, s)
}
