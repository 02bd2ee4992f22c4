package sysfs

import (
	"context"
	"strings"
)

// VFIO says whether a driver of VFIO has the function.
func (f *Function) VFIO() bool { return strings.Contains(f.Driver, "vfio") }

// Obstructs says whether the function, with the driver that it has now,
// prevents VFIO from using its IOMMU group. The kernel demands
// (Documentation/driver-api/vfio.rst) that each member of a group has no
// driver, a VFIO driver, pci-stub or, if it is a bridge, pcieport.
func (f *Function) Obstructs() bool {
	switch f.Driver {
	case "", "pci-stub", "pcieport":
		return false
	}

	return !f.VFIO()
}

// Obstacles lists the other members of the function's IOMMU group that prevent
// VFIO from using the group.
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
		if other.Address != f.Address && other.IOMMUGroup == f.IOMMUGroup && other.Obstructs() {
			obstacles = append(obstacles, other)
		}
	}

	return obstacles, nil
}
