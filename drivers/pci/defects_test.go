package pci_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// The defects of OpenStack Cyborg's drivers that docs/differences.md lists.

// TestL17Ascend discovers an Ascend. It can be recorded: it has a resource class, and its
// address for a name, to which the conductor adds that of the host, as to all others.
func TestL17Ascend(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, function(t, "0000:21:00.0", "19e5", "d100", 0x120000))
	devices := discover(t, host, []any{"huawei-ascend"})
	require.Equal(t, []fact{{"0000:21:00.0", "AICHIP", "CUSTOM_AICHIP", []string{"OWNER_CYBORG"}}}, facts(devices))
}

// TestL19TypesAndVendors discovers cards of several kinds. Each has its own type, and all
// vendor ids have one form.
func TestL19TypesAndVendors(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.QAT(t, qat), function(t, "0000:21:00.0", "1bd4", "1001", 0x010802))
	types, vendors := map[cyborg.DeviceType]bool{}, map[string]bool{}
	for _, device := range discover(t, host, nil) {
		types[device.Type], vendors[device.VendorID] = true, true
	}
	require.Equal(t, map[cyborg.DeviceType]bool{cyborg.DeviceTypeGPU: true, cyborg.DeviceTypeQAT: true, cyborg.DeviceTypeSSD: true}, types)
	require.Equal(t, map[string]bool{"10de": true, "8086": true, "1bd4": true}, vendors)
}

// TestL20PartsAreNotWhole discovers a GPU that was divided by hand. Nobody who asks for a whole
// one gets any of it.
func TestL20PartsAreNotWhole(t *testing.T) {
	t.Parallel()
	card := sysfstest.GPU(t, gpu)
	card.TotalVFs, card.VFProduct, card.VFDriver = 16, "20b0", "nvidia"
	host := passthroughtest.NewHost(t, card)
	host.SetVFs(gpu, "16")

	parts := facts(discover(t, host, nil))
	require.Len(t, parts, 16)
	for _, part := range parts {
		require.Equal(t, "CUSTOM_GPU_VF", part.class)
	}
}

// TestL25NothingIsProgrammed asks what the driver can do with FPGAs. It does not say that it
// could program them, so a request for that is refused before anything is touched.
func TestL25NothingIsProgrammed(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, alveo(t)...)
	require.NotContains(t, drivers.Services(newDriver(t, host)), "program")
}

// TestL30CleanBetweenHolders has a holder leave something in a card, which the next one does
// not find.
func TestL30CleanBetweenHolders(t *testing.T) {
	t.Parallel()
	card := sysfstest.GPU(t, gpu)
	card.Reset = "flr"
	host := passthroughtest.NewHost(t, card)
	driver := newDriver(t, host)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	target, handle := passthroughtest.Choose(gpu)(t, devices)
	passthroughtest.Leave(t, host.Root(), handle)
	require.NotEmpty(t, passthroughtest.Left(t, host.Root(), handle))

	evidence, err := driver.(drivers.Cleaner).Clean(t.Context(), drivers.CleanRequest{
		Target: target, Handle: handle, Method: cyborg.CleanReset,
		Note: func(json.RawMessage) error { return nil }, Progress: func(int, string) {},
	})
	require.NoError(t, err)
	require.Equal(t, cyborg.CleanReset, evidence.Method)
	require.Empty(t, passthroughtest.Left(t, host.Root(), handle))
}
