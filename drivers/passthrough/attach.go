package passthrough

import (
	"context"
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Attach takes the function and its companions from their kernel drivers and gives them
// to VFIO. For an instance or a service it does so with the companions only: the
// hypervisor binds the function itself (libvirt, managed=yes). It stores the present
// drivers as a note first. What an operator has given to VFIO before stays with VFIO,
// even after Detach.
func (d *Driver) Attach(ctx context.Context, request drivers.AttachRequest) error {
	if err := d.requireAccess(ctx, request.Handle); err != nil {
		return err
	}
	if err := request.Target.Deployable.Preparation.Check(request.Parameters); err != nil {
		return err
	}

	// Everything that speaks against the attach is checked here again: what an
	// earlier Discover or Install found may have changed since.
	f, with, err := d.usable(ctx, request.Target, request.Handle.Identity)
	if err != nil {
		return err
	}

	before, err := readNote(request.Prior, request.Handle)
	if err != nil {
		return err
	}
	stays := staysWithVFIO(f, d.options.vfio, request, before)
	prepared := request.Prior != nil && before.Binding == nil && !isHost(request.Holder.Kind)
	if err := d.checkFree(ctx, f, with, stays, prepared); err != nil {
		return err
	}
	with, err = d.takeable(ctx, f, with, stays)
	if err != nil {
		return err
	}

	parts := d.parts(f, with, request.Holder.Kind)
	if err := d.keep(ctx, parts, &before, request.Note); err != nil {
		return err
	}

	for _, p := range parts {
		if p.Driver == p.vfio {
			continue
		}
		if err := d.binder.Bind(ctx, p.Address, p.vfio); err != nil {
			return err
		}
	}

	if isHost(request.Holder.Kind) || before.Binding == nil {
		return nil
	}

	// It was attached to the host before. Now the hypervisor binds it.
	if err := d.binder.Restore(ctx, f.Address, d.options.vfio, *before.Binding); err != nil {
		return err
	}
	before.Binding = nil
	return before.store(request.Note)
}

// part is a function that an attach gives to VFIO.
type part struct {
	sysfs.Function
	vfio string // the driver of VFIO that gets it
	own  bool   // it is the function that the call is about
}

// parts lists what an attach for a holder of this kind gives to VFIO.
func (d *Driver) parts(f sysfs.Function, with []sysfs.Function, holder cyborg.HolderKind) []part {
	parts := companionParts(with)
	if isHost(holder) {
		parts = append(parts, part{Function: f, vfio: d.options.vfio, own: true})
	}
	return parts
}

// companionParts lists the companions as parts.
func companionParts(with []sysfs.Function) []part {
	var parts []part
	for _, companion := range with {
		parts = append(parts, part{Function: companion, vfio: companionVFIO})
	}
	return parts
}

// isHost says whether a holder of this kind uses the function on the host itself, and
// not through a hypervisor.
func isHost(holder cyborg.HolderKind) bool {
	return holder != cyborg.HolderInstance && holder != cyborg.HolderService
}

// staysWithVFIO says whether an attach leaves the function with the driver of VFIO that
// has it: it was attached to the host before, or a hypervisor may have bound it for
// another holder. But what was attached to the host is taken from VFIO for another holder.
func staysWithVFIO(f sysfs.Function, vfio string, request drivers.AttachRequest, before note) bool {
	if isHost(request.Holder.Kind) {
		return f.Driver == vfio && before.Binding != nil
	}
	return f.VFIO() && before.Binding == nil
}

// checkFree returns an error of kind ErrInUse where somebody uses the function or a
// companion, and of kind ErrBusy where the kernel hangs with a companion.
//
// It does not ask about what stays with VFIO: the holder may use it by now. Prepared says
// that an earlier attach for an instance or a service has begun to do the same.
func (d *Driver) checkFree(ctx context.Context, f sysfs.Function, with []sysfs.Function, stays, prepared bool) error {
	if !stays {
		if err := checkUnused(f, "", func() (string, error) { return d.tree.Users(ctx, f) }); err != nil {
			return err
		}
	}

	text := ", which goes with " + f.Address.String() + ","
	for _, companion := range with {
		if err := d.hangs(companion.Address); err != nil {
			return err
		}
		if stays && !companion.Obstructs() || prepared && companion.Driver == companionVFIO {
			continue
		}
		if err := checkUnused(companion, text, func() (string, error) { return d.companionUser(ctx, companion) }); err != nil {
			return err
		}
	}
	return nil
}

// checkUnused returns an error of kind ErrInUse that says who uses the function, which
// the text describes.
func checkUnused(f sysfs.Function, text string, ask func() (string, error)) error {
	user, err := ask()
	if err != nil || user == "" {
		return err
	}
	return cyborg.Errorf(cyborg.ErrInUse, "%s%s is in use through its driver %s: %s", f.Address, text, f.Driver, user)
}

// takeable returns the companions without those that do not keep VFIO from the group while
// somebody uses the function through it: a guest that has the card already has it with
// these as they are.
func (d *Driver) takeable(ctx context.Context, f sysfs.Function, with []sysfs.Function, stays bool) ([]sysfs.Function, error) {
	optional := func(companion sysfs.Function) bool {
		return companion.Driver != companionVFIO && !companion.Obstructs()
	}
	if !stays || !slices.ContainsFunc(with, optional) {
		return with, nil
	}

	user, err := d.tree.Users(ctx, f)
	if err != nil || user == "" {
		return with, err
	}
	return slices.DeleteFunc(slices.Clone(with), optional), nil
}

// keep adds to the note which drivers these functions have now, as far as it does not
// say yet what was before the first attach, and stores it.
func (d *Driver) keep(ctx context.Context, parts []part, before *note, store drivers.Note) error {
	added := false
	for _, p := range parts {
		if before.of(p) != nil {
			continue
		}

		binding, err := d.binder.Binding(ctx, p.Address)
		if err != nil {
			return err
		}
		before.set(p, binding)
		added = true
	}

	if !added {
		return nil
	}
	return before.store(store)
}

// Detach gives the function and its companions back to the drivers that they had before
// Attach, or to no driver if they had none. Without a note the kernel chooses the
// drivers; but if such a call undoes a failed attach, nothing is done, because an attach
// writes its note before it changes anything. It fails with kind ErrInUse while
// somebody uses one of them through VFIO.
func (d *Driver) Detach(ctx context.Context, request drivers.DetachRequest) error {
	if err := d.requireAccess(ctx, request.Handle); err != nil {
		return err
	}

	before, err := readNote(request.Prior, request.Handle)
	if err != nil {
		return err
	}

	f, err := d.findSame(ctx, request.Target, request.Handle.Identity)
	switch kind := cyborg.ErrorKindOf(err); {
	case kind == "":
	case kind == cyborg.ErrNotFound && len(before.Companions) > 0:
		before.Binding = nil // only the function was taken off the bus, and its companions may still be there
	case kind == cyborg.ErrNotFound, kind == cyborg.ErrChanged:
		d.log.InfoContext(ctx, "nothing to detach", "address", request.Handle.Identity, "reason", err)
		return nil // the card was taken out; whatever is there now was never attached
	default:
		return err
	}

	parts, err := d.partsToReturn(ctx, f, request, before)
	if err != nil {
		return err
	}
	if err := d.checkReturnable(ctx, f, parts); err != nil {
		return err
	}

	for _, p := range parts {
		if prior := before.of(p); prior != nil {
			err = d.binder.Restore(ctx, p.Address, p.vfio, *prior)
		} else {
			err = d.release(ctx, p, request.Undo)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// partsToReturn lists what a detach takes from VFIO: what the note has, or without a
// note what an attach for this holder would have given to VFIO. A companion that is gone
// has nothing to be restored.
func (d *Driver) partsToReturn(ctx context.Context, f sysfs.Function, request drivers.DetachRequest, before note) ([]part, error) {
	if request.Prior == nil {
		with, err := d.companionsNow(ctx, f)
		parts := d.parts(f, with, request.Holder.Kind)
		slices.Reverse(parts)
		return parts, err
	}

	var parts []part
	if before.Binding != nil {
		parts = append(parts, part{Function: f, vfio: d.options.vfio, own: true})
	}
	for _, address := range slices.Sorted(maps.Keys(before.Companions)) {
		companion, err := d.companionAt(ctx, address)
		switch cyborg.ErrorKindOf(err) {
		case "":
			parts = append(parts, companionParts([]sysfs.Function{companion})...)
		case cyborg.ErrNotFound:
			d.log.InfoContext(ctx, "what goes with a handle is gone", "address", address, "handle", request.Handle.Identity)
		default:
			return nil, err
		}
	}
	return parts, nil
}

// companionAt reads the function at an address that a note has.
func (d *Driver) companionAt(ctx context.Context, text string) (sysfs.Function, error) {
	address, err := cyborg.ParsePCIAddress(text)
	if err != nil {
		return sysfs.Function{}, err
	}
	return d.tree.Function(ctx, address)
}

// checkReturnable returns an error where somebody uses the function through VFIO, or
// something else that is taken from there, and where the kernel hangs with that.
func (d *Driver) checkReturnable(ctx context.Context, f sysfs.Function, parts []part) error {
	all := []part{{Function: f, vfio: d.options.vfio, own: true}}
	for _, p := range parts {
		if !p.own {
			all = append(all, p)
		}
	}

	for _, p := range all {
		if err := d.hangs(p.Address); err != nil {
			return err
		}
		if !p.VFIO() {
			continue
		}

		user, err := d.tree.Users(ctx, p.Function)
		if err != nil {
			return err
		}
		if user != "" {
			return cyborg.Errorf(cyborg.ErrInUse, "%s is in use: %s", p.Address, user).
				WithHint("End the process or shut the virtual machine down, then detach again.")
		}
	}
	return nil
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

// release takes a function from VFIO where no note says which driver it had before.
func (d *Driver) release(ctx context.Context, p part, undo bool) error {
	if undo || p.Driver != p.vfio {
		return nil
	}

	d.log.WarnContext(ctx, "no note says which driver the function had before; the kernel chooses one", "address", p.Address.String())
	return d.binder.Release(ctx, p.Address, p.vfio)
}

// Attached says whether VFIO has the function, if an attach for a holder of this kind
// gives it to VFIO, and can use its group with the companions as they are. That is also
// true where an operator gave it to VFIO, and where companions have no driver: it was
// attached so by releases that knew no companions.
func (d *Driver) Attached(ctx context.Context, request drivers.AttachedRequest) (bool, error) {
	f, err := d.find(ctx, request.Target, request.Handle.Identity)
	switch cyborg.ErrorKindOf(err) {
	case "":
	case cyborg.ErrNotFound, cyborg.ErrChanged:
		return false, nil
	default:
		return false, err
	}

	with, err := d.companionsNow(ctx, f)
	if err != nil {
		return false, err
	}
	for _, companion := range with {
		if companion.Obstructs() {
			return false, nil
		}
	}
	return !isHost(request.Holder) || f.Driver == d.options.vfio, nil
}

// InUse says who uses the function or a companion through the driver that it has now.
// Nobody uses a function that is gone. The error is of kind ErrChanged where another card
// is there now, which it asks also of a card that sleeps, and of kind ErrBusy where
// an access to the function or a companion hangs in the kernel.
func (d *Driver) InUse(ctx context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	f, err := d.find(ctx, target, handle.Identity)
	switch cyborg.ErrorKindOf(err) {
	case "":
	case cyborg.ErrNotFound:
		return "", nil
	default:
		return "", err
	}

	with, err := d.companionsNow(ctx, f)
	if err != nil {
		return "", err
	}
	for _, one := range append([]sysfs.Function{f}, with...) {
		if err := d.hangs(one.Address); err != nil {
			return "", err
		}
	}
	if err := d.checkSerial(ctx, target, f, nil, true); err != nil {
		return "", err
	}

	user, err := d.tree.Users(ctx, f)
	if err != nil || user != "" {
		return user, err
	}
	for _, companion := range with {
		user, err := d.companionUser(ctx, companion)
		if err != nil || user != "" {
			return prefixed(companion.Address.String()+", which goes with it: ", user), err
		}
	}
	return "", nil
}

// prefixed returns a text that is not empty with something before it.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// requireAccess returns an error where nothing can be changed, or where an access
// to the function hangs in the kernel.
func (d *Driver) requireAccess(ctx context.Context, handle cyborg.HandleReport) error {
	if err := d.requireKernel(ctx); err != nil {
		return err
	}

	address, err := cyborg.ParsePCIAddress(handle.Identity)
	if err != nil {
		return err
	}
	return d.hangs(address)
}

// hangs returns an error of kind ErrBusy where an access to the function hangs in
// the kernel.
func (d *Driver) hangs(address cyborg.PCIAddress) error {
	if d.binder == nil {
		return nil
	}
	return d.binder.Hangs(address)
}
