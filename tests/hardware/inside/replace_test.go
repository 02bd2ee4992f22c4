package inside

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestReplacedCard puts another card into the slot of an attached GPU. The other card
// stays with its own driver, and gets to nobody: not to who has the GPU, and not to
// anybody else. Once the GPU is detached, which touches nothing, the other card comes
// as new hardware.
func TestReplacedCard(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := start(t)
	card := fakebus.PlugInto(t, gpuSlot, fakebus.GPU())
	address := card.At("00.0")
	id := a.ready(t, address)
	require.NoError(t, a.attach(t.Context(), id))
	require.Equal(t, "vfio-pci", fakebus.DriverOf(t, address))

	card.Remove()
	fakebus.PlugInto(t, gpuSlot, fakebus.QAT())
	a.until(t, "seen as another card", func(ctx context.Context) error {
		found, _, err := a.api.Accelerator(ctx, id)
		if err == nil && found.ReplacedBy != "8086:4940 8086:0000" {
			err = fmt.Errorf("it is %s, and %q is in its place", found.Status, found.ReplacedBy)
		}
		return err
	})

	_, err := a.api.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()})
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	require.Equal(t, "4xxx", fakebus.DriverOf(t, address))

	require.NoError(t, a.detach(t.Context(), id))
	a.until(t, "new hardware", func(_ context.Context) error {
		found := a.accelerator(t, address)
		if found.UUID == id || found.Status != cyborg.StatusInactive {
			return fmt.Errorf("%s is %s", found.UUID, found.Status)
		}
		return nil
	})
	_, _, err = a.api.Accelerator(t.Context(), id)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "%v", err)
	require.Equal(t, "4xxx", fakebus.DriverOf(t, address))
	require.Empty(t, fakebus.OverrideOf(t, address))
}
