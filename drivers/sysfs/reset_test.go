package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// TestResetMethods: what the kernel shows is what it can do, but for what would hit others.
func TestResetMethods(t *testing.T) {
	t.Parallel()
	const qat, vf = "0000:b1:00.0", "0000:b1:01.0"
	for name, c := range map[string]struct {
		shown       string
		whole, part []string // of a card, and of its virtual function
	}{
		"none":               {"", nil, nil},
		"of the function":    {"device_specific flr pm", []string{"device_specific", "flr", "pm"}, []string{"device_specific", "flr", "pm"}},
		"of the bus at last": {"flr bus", []string{"flr", "bus"}, []string{"flr"}},
		"of the bus alone":   {"bus cxl_bus", []string{"bus", "cxl_bus"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			card := sysfstest.QAT(t, qat)
			card.Reset = c.shown
			host := sysfstest.New(t, card)
			host.SetVFs(qat, "1")
			for address, want := range map[string][]string{qat: c.whole, vf: c.part} {
				f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, address))
				require.NoError(t, err)
				require.Equal(t, want, f.ResetMethods, address)
			}
			if c.shown == "" {
				return
			}

			require.NoError(t, os.Remove(filepath.Join(host.Root(), "sys/bus/pci/devices", qat, "reset_method")))
			f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, qat))
			require.NoError(t, err)
			require.Equal(t, []string{sysfs.UnnamedReset}, f.ResetMethods, "before Linux 5.15")
		})
	}
}

// TestRegistersOfWhatHasNone: without a configuration space nobody can tell what a reset did.
func TestRegistersOfWhatHasNone(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	f, err := tree(t, host.Root()).Function(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)
	_, err = tree(t, host.Root()).Registers(t.Context(), f)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), err)

	host.Set(filepath.Join("sys/bus/pci/devices", gpu, "config"), "short")
	_, err = tree(t, host.Root()).Registers(t.Context(), f)
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
}
