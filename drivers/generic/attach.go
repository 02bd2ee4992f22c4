package generic

import (
	"context"
	"encoding/json"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Attach takes the function from its kernel driver and gives it to VFIO. It
// stores the present driver as a note first. A function that an operator has
// given to VFIO before stays with VFIO, even after Detach.
func (d *Driver) Attach(ctx context.Context, request drivers.AttachRequest) error {
	if err := d.requireAccess(ctx, request.Handle); err != nil {
		return err
	}

	// Everything that speaks against the attach is checked here again: what an
	// earlier Discover or Install found may have changed since.
	f, err := d.usable(ctx, request.Target, request.Handle.Identity)
	if err != nil {
		return err
	}

	// A repeated attach skips this check where VFIO has the function already,
	// because the first try may have succeeded and the holder may use it by now.
	if f.Driver != d.options.vfio || request.Prior == nil {
		if user, err := d.tree.Users(ctx, f); err != nil {
			return err
		} else if user != "" {
			return cyborg.Errorf(cyborg.ErrInUse, "%s is in use through its driver %s: %s", f.Address, f.Driver, user)
		}
	}

	if request.Prior == nil {
		if err := d.note(ctx, f.Address, request.Note); err != nil {
			return err
		}
	}

	if f.Driver == d.options.vfio {
		return nil
	}

	return d.binder.Bind(ctx, f.Address, d.options.vfio)
}

// note stores the driver that the function has now, and its driver_override.
func (d *Driver) note(ctx context.Context, address cyborg.PCIAddress, keep drivers.Note) error {
	binding, err := d.binder.Binding(ctx, address)
	if err != nil {
		return err
	}

	note, err := json.Marshal(binding)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}

	return keep(note)
}

// Detach gives the function back to the driver that it had before Attach, or to
// no driver if it had none. Without a note the kernel chooses the driver; but
// if such a call undoes a failed attach, nothing is done, because an attach
// writes its note before it changes anything. It fails with kind ErrInUse while
// somebody uses the function through VFIO.
func (d *Driver) Detach(ctx context.Context, request drivers.DetachRequest) error {
	if err := d.requireAccess(ctx, request.Handle); err != nil {
		return err
	}

	f, err := d.findSame(ctx, request.Target, request.Handle.Identity)
	switch cyborg.ErrorKindOf(err) {
	case "":
	case cyborg.ErrNotFound, cyborg.ErrChanged:
		d.log.InfoContext(ctx, "nothing to detach", "address", request.Handle.Identity, "reason", err)
		return nil // the card was taken out; whatever is there now was never attached
	default:
		return err
	}

	if f.Driver == d.options.vfio {
		if user, err := d.tree.Users(ctx, f); err != nil {
			return err
		} else if user != "" {
			return cyborg.Errorf(cyborg.ErrInUse, "%s is in use: %s", f.Address, user).
				WithHint("End the process or shut the virtual machine down, then detach again.")
		}
	}

	if request.Prior == nil {
		return d.release(ctx, f, request.Undo)
	}

	var prior sysfs.Binding
	if err := json.Unmarshal(request.Prior, &prior); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the note of the attach of %s cannot be read: %w", f.Address, err)
	}

	return d.binder.Restore(ctx, f.Address, d.options.vfio, prior)
}

// findSame is find for a call that changes the function and does not need its card
// to answer. It tells another card of the same model, too.
func (d *Driver) findSame(ctx context.Context, target drivers.Target, identity string) (sysfs.Function, error) {
	f, err := d.find(ctx, target, identity)
	if err != nil {
		return f, err
	}
	return f, d.checkSerial(ctx, target, f, nil, false)
}

// release takes the function from VFIO where no note says which driver it had
// before.
func (d *Driver) release(ctx context.Context, f sysfs.Function, undo bool) error {
	if undo || f.Driver != d.options.vfio {
		return nil
	}

	d.log.WarnContext(ctx, "no note says which driver the function had before; the kernel chooses one", "address", f.Address.String())
	return d.binder.Release(ctx, f.Address, d.options.vfio)
}

// Attached says whether VFIO has the function. That is also true where an
// operator gave the function to VFIO.
func (d *Driver) Attached(ctx context.Context, target drivers.Target, handle cyborg.HandleReport, _ cyborg.HolderKind) (bool, error) {
	f, err := d.find(ctx, target, handle.Identity)
	switch cyborg.ErrorKindOf(err) {
	case "":
		return f.Driver == d.options.vfio, nil
	case cyborg.ErrNotFound, cyborg.ErrChanged:
		return false, nil
	default:
		return false, err
	}
}

// InUse says who uses the function through the driver that it has now. Nobody
// uses a function that is gone. The error is of kind ErrChanged where another card
// is there now, which it asks also of a card that sleeps, and of kind ErrBusy where
// an access to the function hangs in the kernel.
func (d *Driver) InUse(ctx context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	f, err := d.find(ctx, target, handle.Identity)
	switch cyborg.ErrorKindOf(err) {
	case "":
		if err := d.hangs(handle); err != nil {
			return "", err
		}
		if err := d.checkSerial(ctx, target, f, nil, true); err != nil {
			return "", err
		}
		return d.tree.Users(ctx, f)
	case cyborg.ErrNotFound:
		return "", nil
	default:
		return "", err
	}
}

// requireAccess returns an error where nothing can be changed, or where an access
// to the function hangs in the kernel.
func (d *Driver) requireAccess(ctx context.Context, handle cyborg.HandleReport) error {
	if err := d.requireKernel(ctx); err != nil {
		return err
	}
	return d.hangs(handle)
}

// hangs returns an error of kind ErrBusy where an access to the function hangs in
// the kernel.
func (d *Driver) hangs(handle cyborg.HandleReport) error {
	address, err := cyborg.ParsePCIAddress(handle.Identity)
	if err != nil || d.binder == nil {
		return err
	}
	return d.binder.Hangs(address)
}
