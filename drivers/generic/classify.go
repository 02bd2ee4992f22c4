package generic

import (
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// The vendor ids of PCI-SIG on which a device type or a trait depends.
const (
	vendorAMD     = "1002"
	vendorMatrox  = "102b"
	vendorNVIDIA  = "10de"
	vendorXilinx  = "10ee"
	vendorAltera  = "1172"
	vendorHuawei  = "19e5"
	vendorInspur  = "1bd4"
	vendorSilicom = "1c2c"
	vendorIntel   = "8086"
)

// deviceType derives the type of a function from its class code (PCI Code and
// ID Assignment Specification):
//
//	03xx display controller                → GPU
//	02xx network controller, 0c06 InfiniBand → NIC
//	0108 non-volatile memory controller    → SSD
//	0b40 co-processor, of Intel            → QAT
//	12xx processing accelerator            → FPGA for the makers and products of FPGA cards, GPU for AMD's and NVIDIA's
//	                                         compute cards without a display, else AICHIP
//	anything else                          → PCI
func deviceType(f sysfs.Function) cyborg.DeviceType {
	switch {
	case f.Class.Base() == sysfs.BaseDisplay:
		return cyborg.DeviceTypeGPU
	case f.Class.Base() == sysfs.BaseNetwork, f.Class.Sub() == sysfs.SubInfiniBand:
		return cyborg.DeviceTypeNIC
	case f.Class.Sub() == sysfs.SubNVM:
		return cyborg.DeviceTypeSSD
	case f.Class.Sub() == sysfs.SubCoprocessor && f.Vendor == vendorIntel:
		return cyborg.DeviceTypeQAT
	case f.Class.Base() == sysfs.BaseAccelerator && isFPGA(f):
		return cyborg.DeviceTypeFPGA
	case f.Class.Base() == sysfs.BaseAccelerator && slices.Contains([]string{vendorAMD, vendorNVIDIA}, f.Vendor):
		return cyborg.DeviceTypeGPU
	case f.Class.Base() == sysfs.BaseAccelerator:
		return cyborg.DeviceTypeAIChip
	}

	return cyborg.DeviceTypePCI
}

// isFPGA says whether a processing accelerator is an FPGA: by the vendor or,
// for Intel, by the product, because Intel makes AI accelerators of the same
// class. The product ids are those of drivers/fpga/dfl-pci.c in Linux.
func isFPGA(f sysfs.Function) bool {
	switch f.Vendor {
	case vendorXilinx, vendorInspur, vendorAltera, vendorSilicom:
		return true
	case vendorIntel:
		return slices.Contains([]string{
			"09c4", "09c5", "0b2b", "0b2c", "0b30", "0b31", "bcbd", "bcbf", "bcc0", "bcc1", "bcce", "bccf",
		}, f.Product)
	}

	return false
}

// resourceClass returns the Placement resource class of a function: a standard
// class where there is one, otherwise a custom class. The custom classes are
// those of OpenStack Cyborg, which has none for AI chips. A PGPU is a whole GPU,
// so a virtual function of one has a class of its own. It is not VGPU: of that
// class Nova takes each allocation for one of its own mediated devices
// (nova/virt/libvirt/driver.py, _vgpu_allocations).
func resourceClass(f sysfs.Function) string {
	switch t := deviceType(f); {
	case t == cyborg.DeviceTypeGPU && f.PF != nil:
		return "CUSTOM_GPU_VF"
	case t == cyborg.DeviceTypeGPU:
		return "PGPU"
	case t == cyborg.DeviceTypeFPGA:
		return "FPGA"
	default:
		return "CUSTOM_" + string(t)
	}
}

// traits returns the traits that OpenStack Cyborg's pci_driver reports. Like its NIC driver,
// it adds whether the function is a physical or a virtual one.
func traits(f sysfs.Function) []string {
	list := []string{"OWNER_CYBORG"}
	if name := vendorTrait(f.Vendor); name != "" {
		list = append(list, "CUSTOM_PCI_"+name)
	}
	list = append(list, "CUSTOM_PCI_PRODUCT_ID_"+strings.ToUpper(f.Product))

	switch {
	case f.PF != nil:
		list = append(list, "CUSTOM_VF")
	case f.TotalVFs > 0:
		list = append(list, "CUSTOM_PF")
	}
	return list
}

// vendorTrait returns the name of a vendor in OpenStack Cyborg's traits, or ""
// for a vendor that has none.
func vendorTrait(vendor string) string {
	switch vendor {
	case vendorNVIDIA:
		return "NVIDIA"
	case vendorMatrox:
		return "MATROX"
	case vendorIntel:
		return "INTEL"
	case vendorInspur:
		return "INSPUR"
	case vendorXilinx:
		return "XILINX"
	case vendorHuawei:
		return "HUAWEI"
	}

	return ""
}
