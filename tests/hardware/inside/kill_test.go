package inside

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// TestKillBeforeEachWrite kills the agent before each write to the kernel of an
// attach and of a detach. What it has started to make the write ends with it, and
// the next agent finishes what was begun.
func TestKillBeforeEachWrite(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := start(t)
	card := fakebus.PlugInto(t, killedSlot, fakebus.GPU())
	address := card.At("00.0")
	id := a.ready(t, address)
	const drivers = "/sys/bus/pci/drivers/"
	override := "/sys/bus/pci/devices/" + address + "/driver_override"

	type work struct {
		do               func(context.Context, uuid.UUID) error
		driver, override string // afterwards
	}
	attach := &work{a.attach, "vfio-pci", "vfio-pci"}
	detach := &work{a.detach, "nvidia", ""}
	requireDone := func(file string, w *work, err error) {
		t.Helper()
		require.NoError(t, err, file)
		require.Equal(t, w.driver, fakebus.DriverOf(t, address), file)
		require.Equal(t, w.override, fakebus.OverrideOf(t, address), file)
	}

	for _, step := range []struct {
		file             string
		driver, override string // before the write
		kill             *work
		undo             *work // before the next one; nil where that is the next one
	}{
		{override, "nvidia", "", attach, detach},
		{drivers + "nvidia/unbind", "nvidia", "vfio-pci", attach, detach},
		{drivers + "vfio-pci/bind", "", "vfio-pci", attach, nil},
		{override, "vfio-pci", "vfio-pci", detach, attach},
		{drivers + "vfio-pci/unbind", "vfio-pci", "", detach, attach},
		{drivers + "nvidia/bind", "", "", detach, nil},
	} {
		a.kill(t)
		a.launchHeldBack(t, step.file)
		a.waitHeard(t)
		done := make(chan error, 1)
		go func() { done <- step.kill.do(t.Context(), id) }()
		a.killBefore(t, step.file, done)
		require.Equal(t, step.driver, fakebus.DriverOf(t, address), step.file)
		require.Equal(t, step.override, fakebus.OverrideOf(t, address), step.file)

		a.launch(t)
		a.waitHeard(t)
		requireDone(step.file, step.kill, <-done)
		if step.undo != nil {
			requireDone(step.file, step.undo, step.undo.do(t.Context(), id))
		}
	}

	end, _, err := a.api.Accelerator(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, cyborg.StatusReady, end.Status)
	require.Empty(t, end.Holders)
}
