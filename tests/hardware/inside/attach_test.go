package inside

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestAttach attaches a GPU and a virtual function of a QAT card. Nobody takes
// them from their user, and afterwards they have the driver that they had.
func TestAttach(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := start(t)
	gpu := fakebus.PlugInto(t, gpuSlot, fakebus.GPU())
	qat := fakebus.PlugInto(t, qatSlot, fakebus.QAT())
	qat.SetVFs(2)

	for address, driver := range map[string]string{gpu.At("00.0"): "nvidia", qat.At("01.1"): "4xxxvf"} {
		require.Equal(t, driver, fakebus.DriverOf(t, address))
		id := a.ready(t, address)

		require.NoError(t, a.attach(t.Context(), id))
		require.Equal(t, "vfio-pci", fakebus.DriverOf(t, address))

		release := fakebus.Hold(t, address, fakebus.Device)
		err := a.detach(t.Context(), id)
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
		require.Equal(t, "vfio-pci", fakebus.DriverOf(t, address))

		release()
		require.NoError(t, a.detach(t.Context(), id))
		require.Equal(t, driver, fakebus.DriverOf(t, address))
	}
}
