package generic

import (
	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// sameHolder returns, by the address of a function, the IOMMU group that it
// shares with another one: VFIO hands out a group as a whole, because the IOMMU
// cannot keep its members from each other's memory. Bridges do not count: a
// group may have them whoever uses the rest.
//
// All functions of the host count, whatever this backend has chosen: another
// backend may offer the other one.
func sameHolder(functions []sysfs.Function) map[cyborg.PCIAddress]string {
	groups := map[string][]cyborg.PCIAddress{}
	for _, f := range functions {
		if f.IOMMUGroup != "" && f.Class.Base() != sysfs.BaseBridge {
			groups[f.IOMMUGroup] = append(groups[f.IOMMUGroup], f.Address)
		}
	}

	shared := map[cyborg.PCIAddress]string{}
	for group, members := range groups {
		if len(members) < 2 {
			continue
		}

		for _, address := range members {
			shared[address] = "iommu/" + group
		}
	}

	return shared
}
