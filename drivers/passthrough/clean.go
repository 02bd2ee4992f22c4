package passthrough

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// cannotReset is the code of the condition of a function that is to be reset after every
// holder, and that the kernel cannot reset.
const cannotReset = "cannot_be_reset"

// addCleaning says in the report of a function that it can be reset, if the kernel can reset
// it and all that goes with it. Where the backend demands that, and the kernel cannot, nobody
// gets the function: after its first holder it would stay unclean for ever.
func (d *Driver) addCleaning(report *cyborg.DeployableReport, f sysfs.Function, byAddress map[cyborg.PCIAddress]sysfs.Function) {
	parts := []sysfs.Function{f}
	for _, address := range report.Handles[0].With {
		parts = append(parts, byAddress[address])
	}

	unable := withoutReset(parts)
	switch {
	case len(unable) == 0:
		report.Cleaning = &cyborg.Cleaning{Methods: []cyborg.CleanMethod{cyborg.CleanReset}, After: d.options.clean}
	case d.options.clean != "" && report.Protected == "":
		report.Conditions = append(report.Conditions, cyborg.Condition{
			Code: cannotReset, Level: cyborg.ConditionUnready,
			Message: fmt.Sprintf("backend %q demands a %s after every holder, and the kernel has no way to reset %s alone: see reset_method in /sys/bus/pci/devices/%s. "+
				"Leave it out of the backend, or give it one without %s", d.backend, d.options.clean, strings.Join(unable, ", "), unable[0], optionClean),
		})
	}
}

// withoutReset lists the addresses of the functions that the kernel cannot reset.
func withoutReset(parts []sysfs.Function) []string {
	var unable []string
	for _, one := range parts {
		if len(one.ResetMethods) == 0 {
			unable = append(unable, one.Address.String())
		}
	}
	return unable
}

// cleanNote says which drivers the functions had before a clean has taken them away.
type cleanNote struct {
	// Boot is the boot id of the host: after a boot, the kernel has chosen drivers again.
	Boot string `json:"boot"`
	// Bindings are those of the functions, by address.
	Bindings map[string]sysfs.Binding `json:"bindings"`
}

// Clean resets the function and its companions, and reads back that they are as the kernel
// should have restored them.
//
// It takes each from its kernel driver before and gives it back to the same one afterwards.
// The kernel would reset a function also below its driver. But it tells only drivers of that
// which are made for it, and a program cannot see which are: others go on with hardware that
// has forgotten all that they have set up. VFIO without users and pci-stub have set up nothing,
// so they keep the function. Where Clean fails, the drivers get their functions back as far
// as they take them.
func (d *Driver) Clean(ctx context.Context, request drivers.CleanRequest) (cyborg.Evidence, error) {
	if err := d.requireAccess(ctx, request.Handle); err != nil {
		return cyborg.Evidence{}, err
	}
	if request.Method != cyborg.CleanReset {
		return cyborg.Evidence{}, cyborg.Errorf(cyborg.ErrUnsupported, "this driver cannot %s %s; it can %s it", request.Method, request.Handle.Identity, cyborg.CleanReset)
	}

	parts, err := d.resettable(ctx, request.Target, request.Handle.Identity)
	if err != nil {
		return cyborg.Evidence{}, err
	}
	before, err := d.keepBindings(ctx, parts, request)
	if err != nil {
		return cyborg.Evidence{}, err
	}

	evidence, failed := d.resetAll(ctx, parts, request.Progress)
	for _, part := range slices.Backward(parts) {
		err := d.binder.Restore(ctx, part.Address, "", before.Bindings[part.Address.String()])
		if err != nil && failed == nil {
			failed = err
		} else if err != nil {
			d.log.WarnContext(ctx, "a function did not get its driver back after a clean that failed", "address", part.Address.String(), "error", err)
		}
	}
	if failed != nil {
		return cyborg.Evidence{}, failed
	}
	return evidence, nil
}

// resettable reads the companions and the function, in this order, as they are at this
// moment. The error says why they cannot be reset: somebody uses one of them, or it is not
// what was discovered, or the host needs it, or the kernel does not know how.
func (d *Driver) resettable(ctx context.Context, target drivers.Target, identity string) ([]sysfs.Function, error) {
	f, with, err := d.touchable(ctx, target, identity)
	if err != nil {
		return nil, err
	}
	if err := d.checkFree(ctx, f, with, false, false); err != nil {
		return nil, err
	}

	parts := append(slices.Clone(with), f)
	if unable := withoutReset(parts); len(unable) > 0 {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "the kernel has no way to reset %s alone", strings.Join(unable, ", ")).
			WithHint("Clean it by hand, such as with a power cycle of the host, and declare that.")
	}
	return parts, nil
}

// keepBindings stores which drivers the functions have, and returns it. Of one without a
// driver, an earlier try in this boot may have taken it.
func (d *Driver) keepBindings(ctx context.Context, parts []sysfs.Function, request drivers.CleanRequest) (cleanNote, error) {
	boot, err := d.tree.BootID()
	if err != nil {
		return cleanNote{}, err
	}

	var earlier cleanNote
	if request.Prior != nil {
		if err := json.Unmarshal(request.Prior, &earlier); err != nil {
			return cleanNote{}, cyborg.Errorf(cyborg.ErrInternal, "the note of the clean of %s cannot be read: %w", request.Handle.Identity, err)
		}
	}

	now := cleanNote{Boot: boot, Bindings: map[string]sysfs.Binding{}}
	for _, part := range parts {
		binding, err := d.binder.Binding(ctx, part.Address)
		if err != nil {
			return cleanNote{}, err
		}
		if binding.Driver == "" && earlier.Boot == boot {
			binding.Driver = earlier.Bindings[part.Address.String()].Driver
		}
		now.Bindings[part.Address.String()] = binding
	}

	text, err := json.Marshal(now)
	if err != nil {
		return cleanNote{}, cyborg.Errorf(cyborg.ErrInternal, "%w", err)
	}
	return now, request.Note(text)
}

// resetAll takes the functions from their drivers, resets them, and returns what was found
// afterwards. None has its driver before all are reset: the drivers of a card's functions
// may rely on each other.
func (d *Driver) resetAll(ctx context.Context, parts []sysfs.Function, progress func(int, string)) (cyborg.Evidence, error) {
	for _, part := range parts {
		if bearsReset(part) {
			continue
		}
		if err := d.binder.Unbind(ctx, part.Address, part.Driver); err != nil {
			return cyborg.Evidence{}, err
		}
	}

	var did, found []string
	express := true
	for i, part := range parts {
		progress(100*i/len(parts), "resetting "+part.Address.String())
		after, err := d.reset(ctx, part.Address)
		if err != nil {
			return cyborg.Evidence{}, err
		}

		did = append(did, described(part, parts)+strings.Join(part.ResetMethods, ", else "))
		found = append(found, part.Address.String()+answered(part))
		express = express && after.Express()
	}

	pending := "no transactions pending, "
	if !express {
		pending = "" // a function without PCI Express does not tell
	}
	return cyborg.Evidence{
		Method:   cyborg.CleanReset,
		Tool:     "sysfs reset (" + strings.Join(did, "; ") + ")",
		ReadBack: strings.Join(found, ", ") + "; " + pending + "command and BARs as before",
	}, nil
}

// bearsReset says whether a function can be reset as it is: no driver has it that has set up
// anything.
func bearsReset(f sysfs.Function) bool { return f.Driver == "" || f.Driver == "pci-stub" || f.VFIO() }

// reset resets one function and returns its registers afterwards.
func (d *Driver) reset(ctx context.Context, address cyborg.PCIAddress) (sysfs.Registers, error) {
	f, err := d.tree.Function(ctx, address)
	if err != nil {
		return sysfs.Registers{}, err
	}
	if !bearsReset(f) {
		return sysfs.Registers{}, cyborg.Errorf(cyborg.ErrBusy, "%s was bound to %s when it was to be reset", address, f.Driver).
			WithHint("Find out what else rebinds PCI functions on this host, such as driverctl or a udev rule.")
	}

	before, err := d.tree.Registers(ctx, f)
	if err != nil {
		return before, err
	}
	if err := d.binder.Reset(ctx, address); err != nil {
		return before, err
	}
	return d.tree.AwaitReset(ctx, f, before)
}

// described says before the ways to reset a function which one it is, where there are
// several.
func described(part sysfs.Function, parts []sysfs.Function) string {
	if len(parts) == 1 {
		return ""
	}
	return part.Address.String() + ": "
}

// answered says as what a function answers. The ids of a virtual one read as ones.
func answered(f sysfs.Function) string {
	if f.PF != nil {
		return " answers again"
	}
	return " answers as " + f.Vendor + ":" + f.Product + " again"
}
