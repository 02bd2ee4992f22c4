package passthrough

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Discover reports the chosen functions as devices, by address. A physical
// function with virtual ones is a device whose deployables are the virtual
// ones: as long as they exist, the physical function itself cannot be given
// out. A virtual function whose physical one is not chosen is a device of its
// own. A card that does not answer on its bus is left out: it is not there any
// more, although the kernel still shows it.
func (d *Driver) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	functions, protection, err := d.tree.Survey(ctx)
	if err != nil {
		return nil, err
	}

	byAddress := map[cyborg.PCIAddress]sysfs.Function{}
	var chosen []sysfs.Function
	for _, f := range functions {
		byAddress[f.Address] = f
		if d.cards.Chosen(f) {
			chosen = append(chosen, f)
		}
	}

	d.names.Fill(ctx, chosen)
	networks, err := d.physicalNetworks(ctx, functions)
	if err != nil {
		return nil, err
	}

	// The device of a physical function lists its virtual ones.
	chosen = slices.DeleteFunc(chosen, func(f sysfs.Function) bool {
		if f.PF == nil {
			return false
		}
		pf, there := byAddress[*f.PF]
		return there && d.cards.Chosen(pf)
	})

	until := time.Now().Add(d.answerLimit) // for both rounds together
	present := d.present(ctx, until, withPhysical(chosen, byAddress))
	maps.Copy(present, d.present(ctx, until, firstFunctions(chosen, byAddress, present)))
	devices, all := []cyborg.DeviceReport{}, byCard(functions)
	for _, f := range chosen {
		if !present[f.Address].Answers {
			continue
		}

		parts := []sysfs.Function{f}
		if len(f.VFs) > 0 {
			parts = nil
			for _, address := range f.VFs {
				if vf, there := byAddress[address]; there {
					parts = append(parts, vf)
				}
			}
		}

		device := d.report(f, parts, protection, networks)
		if d.options.partition {
			device.Partitioning = partitioning(f)
		}
		for i, part := range parts {
			d.addCompanions(&device.Deployables[i], part, all, protection)
			d.addCleaning(&device.Deployables[i], part, byAddress)
		}
		device.Fingerprint = f.Fingerprint(serialOf(f, byAddress, present))
		devices = append(devices, device)
	}

	return devices, nil
}

// physical returns the address of the physical function of a virtual one, and of
// any other function its own.
func physical(f sysfs.Function) cyborg.PCIAddress {
	if f.PF != nil {
		return *f.PF
	}
	return f.Address
}

// numbered returns the addresses of the functions that may have the serial number
// of the function's card, the likeliest first. A card of several functions needs
// to have it in function 0 only (PCI Express Base Specification, 7.9.3).
func numbered(f sysfs.Function) []cyborg.PCIAddress {
	own := physical(f)
	first := own
	first.Function = 0
	if first == own {
		return []cyborg.PCIAddress{own}
	}
	return []cyborg.PCIAddress{own, first}
}

// serialOf returns the serial number of the function's card, of what the functions
// have answered.
func serialOf(f sysfs.Function, byAddress map[cyborg.PCIAddress]sysfs.Function, present map[cyborg.PCIAddress]sysfs.Presence) string {
	for _, address := range numbered(f) {
		if serial := present[address].Serial; serial != "" && byAddress[address].PF == nil {
			return serial
		}
	}
	return ""
}

// firstFunctions returns the functions 0 of the cards that have answered without a
// serial number, as far as they were not asked themselves.
func firstFunctions(
	cards []sysfs.Function, byAddress map[cyborg.PCIAddress]sysfs.Function, present map[cyborg.PCIAddress]sysfs.Presence,
) []sysfs.Function {
	var all []sysfs.Function
	listed := map[cyborg.PCIAddress]bool{}
	for i := range cards {
		places := numbered(cards[i])
		if own := present[places[0]]; len(places) == 1 || !own.Answers || own.Serial != "" {
			continue
		}

		address := places[1]
		_, asked := present[address]
		if first, there := byAddress[address]; there && first.PF == nil && !asked && !listed[address] {
			listed[address] = true
			all = append(all, first)
		}
	}
	return all
}

// withPhysical returns the cards, and the physical functions of those that are
// virtual ones.
func withPhysical(cards []sysfs.Function, byAddress map[cyborg.PCIAddress]sysfs.Function) []sysfs.Function {
	all := slices.Clone(cards)
	listed := make(map[cyborg.PCIAddress]bool, len(cards))
	for i := range cards {
		listed[cards[i].Address] = true
	}

	for i := range cards {
		address := physical(cards[i])
		if pf, there := byAddress[address]; there && !listed[address] {
			listed[address] = true
			all = append(all, pf)
		}
	}
	return all
}

// report describes a device with the functions that can be given out as its
// deployables.
func (d *Driver) report(f sysfs.Function, parts []sysfs.Function, protection sysfs.Protection, networks map[cyborg.PCIAddress]string) cyborg.DeviceReport {
	device := cyborg.DeviceReport{
		Identity: f.Address.String(), Type: d.cards.Describe(f, nil).Type, VendorID: f.Vendor, ProductID: f.Product,
		Vendor: f.VendorName, Model: f.ProductName, NUMANode: f.NUMANode, BoardInfo: boardInfo(f),
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: f.Address.HandleInfo()},
		Deployables: []cyborg.DeployableReport{},
	}

	for _, part := range parts {
		var pf *sysfs.Function
		if part.PF != nil {
			pf = &f
		}
		description := d.cards.Describe(part, pf)
		description.Type = device.Type
		device.Deployables = append(device.Deployables, deployable(part, description, protection[part.Address], networks[part.Address]))
	}

	return device
}

// boardInfo returns what else is known of the card. The kernel driver is left
// out: each attach changes it, and an attach must not look like a change of the
// inventory.
func boardInfo(f sysfs.Function) cyborg.JSONObject {
	info := cyborg.JSONObject{"pci_class": f.Class.String()}

	for key, value := range map[string]string{
		"pci_revision": f.Revision, "iommu_group": f.IOMMUGroup,
		"subsystem_vendor_id": f.SubsystemVendor, "subsystem_product_id": f.SubsystemProduct,
	} {
		if value != "" {
			info[key] = value
		}
	}

	if f.TotalVFs > 0 {
		info["sriov_totalvfs"] = float64(f.TotalVFs)
	}
	return info
}

// deployable describes one function that can be given out. Its name is its
// address; the conductor adds the host's name.
//
// VFIO hands out an IOMMU group as a whole, because the IOMMU cannot keep its
// members from each other's memory. A function alone in its group names it, too:
// another one may have been in it, which is gone and still has a holder.
func deployable(f sysfs.Function, description Description, protected, network string) cyborg.DeployableReport {
	address, group := f.Address.String(), ""
	if f.IOMMUGroup != "" {
		group = "iommu/" + f.IOMMUGroup
	}

	return cyborg.DeployableReport{
		Name: address,
		Specs: cyborg.Specs{
			Num: 1, DeviceType: description.Type, Capability: capability(f), VendorID: f.Vendor, ProductID: f.Product,
		},
		Attributes: attributes(description, network),
		Handles:    []cyborg.HandleReport{{Kind: cyborg.HandlePCI, Info: f.Address.HandleInfo(), Identity: address}},
		SameHolder: group,
		Protected:  protected,
	}
}

// capability returns what a request can match besides the ids: the class and
// the physical function.
func capability(f sysfs.Function) cyborg.JSONObject {
	capability := cyborg.JSONObject{"pci_class": f.Class.String()}
	if f.PF != nil {
		capability["physical_function"] = f.PF.String()
	}
	return capability
}
