package agent

import (
	"fmt"
	"slices"

	"github.com/cyborg-project/cyborg"
)

// whitelistTodos lists what an operator must still do in Nova for a whitelist
// to take effect. Equal notes appear once, however many devices they are for.
func (a *Activities) whitelistTodos(devices []whitelisted, removed []cyborg.Target, changed bool) []string {
	notes := []string{}
	add := func(format string, args ...any) {
		if note := fmt.Sprintf(format, args...); !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}

	if changed {
		add("Restart nova-compute on %s: it reads [pci] device_spec only when it starts. It must read drop-ins from %s (--config-dir).",
			a.Inventory.Host(), a.Nova.Dir)
	}
	if len(removed) > 0 {
		add("Do not take removed devices into service before nova-compute has been restarted: until then Nova may still give them out.")
	}

	for _, d := range devices {
		if network := d.Spec.PhysicalNetwork; network != "" {
			vnic := "direct"
			if d.novaType == physicalFunction {
				vnic = "direct-physical"
			}
			add("Ports on physical network %s get such a device with --vnic-type %s.", network, vnic)
			continue
		}

		alias := fmt.Sprintf("pci-%s-%s", d.VendorID, d.ProductID)
		class := ""
		if d.Spec.ResourceClass != "" {
			class = fmt.Sprintf(`, "resource_class": %q`, d.Spec.ResourceClass)
		}

		add(`Flavors get such a device through an alias, in the nova.conf of nova-api and nova-compute: [pci] alias = {"name": %q, "vendor_id": %q, "product_id": %q, "device_type": %q%s}; then: openstack flavor set FLAVOR --property pci_passthrough:alias=%s:1`,
			alias, d.VendorID, d.ProductID, d.novaType, class, alias)
	}

	for _, d := range devices {
		if d.Spec.ResourceClass != "" || len(d.Spec.Traits) > 0 {
			add("resource_class and traits count only with [pci] report_in_placement = true.")
		}

		if d.novaType == physicalFunction {
			add("%s is a physical function: create no virtual functions on it while it is in the whitelist.", d.Address)
		}
	}

	return notes
}
