package generic_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/passthrough/passthroughtest"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/tests/hardware/fakebus"
)

// discover returns what a backend with this spec reports of the host. The names
// come from a file of the test.
func discover(t *testing.T, host *sysfstest.Host, spec any) []cyborg.DeviceReport {
	t.Helper()
	host.Set("usr/share/misc/pci.ids", "10de  NVIDIA Corporation\n\t20b0  GA100 [A100 SXM4 40GB]\n8086  Intel Corporation\n")
	driver, err := generic.New(environment(t, host), map[string]any{
		"device_spec": spec, "pci_ids": filepath.Join(host.Root(), "usr/share/misc/pci.ids"),
	})
	require.NoError(t, err)

	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)
	return devices
}

// A function is reported with everything that the records, Placement and Nova
// need of it.
func TestDiscoverReportsAll(t *testing.T) {
	t.Parallel()
	card := sysfstest.In("17", sysfstest.GPU(t, gpu))
	card.NUMANode, card.SubsystemVendor, card.SubsystemProduct = 1, "10de", "134f"
	devices := discover(t, passthroughtest.NewHost(t, card), `{"vendor_id": "10de"}`)

	node := 1
	info := map[string]string{"domain": "0000", "bus": "3b", "device": "00", "function": "0"}
	require.Equal(t, []cyborg.DeviceReport{{
		Identity: gpu, Type: cyborg.DeviceTypeGPU, VendorID: "10de", ProductID: "20b0",
		Vendor: "NVIDIA Corporation", Model: "GA100 [A100 SXM4 40GB]", Fingerprint: cyborg.Fingerprint{Model: "10de:20b0 10de:134f"}, NUMANode: &node,
		BoardInfo: cyborg.JSONObject{
			"pci_class": "030200", "pci_revision": "00", "iommu_group": "17", "subsystem_vendor_id": "10de", "subsystem_product_id": "134f",
		},
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: info},
		Deployables: []cyborg.DeployableReport{{
			Name: gpu,
			Specs: cyborg.Specs{
				Num: 1, DeviceType: cyborg.DeviceTypeGPU, VendorID: "10de", ProductID: "20b0", Capability: cyborg.JSONObject{"pci_class": "030200"},
			},
			Attributes: []cyborg.Attribute{
				{Key: "rc", Value: "PGPU"},
				{Key: "trait0", Value: "OWNER_CYBORG"},
				{Key: "trait1", Value: "CUSTOM_PCI_NVIDIA"},
				{Key: "trait2", Value: "CUSTOM_PCI_PRODUCT_ID_20B0"},
			},
			Handles:    []cyborg.HandleReport{{Kind: cyborg.HandlePCI, Info: info, Identity: gpu}},
			SameHolder: "iommu/17",
		}},
	}}, devices)
}

// The type and the resource class of a function follow from its class, and from
// its vendor where the class is not enough.
func TestDiscoverTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor, product string
		class           uint32
		deviceType      cyborg.DeviceType
		resourceClass   string
	}{
		{"10de", "1eb8", 0x030000, cyborg.DeviceTypeGPU, "PGPU"},
		{"10de", "20b0", 0x030200, cyborg.DeviceTypeGPU, "PGPU"},
		{"8086", "0bd5", 0x038000, cyborg.DeviceTypeGPU, "PGPU"},
		{"1002", "74a1", 0x120000, cyborg.DeviceTypeGPU, "PGPU"}, // MI300X: no display, a processing accelerator by class
		{"8086", "1572", 0x020000, cyborg.DeviceTypeNIC, "CUSTOM_NIC"},
		{"15b3", "1021", 0x020700, cyborg.DeviceTypeNIC, "CUSTOM_NIC"},
		{"1077", "7322", 0x0c0600, cyborg.DeviceTypeNIC, "CUSTOM_NIC"},
		{"144d", "a80a", 0x010802, cyborg.DeviceTypeSSD, "CUSTOM_SSD"},
		{"1000", "0072", 0x010700, cyborg.DeviceTypePCI, "CUSTOM_PCI"}, // SAS controller
		{"8086", "37c8", 0x0b4000, cyborg.DeviceTypeQAT, "CUSTOM_QAT"},
		{"177d", "a0dd", 0x0b4000, cyborg.DeviceTypePCI, "CUSTOM_PCI"}, // another maker's co-processor
		{"10ee", "5004", 0x120000, cyborg.DeviceTypeFPGA, "FPGA"},
		{"8086", "09c4", 0x120000, cyborg.DeviceTypeFPGA, "FPGA"},
		{"1bd4", "1234", 0x120000, cyborg.DeviceTypeFPGA, "FPGA"},
		{"8086", "7d1d", 0x120000, cyborg.DeviceTypeAIChip, "CUSTOM_AICHIP"}, // NPU
		{"19e5", "d801", 0x120000, cyborg.DeviceTypeAIChip, "CUSTOM_AICHIP"},
		{"1da3", "1020", 0x120000, cyborg.DeviceTypeAIChip, "CUSTOM_AICHIP"},
		{"8086", "0b25", 0x088000, cyborg.DeviceTypePCI, "CUSTOM_PCI"},
		{"abcd", "1234", 0xff0000, cyborg.DeviceTypePCI, "CUSTOM_PCI"},
	} {
		host := sysfstest.New(t, simulator.Function{
			Address: sysfstest.Address(t, gpu), Vendor: c.vendor, Product: c.product, Class: c.class, NUMANode: -1,
		})
		devices := discover(t, host, "*")

		require.Len(t, devices, 1)
		require.Equal(t, c.deviceType, devices[0].Type, c)
		require.Nil(t, devices[0].NUMANode)
		require.Equal(t, c.deviceType, devices[0].Deployables[0].Specs.DeviceType, c)
		require.Equal(t, cyborg.Attribute{Key: "rc", Value: c.resourceClass}, devices[0].Deployables[0].Attributes[0], c)
	}
}

// outline lists each device with its deployables, and whether those are
// physical or virtual functions.
func outline(devices []cyborg.DeviceReport) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, device := range devices {
		parts := map[string]string{}
		for _, deployable := range device.Deployables {
			parts[deployable.Name] = ""
			for _, attribute := range deployable.Attributes {
				if attribute.Value == "CUSTOM_PF" || attribute.Value == "CUSTOM_VF" {
					parts[deployable.Name] = attribute.Value
				}
			}
		}

		all[device.Identity] = parts
	}
	return all
}

// TestDiscoverOffersPhysicalOrVirtualFunctions checks that a card is never
// offered as a whole and in parts at the same time.
func TestDiscoverOffersPhysicalOrVirtualFunctions(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.QAT(t, qat), sysfstest.GPU(t, gpu))
	type parts = map[string]string
	require.Equal(t, map[string]parts{qat: {qat: "CUSTOM_PF"}, gpu: {gpu: ""}}, outline(discover(t, host, "*")))

	host.SetVFs(qat, "2")
	vfs := parts{"0000:b1:01.0": "CUSTOM_VF", "0000:b1:01.1": "CUSTOM_VF"}
	require.Equal(t, map[string]parts{qat: vfs, gpu: {gpu: ""}}, outline(discover(t, host, "*")))
	require.Equal(t, map[string]parts{qat: vfs}, outline(discover(t, host, `{"product_id": "37c8"}`)),
		"virtual functions come with their physical one")
	require.Equal(t, map[string]parts{"0000:b1:01.0": {"0000:b1:01.0": "CUSTOM_VF"}, "0000:b1:01.1": {"0000:b1:01.1": "CUSTOM_VF"}},
		outline(discover(t, host, `{"product_id": "37c9"}`)), "without it they stand alone")

	devices := discover(t, host, `{"vendor_id": "8086"}`)
	require.Equal(t, "37c9", devices[0].Deployables[0].Specs.ProductID)
	require.Equal(t, cyborg.JSONObject{"pci_class": "0b4000", "physical_function": qat}, devices[0].Deployables[0].Specs.Capability)
	require.InDelta(t, 16, devices[0].BoardInfo["sriov_totalvfs"], 0)

	host.SetVFs(qat, "0")
	require.Equal(t, map[string]parts{qat: {qat: "CUSTOM_PF"}}, outline(discover(t, host, `{"vendor_id": "8086"}`)))
}

// A virtual function of a GPU is not a whole GPU, for which others would take it.
func TestDiscoverPartsOfGPU(t *testing.T) {
	t.Parallel()
	card := sysfstest.QAT(t, gpu)
	card.Class = 0x030200
	host := sysfstest.New(t, card)
	require.Equal(t, map[string]string{gpu: "PGPU"}, classes(discover(t, host, "*")))

	host.SetVFs(gpu, "2")
	require.Equal(t, map[string]string{"0000:3b:01.0": "CUSTOM_GPU_VF", "0000:3b:01.1": "CUSTOM_GPU_VF"}, classes(discover(t, host, "*")))
}

// TestDiscoverPartsOfGPUOnKernel does that on the kernel of a machine of
// tests/hardware.
func TestDiscoverPartsOfGPUOnKernel(t *testing.T) {
	t.Parallel()
	fakebus.Need(t)
	card := fakebus.Plug(t, fakebus.GPU())
	driver := live(t, card)
	discover := func() map[string]string {
		devices, err := driver.Discover(t.Context())
		require.NoError(t, err)
		return classes(devices)
	}
	require.Equal(t, map[string]string{card.At("00.0"): "PGPU"}, discover())

	card.SetVFs(2)
	require.Equal(t, map[string]string{card.At("00.1"): "CUSTOM_GPU_VF", card.At("00.2"): "CUSTOM_GPU_VF"}, discover())
}

// classes returns the resource class of each deployable.
func classes(devices []cyborg.DeviceReport) map[string]string {
	all := map[string]string{}
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			all[deployable.Name] = deployable.Attributes[0].Value
		}
	}
	return all
}

// What the host needs is reported with the reason, so that nobody gives it out.
func TestDiscoverReportsProtection(t *testing.T) {
	t.Parallel()
	host := passthroughtest.NewHost(t, sysfstest.GPU(t, gpu), sysfstest.NIC(t, nic, "ens1"))
	host.Up("ens1")
	host.SetVFs(nic, "1")

	protected := map[string]string{}
	for _, device := range discover(t, host, "*") {
		for _, deployable := range device.Deployables {
			protected[deployable.Name] = deployable.Protected
		}
	}

	require.Equal(t, map[string]string{
		gpu: "", "0000:18:01.0": "", // virtual functions of the uplink may be given out
		passthroughtest.Disk: "its disk nvme0n1 is mounted on /",
	}, protected)
}

// TestDiscoverThisMachine reads this machine: every function is found, and
// those that the machine needs are protected.
func TestDiscoverThisMachine(t *testing.T) {
	t.Parallel()
	driver, err := generic.New(drivers.Environment{Root: "/", Log: logger(t)}, map[string]any{"device_spec": "*"})
	require.NoError(t, err)
	devices, err := driver.Discover(t.Context())
	require.NoError(t, err)

	present, err := filepath.Glob("/sys/bus/pci/devices/*")
	require.NoError(t, err)

	found := 0
	for _, device := range devices {
		found += max(1, len(device.Deployables))
		for _, deployable := range device.Deployables {
			if device.Type == cyborg.DeviceTypePCI && device.BoardInfo["pci_class"] == "060000" {
				require.NotEmpty(t, deployable.Protected, "the host bridge %s", deployable.Name)
			}

			disks, err := filepath.Glob("/sys/bus/pci/devices/" + deployable.Name + "/virtio*/block/vda")
			require.NoError(t, err)
			if len(disks) > 0 {
				require.NotEmpty(t, deployable.Protected, "the disk %s", deployable.Name)
			}
		}
	}

	require.Equal(t, len(present), found)
}
