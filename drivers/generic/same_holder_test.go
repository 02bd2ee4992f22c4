package generic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// A function says in which IOMMU group it is, also where nothing else is in the
// group, or not any more: who has what has left may still be known.
func TestDiscoverReportsGroups(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.In("17", sysfstest.GPU(t, gpu)), sysfstest.In("17", sysfstest.FPGA(t, fpga)), sysfstest.In("18", sysfstest.QAT(t, qat)))

	together := func(spec any) map[string]string {
		all := map[string]string{}
		for _, device := range discover(t, host, spec) {
			for _, deployable := range device.Deployables {
				all[deployable.Name] = deployable.SameHolder
			}
		}
		return all
	}

	require.Equal(t, map[string]string{gpu: "iommu/17", fpga: "iommu/17", qat: "iommu/18"}, together(`[{"vendor_id": "10de"}, {"address": "0000:5e:00.0"}, {"product_id": "37c8"}]`))
	require.Equal(t, map[string]string{gpu: "iommu/17"}, together(`{"vendor_id": "10de"}`), "the other one may be another backend's")

	host.Unplug(fpga)
	require.Equal(t, map[string]string{gpu: "iommu/17"}, together(`{"vendor_id": "10de"}`))
}
