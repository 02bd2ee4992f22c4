package sysfs_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// TestVirtualFunctionsAreMade has a driver make virtual functions, and says why it does not.
func TestVirtualFunctionsAreMade(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.QAT(t, qat), sysfstest.GPU(t, gpu))
	b := sysfs.NewBinder(tree(t, host.Root()), host.Simulator, "", deadline, logger(t))
	pf := sysfstest.Address(t, qat)

	number := func() int {
		count, err := b.NumVFs(t.Context(), pf)
		require.NoError(t, err)
		return count
	}
	require.NoError(t, b.SetVFs(t.Context(), pf, 3))
	require.Equal(t, 3, number())
	err := b.SetVFs(t.Context(), pf, 4)
	require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err), err)
	require.NoError(t, b.SetVFs(t.Context(), pf, 0))
	require.Zero(t, number())

	err = b.SetVFs(t.Context(), pf, 17)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	require.ErrorIs(t, err, syscall.ERANGE)
	require.ErrorContains(t, err, qat+" cannot have 17 virtual functions: these are more than its driver can make (driver c6xx)")
	host.Set("sys/bus/pci/devices/"+qat+"/sriov_numvfs", "some\n")
	_, err = b.NumVFs(t.Context(), pf)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	host.Set("sys/bus/pci/devices/"+qat+"/sriov_numvfs", "0\n")

	for _, value := range []string{"0", "1"} {
		require.NoError(t, b.SetAutoprobe(t.Context(), pf, value))
		said, err := b.Autoprobe(t.Context(), pf)
		require.NoError(t, err)
		require.Equal(t, value, said)
	}
	said, err := b.Autoprobe(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)
	require.Empty(t, said, "there is nothing to choose")

	host.Unplug(qat)
	err = b.SetVFs(t.Context(), pf, 1)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), err)
}
