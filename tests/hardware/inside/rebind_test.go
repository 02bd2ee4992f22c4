package inside

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestRebindByHand takes an attached GPU from vfio-pci by hand. The kernel tells the
// agent, whose report has the GPU attached again: the next round of Reconcile is an
// hour away. The history says both.
func TestRebindByHand(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := start(t)
	card := fakebus.PlugInto(t, gpuSlot, fakebus.GPU())
	address := card.At("00.0")
	id := a.ready(t, address)
	require.NoError(t, a.attach(t.Context(), id))
	require.Equal(t, "vfio-pci", fakebus.DriverOf(t, address))

	require.NoError(t, os.WriteFile("/sys/bus/pci/drivers/vfio-pci/unbind", []byte(address), 0o200))
	a.until(t, "attached again", func(ctx context.Context) error {
		told := map[cyborg.EventAxis]bool{}
		for event, err := range a.api.History(ctx, id, apiclient.Page{}) {
			if err != nil {
				return err
			}
			told[event.Axis] = true
		}
		found, _, err := a.api.Accelerator(ctx, id)
		if err != nil {
			return err
		}

		driver := fakebus.DriverOf(t, address)
		if driver != "vfio-pci" || found.Status != cyborg.StatusAttached || !told[cyborg.AxisFence] || !told[cyborg.AxisSettled] {
			return fmt.Errorf("%s has the driver %q and is %s; the history tells of %v", address, driver, found.Status, told)
		}
		return nil
	})

	require.NoError(t, a.detach(t.Context(), id))
	require.Equal(t, "nvidia", fakebus.DriverOf(t, address))
}
