package pci

import (
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// profile says what cards of one kind are.
type profile struct {
	name string
	// match says whether a function is one of them; nil for every function.
	match func(f sysfs.Function) bool
	// deviceType is their type, and class their resource class in Placement. Virtual
	// functions of a GPU have a class of their own.
	deviceType cyborg.DeviceType
	class      string
	// traits are their traits. In them, {PRODUCT} stands for the product id.
	traits []string
	// exact says that traits are all that they have; otherwise they have those of every
	// function as well.
	exact bool
}

// gpuVFClass is the resource class of virtual functions of a GPU. It is not VGPU: of that
// class Nova takes each allocation for one of its own mediated devices
// (nova/virt/libvirt/driver.py, _vgpu_allocations).
const gpuVFClass = "CUSTOM_GPU_VF"

// wholeGPUClass is that of a whole GPU, which a virtual function must never have.
const wholeGPUClass = "PGPU"

// describe says what a function of the profile is. Part says that it is a virtual function of
// a card of the profile, whose class is that of the whole.
func (p *profile) describe(f sysfs.Function, part bool) passthrough.Description {
	class := p.class
	if f.PF != nil && p.deviceType == cyborg.DeviceTypeGPU && (part || class == wholeGPUClass) {
		class = gpuVFClass
	}

	var traits []string
	if !p.exact {
		traits = append(traits, "OWNER_CYBORG")
	}
	for _, trait := range p.traits {
		traits = append(traits, strings.ReplaceAll(trait, "{PRODUCT}", strings.ToUpper(f.Product)))
	}
	switch {
	case p.exact:
	case f.PF != nil:
		traits = append(traits, "CUSTOM_VF")
	case f.TotalVFs > 0:
		traits = append(traits, "CUSTOM_PF")
	}
	return passthrough.Description{Type: p.deviceType, ResourceClass: class, Traits: traits}
}

// of matches the functions of a vendor.
func of(vendor string, and ...func(sysfs.Function) bool) func(sysfs.Function) bool {
	return func(f sysfs.Function) bool {
		return f.Vendor == vendor && !slices.ContainsFunc(and, func(one func(sysfs.Function) bool) bool { return !one(f) })
	}
}

// product matches these products.
func product(ids ...string) func(sysfs.Function) bool {
	return func(f sysfs.Function) bool { return slices.Contains(ids, f.Product) }
}

// class matches the classes with these first digits.
func class(digits ...string) func(sysfs.Function) bool {
	return func(f sysfs.Function) bool {
		return slices.ContainsFunc(digits, func(d string) bool { return strings.HasPrefix(f.Class.String(), d) })
	}
}

// not matches what another does not.
func not(other func(sysfs.Function) bool) func(sysfs.Function) bool {
	return func(f sysfs.Function) bool { return !other(f) }
}
