package inside

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestBeforeReboot attaches a card, and kills the agent: the records and the
// agent's journal have it attached where TestAfterReboot continues, in the next
// boot.
func TestBeforeReboot(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := start(t)
	card := fakebus.PlugInto(t, rebootSlot, fakebus.GPU())
	require.NoError(t, a.attach(t.Context(), a.ready(t, card.At("00.0"))))
	require.Equal(t, "vfio-pci", fakebus.DriverOf(t, card.At("00.0")))
	a.kill(t) // before the cleanup takes the card out: the agent would report that
}

// TestAfterReboot starts an agent after a boot that has undone an attach. The
// card still has its holder, and is attached to it again.
func TestAfterReboot(t *testing.T) { //nolint:paralleltest // as above
	fakebus.Need(t)
	card := fakebus.PlugInto(t, rebootSlot, fakebus.GPU())
	address := card.At("00.0")
	require.Equal(t, "nvidia", fakebus.DriverOf(t, address), "a boot gives the card to its driver")

	a := start(t)
	var again apiclient.Accelerator
	a.until(t, "attached again", func(context.Context) error {
		again = a.accelerator(t, address)
		if driver := fakebus.DriverOf(t, address); driver != "vfio-pci" || again.Status != cyborg.StatusAttached {
			return fmt.Errorf("%s has the driver %q and is %s", address, driver, again.Status)
		}
		return nil
	})

	require.Equal(t, []cyborg.Holder{holder()}, again.Holders)
	require.NoError(t, a.detach(t.Context(), again.UUID))
	require.Equal(t, "nvidia", fakebus.DriverOf(t, address))
}
