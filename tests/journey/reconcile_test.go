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

// Where inventory.admission is auto, new hardware is taken into service by itself; and maintenance ends when it is over.
func TestReconcileAdmitsNewHardwareAndEndsMaintenance(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		Hosts: []string{"fake:3xgpu"},
		Env:   append(shortWaits(), "CYBORG_INVENTORY_ADMISSION=auto"),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	all := func(want cyborg.Status) {
		harness.Until(t, ctx, "all "+string(want), func() error {
			accelerators, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
			if err != nil {
				return err
			}
			for _, a := range accelerators {
				if a.Status != want {
					return fmt.Errorf("%s is %s", a.Name, a.Status)
				}
			}
			return nil
		})
	}
	all(cyborg.StatusReady)
	for _, op := range s.Operations(t) {
		require.Equal(t, cyborg.KindProvision, op.Kind)
		require.Equal(t, "cyborg", op.Actor.Name, "what nobody asked for is our own")
	}
	for _, a := range s.Accelerators(t) {
		now, err := s.API.Maintain(ctx, a.UUID, apiclient.Maintaining{Reason: "new fans", Until: time.Now().Add(3 * time.Second)})
		require.NoError(t, err)
		require.Equal(t, cyborg.StatusMaintaining, now.Status)
	}
	all(cyborg.StatusReady)
	harness.RequireSound(t, s)
}
