package sysfs

import (
	"context"
	"strings"
)

// obstructs says whether the function, as it is now, keeps vfio from using its IOMMU group. The kernel's rule
// (Documentation/driver-api/vfio.rst): each member has no driver, a vfio driver, pci-stub or, for bridges, pcieport.
func (f *Function) obstructs() bool {
	switch f.Driver {
	case "", "pci-stub", "pcieport":
		return false
	}
	return !strings.Contains(f.Driver, "vfio")
}

// Obstacles lists the other members of the function's IOMMU group that keep vfio from using it.
func (t *Tree) Obstacles(ctx context.Context, f Function) ([]Function, error) {
	if f.IOMMUGroup == "" {
		return nil, nil
	}
	functions, err := t.Functions(ctx)
	if err != nil {
		return nil, err
	}
	var obstacles []Function
	for _, other := range functions {
		if other.Address != f.Address && other.IOMMUGroup == f.IOMMUGroup && other.obstructs() {
			obstacles = append(obstacles, other)
		}
	}
	return obstacles, nil
}
