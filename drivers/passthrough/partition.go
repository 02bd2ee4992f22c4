package passthrough

import (
	"context"
	"encoding/json"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// partVF is the kind of parts that are virtual functions.
const partVF = "vf"

// partitioning says into how many virtual functions a physical one can be divided, and how
// many it has; nil for any other function. Those that the kernel is about to remove count.
func partitioning(f sysfs.Function) *cyborg.Partitioning {
	if f.TotalVFs == 0 || f.PF != nil {
		return nil
	}
	return &cyborg.Partitioning{
		Parts:  []cyborg.PartKind{{Name: partVF, Most: min(f.TotalVFs, cyborg.MaxParts), Description: "virtual function (SR-IOV)"}},
		Layout: cyborg.Layout{partVF: len(f.VFs)}.Normal(),
	}
}

// CheckLayout says why the device cannot have so many virtual functions.
func (d *Driver) CheckLayout(_ context.Context, device cyborg.DeviceReport, layout cyborg.Layout) error {
	if !d.options.partition {
		return cyborg.Errorf(cyborg.ErrUnsupported, "backend %q does not divide devices", d.backend).
			WithHint("Set its option %s.", optionPartition)
	}
	return device.Partitioning.Check(layout)
}

// partitionNote says what a Partition was about to do, and what was before the first one.
type partitionNote struct {
	// VFs is how many virtual functions were wanted.
	VFs int `json:"vfs"`
	// Autoprobe is what sysfs.Binder.Autoprobe has read before the device was divided.
	Autoprobe string `json:"autoprobe"`
}

// Partition has the driver of a physical function make as many virtual ones as are wanted.
//
// The kernel does not give them to their drivers: each holder gets a function from VFIO, or a
// hypervisor binds it. A driver would set up network interfaces and disks that this host then
// takes for its own, and takes time with each. So sriov_drivers_autoprobe is 0 as long as the
// device is divided, and not only while it is being divided: what loads the module of such a
// driver afterwards, as udev does when it sees the functions, would bind them all.
//
// Where the kernel or the driver refuses, or makes fewer, the former number is made again.
func (d *Driver) Partition(ctx context.Context, request drivers.PartitionRequest) error {
	if err := d.requireKernel(ctx); err != nil {
		return err
	}
	if err := d.CheckLayout(ctx, request.Device, request.Layout); err != nil {
		return err
	}

	pf, parts, err := d.partitionable(ctx, request.Device)
	if err != nil {
		return err
	}
	now, err := d.readDivision(ctx, pf)
	if err != nil {
		return err
	}
	before, err := readPartitionNote(request)
	if err != nil {
		return err
	}
	if !before.holds(pf) {
		before.Autoprobe = now.autoprobe
	}

	wanted := division{vfs: request.Layout[partVF], autoprobe: before.Autoprobe}
	if wanted.vfs > 0 && now.autoprobe != "" {
		wanted.autoprobe = "0"
	}
	// Virtual functions that somebody has made by hand are left as they are.
	settled := now.autoprobe == wanted.autoprobe || request.Prior == nil
	if now.vfs == wanted.vfs && len(pf.VFs) == wanted.vfs && settled {
		return nil
	}

	if err := d.checkPartsFree(ctx, parts); err != nil {
		return err
	}
	if err := checkDivisible(pf, wanted.vfs); err != nil {
		return err
	}

	before.VFs = wanted.vfs
	if err := before.store(request.Note); err != nil {
		return err
	}
	err = d.divide(ctx, pf, now, wanted, request.Progress)
	if err != nil {
		d.putBack(ctx, pf, now)
	}
	return err
}

// partitionable reads the physical function that stands for the device, as it is at this
// moment, and all that goes with it: itself, its companions and its virtual functions. The
// error says why nothing may be done to it: it is another one, the host needs it, it does not
// answer, or the kernel hangs with it.
func (d *Driver) partitionable(ctx context.Context, device cyborg.DeviceReport) (pf sysfs.Function, parts []sysfs.Function, err error) {
	target := drivers.Target{Device: device}
	target.Deployable.Specs.VendorID, target.Deployable.Specs.ProductID = device.VendorID, device.ProductID
	if pf, err = d.find(ctx, target, device.Identity); err != nil {
		return pf, nil, err
	}
	if err := d.checkChosen(ctx, pf); err != nil {
		return pf, nil, err
	}
	if pf.TotalVFs == 0 || pf.PF != nil {
		return pf, nil, cyborg.Errorf(cyborg.ErrUnsupported, "%s is no function that can have virtual ones (SR-IOV)", pf.Address)
	}

	with, err := d.companionsNow(ctx, pf)
	if err != nil {
		return pf, nil, err
	}
	parts = append([]sysfs.Function{pf}, with...)
	for _, address := range pf.VFs {
		vf, err := d.tree.Function(ctx, address)
		switch cyborg.ErrorKindOf(err) {
		case "":
			vf.PF = &pf.Address // which one that is being removed has lost
			parts = append(parts, vf)
		case cyborg.ErrNotFound: // it is gone by now
		default:
			return pf, nil, err
		}
	}

	for _, part := range parts {
		if err := d.hangs(part.Address); err != nil {
			return pf, nil, err
		}
	}
	if err := d.checkUnprotected(ctx, parts); err != nil {
		return pf, nil, err
	}
	return pf, parts, d.checkAnswer(ctx, target, pf)
}

// checkPartsFree returns an error of kind ErrInUse where somebody uses one of the functions.
// The virtual ones themselves are no users of their physical one here.
func (d *Driver) checkPartsFree(ctx context.Context, parts []sysfs.Function) error {
	for i, part := range parts {
		part.VFs = nil
		ask := d.tree.Users
		if i > 0 && part.PF == nil {
			ask = d.companionUser
		}
		if err := checkUnused(part, "", func() (string, error) { return ask(ctx, part) }); err != nil {
			return err
		}
	}
	return nil
}

// checkDivisible returns an error where the kernel would refuse the number for a reason that
// can be seen before anything is changed.
func checkDivisible(pf sysfs.Function, wanted int) error {
	switch {
	case wanted > pf.TotalVFs:
		return cyborg.Errorf(cyborg.ErrInvalid, "%s can have %d virtual functions by now", pf.Address, pf.TotalVFs).
			WithHint("Discover the host again.")
	case pf.Driver == "":
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s has no kernel driver, and only that can make and remove virtual functions", pf.Address).
			WithHint("Load the driver of its maker, or give it to pci-pf-stub if it needs none.")
	case wanted > 0 && pf.VFIO():
		return cyborg.Errorf(cyborg.ErrUnsupported, "%s has the driver %s, under which nobody can use virtual functions without its token", pf.Address, pf.Driver).
			WithHint("Give it back to the driver of its maker.")
	}
	return nil
}

// division is how a physical function is divided.
type division struct {
	vfs       int
	autoprobe string // as sysfs.Binder.Autoprobe has it
}

// readDivision reads how the physical function is divided now.
func (d *Driver) readDivision(ctx context.Context, pf sysfs.Function) (now division, err error) {
	if now.vfs, err = d.binder.NumVFs(ctx, pf.Address); err != nil {
		return now, err
	}
	now.autoprobe, err = d.binder.Autoprobe(ctx, pf.Address)
	return now, err
}

// divide brings a physical function from one division to another, and reads back that it has
// that.
//
// What it sets for new functions comes first. So where a call has removed the last function,
// nothing of it is left to be done.
func (d *Driver) divide(ctx context.Context, pf sysfs.Function, from, to division, progress func(int, string)) error {
	if from.autoprobe != to.autoprobe {
		if err := d.binder.SetAutoprobe(ctx, pf.Address, to.autoprobe); err != nil {
			return err
		}
	}

	if from.vfs > 0 && from.vfs != to.vfs {
		progress(-1, "removing the virtual functions of "+pf.Address.String())
		if err := d.binder.SetVFs(ctx, pf.Address, 0); err != nil {
			return err
		}
	}
	if to.vfs > 0 && from.vfs != to.vfs {
		progress(-1, "making virtual functions of "+pf.Address.String())
		if err := d.binder.SetVFs(ctx, pf.Address, to.vfs); err != nil {
			return err
		}
	}

	made, err := d.binder.NumVFs(ctx, pf.Address)
	if err != nil {
		return err
	}
	after, err := d.tree.Function(ctx, pf.Address)
	if err != nil {
		return err
	}
	if there := len(after.VFs); made != to.vfs || there != to.vfs {
		return cyborg.Errorf(cyborg.ErrHardware, "%s should have %d virtual functions, and its driver %s says %d; %d are there",
			pf.Address, to.vfs, after.Driver, made, there).
			WithHint("Its driver or firmware may be set to fewer; the kernel log (dmesg) may say why.")
	}
	return nil
}

// putBack makes the former division again after another one has failed. Where that fails as
// well, the next Partition goes on from what is there.
func (d *Driver) putBack(ctx context.Context, pf sysfs.Function, before division) {
	now, err := d.readDivision(ctx, pf)
	if err == nil {
		err = d.divide(ctx, pf, now, before, func(int, string) {})
	}
	if err != nil {
		d.log.WarnContext(ctx, "a device could not be divided, and not be put back either", "address", pf.Address.String(), "error", err)
	}
}

// readPartitionNote reads the last note; the zero note where there is none.
func readPartitionNote(request drivers.PartitionRequest) (partitionNote, error) {
	var n partitionNote
	if request.Prior == nil {
		return n, nil
	}
	if err := json.Unmarshal(request.Prior, &n); err != nil {
		return n, cyborg.Errorf(cyborg.ErrInternal, "the note of the last partition of %s cannot be read: %w", request.Device.Identity, err)
	}
	return n, nil
}

// holds says whether the note still tells what was before the device was divided: it does
// not where the device was made whole since, because what is there now is somebody's choice.
func (n *partitionNote) holds(pf sysfs.Function) bool {
	return n.Autoprobe != "" && (n.VFs > 0 || len(pf.VFs) > 0)
}

// store stores the note.
func (n *partitionNote) store(keep drivers.Note) error {
	text, err := json.Marshal(n)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	return keep(text)
}
