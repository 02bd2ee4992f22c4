package generic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// A function that shares its IOMMU group with another one says so, whether or not
// this backend offers the other one. A bridge in its group does not count, nor
// does a function that has left.
func TestDiscoverReportsSharedGroups(t *testing.T) {
	t.Parallel()
	port := sysfstest.In("17", sysfstest.Bridge(t, "0000:00:01.0"))
	host := newHost(t, port,
		sysfstest.In("17", sysfstest.GPU(t, gpu)), sysfstest.In("17", sysfstest.FPGA(t, fpga)),
		sysfstest.In("18", sysfstest.Bridge(t, "0000:00:02.0")), sysfstest.In("18", sysfstest.QAT(t, qat)))

	together := func(spec any) map[string]string {
		all := map[string]string{}
		for _, device := range discover(t, host, spec) {
			for _, deployable := range device.Deployables {
				all[deployable.Name] = deployable.SameHolder
			}
		}
		return all
	}

	require.Equal(t, map[string]string{gpu: "iommu/17", fpga: "iommu/17", qat: ""}, together(`[{"vendor_id": "10de"}, {"address": "0000:5e:00.0"}, {"product_id": "37c8"}]`))
	require.Equal(t, map[string]string{gpu: "iommu/17"}, together(`{"vendor_id": "10de"}`), "the other one may be another backend's")

	host.Unplug(fpga)
	require.Equal(t, map[string]string{gpu: ""}, together(`{"vendor_id": "10de"}`))
}
