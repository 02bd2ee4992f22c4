package passthrough

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

	_, _, err := d.usable(ctx, target, target.Deployable.Name)
	return err
}

// Uninstall does nothing, because Install changes nothing.
func (d *Driver) Uninstall(ctx context.Context, _ drivers.Target) error {
	if err := ctx.Err(); err != nil {
		return cyborg.Errorf(cyborg.ErrTimeout, "not begun: %w", err)
	}
	return nil
}

// usable reads the function as it is at this moment, with its companions, and returns
// an error that says why it cannot be given to VFIO.
func (d *Driver) usable(ctx context.Context, target drivers.Target, identity string) (f sysfs.Function, with []sysfs.Function, err error) {
	f, with, err = d.touchable(ctx, target, identity)
	if err != nil {
		return f, nil, err
	}
	return f, with, d.requireVFIO(ctx, f, with)
}

// touchable reads the function as it is at this moment, with its companions, and returns
// an error that says why nothing may be done to it: it is another one, the host needs it,
// or it does not answer.
func (d *Driver) touchable(ctx context.Context, target drivers.Target, identity string) (f sysfs.Function, with []sysfs.Function, err error) {
	f, err = d.find(ctx, target, identity)
	if err != nil {
		return f, nil, err
	}

	if err := d.checkChosen(ctx, f); err != nil {
		return f, nil, err
	}
	if err := d.checkUnprotected(ctx, []sysfs.Function{f}); err != nil {
		return f, nil, err
	}
	if n := len(f.VFs); n > 0 {
		return f, nil, cyborg.Errorf(cyborg.ErrInUse, "%s has %d virtual functions and so cannot be given out itself", f.Address, n).
			WithHint("Give out the virtual functions, or make the device whole.")
	}
	if err := d.checkAnswer(ctx, target, f); err != nil {
		return f, nil, err
	}

	with, err = d.companionsNow(ctx, f)
	return f, with, err
}

// checkAnswer returns an error where the function does not answer on its bus, or answers as
// another card than the target's. It wakes the function up for that.
func (d *Driver) checkAnswer(ctx context.Context, target drivers.Target, f sysfs.Function) error {
	presence, err := d.tree.Presence(ctx, f, true)
	if err != nil {
		return err
	}
	if !presence.Answers {
		return cyborg.Errorf(cyborg.ErrHardware, "%s does not answer on its bus: the card was pulled out, or its link is down", f.Address).
			WithHint("Put the card back, or remove it from the bus: echo 1 > /sys/bus/pci/devices/%s/remove", f.Address)
	}
	return d.checkSerial(ctx, target, f, &presence, true)
}

// checkChosen returns an error of kind ErrNotFound where the function is not the backend's.
func (d *Driver) checkChosen(ctx context.Context, f sysfs.Function) error {
	if !d.cards.Chosen(f) && (f.PF == nil || !d.chosenAt(ctx, *f.PF)) {
		return cyborg.Errorf(cyborg.ErrNotFound, "backend %q does not look after %s (%s:%s)",
			d.backend, f.Address, f.Vendor, f.Product)
	}
	return nil
}

// checkUnprotected returns an error of kind ErrProtected where the host needs one of the
// functions.
func (d *Driver) checkUnprotected(ctx context.Context, functions []sysfs.Function) error {
	protection, err := d.tree.Protection(ctx)
	if err != nil {
		return err
	}
	for _, f := range functions {
		if reason, protected := protection[f.Address]; protected {
			return cyborg.Errorf(cyborg.ErrProtected, "%s is not touched, because the host lives on it: %s", f.Address, reason)
		}
	}
	return nil
}

// chosenAt says whether the function at the address is chosen. A virtual
// function is chosen with its physical one.
func (d *Driver) chosenAt(ctx context.Context, address cyborg.PCIAddress) bool {
	f, err := d.tree.Function(ctx, address)
	return err == nil && d.cards.Chosen(f)
}

// find reads the function that a call is about. The error is of kind
// ErrNotFound where there is none at the address, and of kind ErrChanged where a
// card of another model is there now. Whether it is another card of the same
// model, only the card itself could tell: before the function is changed,
// checkSerial asks it.
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

	card := f
	if target.Device.Identity != identity {
		if card, err = d.device(ctx, target); err != nil {
			d.log.DebugContext(ctx, "the card of a function cannot be read", "address", identity, "error", err)
			return f, nil
		}
	}
	return f, checkFingerprint(target, f, card.Fingerprint(""))
}

// device reads the function that the target's device is named after.
func (d *Driver) device(ctx context.Context, target drivers.Target) (sysfs.Function, error) {
	address, err := cyborg.ParsePCIAddress(target.Device.Identity)
	if err != nil {
		return sysfs.Function{}, err
	}
	return d.tree.Function(ctx, address)
}

// checkSerial returns an error of kind ErrChanged where the card has another
// serial number than the target's. A number that cannot be read is no other one.
// Own is what the function itself has answered; nil where it was not asked yet.
// With wake, a card that sleeps is woken up for it.
func (d *Driver) checkSerial(ctx context.Context, target drivers.Target, f sysfs.Function, own *sysfs.Presence, wake bool) error {
	if target.Device.Fingerprint.Serial == "" {
		return nil
	}

	for _, address := range numbered(f) {
		var answer sysfs.Presence
		if address == f.Address && own != nil {
			answer = *own
		} else {
			card, err := d.tree.Function(ctx, address)
			if err != nil || card.PF != nil {
				d.log.DebugContext(ctx, "the card of a function cannot be read there", "address", f.Address.String(), "at", address.String(), "error", err)
				continue
			}
			if answer, err = d.presence(ctx, card, wake); cyborg.ErrorKindOf(err) == cyborg.ErrTimeout {
				return err
			}
		}

		if answer.Serial != "" {
			return checkFingerprint(target, f, cyborg.Fingerprint{Serial: answer.Serial})
		}
	}

	return nil
}

// checkFingerprint returns an error of kind ErrChanged where the card that has the
// function now is another one than the target's.
func checkFingerprint(target drivers.Target, f sysfs.Function, now cyborg.Fingerprint) error {
	if was := target.Device.Fingerprint; was.Other(now) {
		return cyborg.Errorf(cyborg.ErrChanged, "at %s there is now another card (%s); it was %s", f.Address, now, was).
			WithHint("Discover the host again.")
	}
	return nil
}

// requireVFIO returns an error that says why VFIO cannot use the function together
// with its companions. Those of another card in its group are no obstacle: they go with
// that card, which has the same holder.
func (d *Driver) requireVFIO(ctx context.Context, f sysfs.Function, with []sysfs.Function) error {
	if f.IOMMUGroup == "" {
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s has no IOMMU group, without which VFIO cannot have it", f.Address).
			WithHint("Enable VT-d or AMD-Vi in the firmware, and on the kernel command line (intel_iommu=on).")
	}

	obstacles, err := d.tree.Obstacles(ctx, f)
	if err != nil {
		return err
	}

	obstacles, err = d.withoutCompanions(ctx, obstacles)
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
	if len(with) > 0 && !d.binder.Available(companionVFIO) {
		return cyborg.Errorf(cyborg.ErrUnsupported, "this kernel has no driver %s, which must have what goes with %s", companionVFIO, f.Address).
			WithHint("Install the kernel package that has the module.")
	}

	return nil
}
