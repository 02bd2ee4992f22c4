package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// sleepers lists the processes that write to the kernel for a function.
func sleepers(t *testing.T, address string) []string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)

	var list []string
	for _, process := range processes {
		line, err := os.ReadFile(process)
		if err == nil && strings.HasPrefix(string(line), "cyborg-kernel-call\x00{\"kind\":\"write\"") && strings.Contains(string(line), address) {
			list = append(list, filepath.Base(filepath.Dir(process)))
		}
	}
	return list
}

// TestHangingDriver attaches a card whose driver does not let go of it. The agent
// can be killed meanwhile, the next one works for other cards and leaves this one
// alone, and when the driver has let go, the operation comes to an end.
func TestHangingDriver(t *testing.T) { //nolint:paralleltest // a host has one agent
	fakebus.Need(t)
	a := startWith(t, "15s")
	spec := fakebus.GPU()
	spec.ID, spec.Driver, spec.VFs, spec.VFDriver = "10de:2331", "stuck", 0, ""
	address := fakebus.PlugInto(t, stuckSlot, spec).At("00.0")
	other := fakebus.PlugInto(t, gpuSlot, fakebus.GPU()).At("00.0")
	stuck, works := a.ready(t, address), a.ready(t, other)
	free := fakebus.HoldDriver(t, "stuck")

	attached := make(chan error, 1)
	go func() { attached <- a.attach(t.Context(), stuck) }()
	a.until(t, "asleep", func(context.Context) error {
		begun := sleepers(t, address)
		if len(begun) != 1 {
			return fmt.Errorf("one process should have begun, and %v have", begun)
		}
		text, err := os.ReadFile("/proc/" + begun[0] + "/stat")
		if err == nil && !strings.Contains(string(text), ") I ") {
			err = fmt.Errorf("it does not sleep in a way that nothing can end: %s", text)
		}
		return err
	})
	begun := sleepers(t, address)

	a.kill(t)
	before := len(a.output(t))
	a.launch(t)
	a.waitHeard(t)
	require.NoError(t, a.attach(t.Context(), works))
	require.NoError(t, a.detach(t.Context(), works))

	a.until(t, "left alone", func(context.Context) error {
		if !strings.Contains(a.output(t)[before:], "hangs in the kernel since") {
			return errors.New("the agent has not said that it hangs")
		}
		return nil
	})
	err := a.detach(t.Context(), stuck)
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
	require.Equal(t, cyborg.StatusAttaching, a.accelerator(t, address).Status)
	require.Equal(t, begun, sleepers(t, address), "nothing was started beside it")

	// The operation goes on with the attach, or with its undo, as it happens.
	free()
	if err := <-attached; err == nil {
		require.Equal(t, "vfio-pci", fakebus.DriverOf(t, address))
		require.NoError(t, a.detach(t.Context(), stuck))
	} else {
		require.ErrorContains(t, err, "hangs in the kernel since")
	}
	end := a.accelerator(t, address)
	require.Equal(t, cyborg.StatusReady, end.Status)
	require.Empty(t, end.Holders)
	require.Equal(t, "stuck", fakebus.DriverOf(t, address))
	require.Empty(t, fakebus.OverrideOf(t, address))
	require.Empty(t, sleepers(t, address))
}
