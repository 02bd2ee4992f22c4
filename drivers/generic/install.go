package generic

import (
	"context"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Install checks that the function can be attached: it is there, it is the one
// that was discovered, the host does not need it, VFIO can use its IOMMU group,
// and there is a VFIO driver. It changes nothing.
func (d *Driver) Install(ctx context.Context, target drivers.Target) error {
	if err := d.requireKernel(ctx); err != nil {
		return err
	}

	_, err := d.usable(ctx, target, target.Deployable.Name)
	return err
}

// Uninstall does nothing, because Install changes nothing.
func (d *Driver) Uninstall(ctx context.Context, _ drivers.Target) error {
	if err := ctx.Err(); err != nil {
		return cyborg.Errorf(cyborg.ErrTimeout, "not begun: %w", err)
	}
	return nil
}

// usable reads the function as it is at this moment and returns an error that
// says why it cannot be given to VFIO.
func (d *Driver) usable(ctx context.Context, target drivers.Target, identity string) (sysfs.Function, error) {
	f, err := d.find(ctx, target, identity)
	if err != nil {
		return sysfs.Function{}, err
	}

	if !d.chosen(f) && (f.PF == nil || !d.chosenAt(ctx, *f.PF)) {
		return sysfs.Function{}, cyborg.Errorf(cyborg.ErrNotFound, "the device_spec of backend %q does not choose %s (%s:%s)",
			d.backend, f.Address, f.Vendor, f.Product)
	}

	protection, err := d.tree.Protection(ctx)
	if err != nil {
		return sysfs.Function{}, err
	}
	if reason, protected := protection[f.Address]; protected {
		return sysfs.Function{}, cyborg.Errorf(cyborg.ErrProtected, "%s is not touched, because the host lives on it: %s", f.Address, reason)
	}

	if n := len(f.VFs); n > 0 {
		return sysfs.Function{}, cyborg.Errorf(cyborg.ErrInUse, "%s has %d virtual functions and so cannot be given out itself", f.Address, n).
			WithHint("Give out the virtual functions, or write 0 to sriov_numvfs.")
	}

	if answers, err := d.tree.Answers(ctx, f, true); err != nil {
		return sysfs.Function{}, err
	} else if !answers {
		return sysfs.Function{}, cyborg.Errorf(cyborg.ErrHardware, "%s does not answer on its bus: the card was pulled out, or its link is down", f.Address).
			WithHint("Put the card back, or remove it from the bus: echo 1 > /sys/bus/pci/devices/%s/remove", f.Address)
	}

	return f, d.requireVFIO(ctx, f)
}

// chosenAt says whether the function at the address is chosen. A virtual
// function is chosen with its physical one.
func (d *Driver) chosenAt(ctx context.Context, address cyborg.PCIAddress) bool {
	f, err := d.tree.Function(ctx, address)
	return err == nil && d.chosen(f)
}

// find reads the function that a call is about. The error is of kind
// ErrNotFound where there is none at the address, and of kind ErrChanged where
// another card is there now.
func (d *Driver) find(ctx context.Context, target drivers.Target, identity string) (sysfs.Function, error) {
	address, err := cyborg.ParsePCIAddress(identity)
	if err != nil {
		return sysfs.Function{}, err
	}

	f, err := d.tree.Function(ctx, address)
	if err != nil {
		return sysfs.Function{}, err
	}

	if known := target.Deployable.Specs; known.VendorID != f.Vendor || known.ProductID != f.Product {
		return sysfs.Function{}, cyborg.Errorf(cyborg.ErrChanged, "at %s there is now %s:%s; it was %s:%s",
			address, f.Vendor, f.Product, known.VendorID, known.ProductID).WithHint("Discover the host again.")
	}

	return f, nil
}

// requireVFIO returns an error that says why VFIO cannot use the function.
func (d *Driver) requireVFIO(ctx context.Context, f sysfs.Function) error {
	if f.IOMMUGroup == "" {
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s has no IOMMU group, without which VFIO cannot have it", f.Address).
			WithHint("Enable VT-d or AMD-Vi in the firmware, and on the kernel command line (intel_iommu=on).")
	}

	obstacles, err := d.tree.Obstacles(ctx, f)
	if err != nil {
		return err
	}

	if len(obstacles) > 0 {
		list := make([]string, len(obstacles))
		for i, other := range obstacles {
			list[i] = other.Address.String() + " has the driver " + other.Driver
		}
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s shares IOMMU group %s with functions that the host uses: %s; VFIO takes whole groups",
			f.Address, f.IOMMUGroup, strings.Join(list, ", ")).
			WithHint("Unbind those functions from their drivers, or bind them to %s.", d.options.vfio)
	}

	if !d.binder.Available(d.options.vfio) {
		return cyborg.Errorf(cyborg.ErrUnsupported, "this kernel has no driver %s", d.options.vfio).
			WithHint("Install the kernel package that has the module, or choose another with the option %s.", optionVFIO)
	}

	return nil
}
