package pci

import (
	"strconv"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// The vendor ids of PCI-SIG.
const (
	vendorAMD    = "1002"
	vendorNVIDIA = "10de"
	vendorXilinx = "10ee"
	vendorHuawei = "19e5"
	vendorInspur = "1bd4"
	vendorIntel  = "8086"
)

// profileTable lists the profiles. Types, classes and traits are those of OpenStack Cyborg's
// drivers for the same cards (cyborg/accelerator/drivers), so that flavors and device
// profiles go on matching; where it has no driver, they are made in the same way. No two
// match the same function.
//
// The classes are those of PCI-SIG: 0300 VGA, 0302 3D, 0380 display, 0108 NVM, 0b40
// co-processor, 1200 processing accelerator.
func profileTable() []profile {
	return []profile{
		{
			name: "nvidia-gpu", match: of(vendorNVIDIA, class("0300", "0302")),
			deviceType: cyborg.DeviceTypeGPU, class: wholeGPUClass, traits: []string{"CUSTOM_NVIDIA_{PRODUCT}"},
		},
		{
			// The compute cards call themselves processing accelerators (MI200, MI300).
			name: "amd-gpu", match: of(vendorAMD, class("0300", "0302", "0380", "1200")),
			deviceType: cyborg.DeviceTypeGPU, class: wholeGPUClass, traits: []string{"CUSTOM_AMD_{PRODUCT}"},
		},
		{
			// Only cards for servers: most other displays of Intel belong to the processor.
			name: "intel-gpu", match: of(vendorIntel, class("0300", "0302", "0380"), product(intelGPUTable...)),
			deviceType: cyborg.DeviceTypeGPU, class: wholeGPUClass, traits: []string{"CUSTOM_INTEL_{PRODUCT}"},
		},
		{
			name: "intel-qat", match: of(vendorIntel, product(intelQATTable...)),
			deviceType: cyborg.DeviceTypeQAT, class: "CUSTOM_QAT",
		},
		{
			// OpenStack Cyborg finds the first of them, and gives it no class.
			name: "huawei-ascend", match: of(vendorHuawei, class("1200"), product("d100", "d500", "d801", "d802", "d803")),
			deviceType: cyborg.DeviceTypeAIChip, class: "CUSTOM_AICHIP",
		},
		{
			name: "xilinx-fpga", match: of(vendorXilinx, class("1200"), not(managesAlveo)),
			deviceType: cyborg.DeviceTypeFPGA, class: "FPGA",
			traits: []string{"CUSTOM_FPGA_XILINX", "CUSTOM_FPGA_PRODUCT_ID_{PRODUCT}"},
		},
		{
			name: "inspur-fpga", match: of(vendorInspur, class("1200")),
			deviceType: cyborg.DeviceTypeFPGA, class: "FPGA",
			traits: []string{"CUSTOM_FPGA_INSPUR", "CUSTOM_FPGA_PRODUCT_ID_{PRODUCT}"},
		},
		{
			name: "inspur-ssd", match: of(vendorInspur, class("0108")),
			deviceType: cyborg.DeviceTypeSSD, class: "CUSTOM_SSD",
			traits: []string{"CUSTOM_SSD_INSPUR", "CUSTOM_SSD_PRODUCT_ID_{PRODUCT}"},
		},
	}
}

// intelGPUTable has the products of Intel's Data Center GPU Flex (56c0, 56c1) and Max (0bd4 to
// 0bdb), as include/drm/intel/pciids.h of Linux lists them, and Arc Pro B (e211, e212).
var intelGPUTable = []string{
	"56c0", "56c1",
	"0bd4", "0bd5", "0bd6", "0bd7", "0bd8", "0bd9", "0bda", "0bdb",
	"e211", "e212",
}

// intelQATTable has the physical and virtual functions of QAT: those of
// drivers/crypto/intel/qat/qat_common/adf_accel_devices.h of Linux, and those of its drivers
// for the newer ones.
var intelQATTable = []string{
	"0435", "0443", // DH895xCC
	"19e2", "19e3", // C3xxx
	"37c8", "37c9", // C62x
	"6f54", "6f55", // D15xx
	"18a0", "18a1", // C4xxx
	"18ee", "18ef", // 200xx
	"4940", "4941", // 4xxx
	"4942", "4943", // 401xx
	"4944", "4945", // 402xx
	"4946", "4947", // 420xx
}

// managesAlveo says whether a function manages an Alveo card: it can write the card's flash
// memory, so it stays with the host. Of the cards with two functions, the product id of the
// one for users is the next (src/runtime_src/core/pcie/driver/linux/xocl/devices.h of XRT:
// 5000 and 5001, 5004 and 5005, …).
func managesAlveo(f sysfs.Function) bool {
	const first, last, step = 0x5000, 0x50ff, 4
	id, err := strconv.ParseUint(f.Product, 16, 16)
	return err == nil && id >= first && id <= last && id%step == 0
}

// builtinRows are the rows of a backend that is told nothing else: all profiles.
func builtinRows() []row {
	var rows []row
	for _, p := range profileTable() {
		rows = append(rows, row{profile: p})
	}
	return rows
}
