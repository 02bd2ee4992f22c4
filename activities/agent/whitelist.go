package agent

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// previewWhitelist returns what a whitelist would change in the file, as a
// diff. It changes nothing.
func (a *Activities) previewWhitelist(ctx context.Context, t *try, in workflows.WhitelistInput) (cyborg.WhitelistPreview, error) {
	var preview cyborg.WhitelistPreview
	before, err := a.Nova.Read()
	if err != nil {
		return preview, err
	}

	devices, err := a.checkedDevices(ctx, t, in)
	if err != nil {
		return preview, err
	}

	after := novaconf.Content(a.Inventory.Host(), novaDevices(devices))
	changed := !bytes.Equal(before, after)
	return cyborg.WhitelistPreview{
		Host: a.Inventory.Host(), File: a.Nova.Path(), Content: string(after), Diff: novaconf.Diff(a.Nova.Path(), before, after),
		Changed: changed, Foreign: novaconf.ForeignReason(a.Inventory.Host(), before), Notes: a.whitelistTodos(devices, in.Work.Removed(), changed),
	}, nil
}

// whitelistBefore is the journal's note of a write: the content that the file
// had before, for the undo.
type whitelistBefore struct {
	Content []byte `json:"content"`
}

// writeWhitelist replaces this host's Nova whitelist with what the operation
// wants. A refusal comes before anything is written. A repeated try finds out
// from the journal and from the file what an earlier one did.
func (a *Activities) writeWhitelist(ctx context.Context, t *try, in workflows.WhitelistInput) (workflows.WhitelistResult, error) {
	var result workflows.WhitelistResult
	s, done, err := a.stepOf(in.Operation, workflows.WriteWhitelistActivity, &result)
	if done || err != nil {
		return result, err
	}

	devices, err := a.checkedDevices(ctx, t, in)
	if err == nil {
		result, err = a.replaceWhitelist(in, devices)
	}

	// Where only the number is too low, the workflow goes on with another one.
	if err != nil && s.begun && cyborg.ErrorKindOf(err) != cyborg.ErrLate {
		err = uncertain(err)
	}

	return result, err
}

// replaceWhitelist writes the file, under the whitelist's lock. The file's
// content from before is in the journal before the file is replaced, and the
// inventory looks at the file afterwards, whatever happened.
func (a *Activities) replaceWhitelist(in workflows.WhitelistInput, devices []whitelisted) (workflows.WhitelistResult, error) {
	a.whitelist.Lock()
	defer a.whitelist.Unlock()
	defer a.Inventory.LookAtWhitelist()
	var result workflows.WhitelistResult

	if err := a.keepNumber(in.Addressee, journal.WhitelistSubject()); err != nil {
		return result, err
	}

	// Read the step again: while this try looked at the devices, another may have
	// written.
	s, done, err := a.stepOf(in.Operation, workflows.WriteWhitelistActivity, &result)
	if done || err != nil {
		return result, err
	}

	before, err := a.Nova.Read()
	if err != nil {
		return result, err
	}

	if why := novaconf.ForeignReason(a.Inventory.Host(), before); why != "" && !in.Work.Force {
		return result, cyborg.Errorf(cyborg.ErrChanged, "%s of host %s is not as Cyborg left it: %s", a.Nova.Path(), a.Inventory.Host(), why).
			WithHint("Look at the difference, move what is needed to another file, then ask with force.")
	}

	if s.begun {
		// An earlier try may have replaced the file already, so its note says what was
		// there before.
		if before, err = contentBefore(s.prior); err != nil {
			return result, err
		}
	} else {
		if s.prior.Note, err = json.Marshal(whitelistBefore{Content: before}); err != nil {
			return result, cyborg.Errorf(cyborg.ErrInternal, "%w", err)
		}
		if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started)}}); err != nil {
			return result, err
		}
	}

	after := novaconf.Content(a.Inventory.Host(), novaDevices(devices))
	if err := a.Nova.Write(after); err != nil {
		return result, uncertain(err)
	}

	changed := !bytes.Equal(before, after)
	result = workflows.WhitelistResult{
		File: a.Nova.Path(), Changed: changed, SHA256: novaconf.Sum(after), Notes: a.whitelistTodos(devices, in.Work.Removed(), changed),
	}

	ended := s.at(journal.Done)
	if ended.Result, err = json.Marshal(result); err != nil {
		return result, cyborg.Errorf(cyborg.ErrInternal, "a result cannot be kept: %w", err)
	}

	return result, a.Journal.Write(journal.Change{Steps: []journal.Step{ended}})
}

// restoreWhitelist undoes the write of the same operation, and keeps it from
// beginning later. What somebody else has written since stays.
func (a *Activities) restoreWhitelist(ctx context.Context, _ *try, in workflows.WhitelistInput) (struct{}, error) {
	a.whitelist.Lock()
	defer a.whitelist.Unlock()
	defer a.Inventory.LookAtWhitelist()

	if err := a.keepNumber(in.Addressee, journal.WhitelistSubject()); err != nil {
		return struct{}{}, err
	}

	s := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.WriteWhitelistActivity}}
	prior, known := a.Journal.Step(s.key)
	s.prior = prior

	var err error
	switch {
	case !known:
		err = a.restoreUnknownWhitelist(ctx, in.Work)
	case prior.State != journal.Undone:
		err = a.restoreJournalledWhitelist(prior)
	}

	if err != nil {
		return struct{}{}, err
	}

	return struct{}{}, a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Undone)}})
}

// restoreJournalledWhitelist writes the content from before a journalled write
// again. It refuses with kind ErrChanged where the file is no longer as this
// agent wrote it.
func (a *Activities) restoreJournalledWhitelist(written journal.Step) error {
	before, err := contentBefore(written)
	if err != nil {
		return err
	}

	now, err := a.Nova.Read()
	if err != nil || bytes.Equal(now, before) {
		return err
	}

	if why := novaconf.ForeignReason(a.Inventory.Host(), now); why != "" {
		return cyborg.Errorf(cyborg.ErrChanged, "%s of host %s cannot be brought back to what it was: %s", a.Nova.Path(), a.Inventory.Host(), why)
	}

	return a.Nova.Write(before)
}

// restoreUnknownWhitelist undoes a write that the journal does not know: the
// write never began, or the journal was lost since. It writes what the file
// held according to the records, unless the file is not Cyborg's.
func (a *Activities) restoreUnknownWhitelist(ctx context.Context, work cyborg.WhitelistWork) error {
	if a.Nova.Dir == "" {
		return nil
	}
	now, err := a.Nova.Read()
	if err != nil || novaconf.ForeignReason(a.Inventory.Host(), now) != "" {
		return err
	}

	var before []whitelisted
	for _, entry := range work.Before {
		// A line of the file has an address and ids. So it is as before where another card
		// of the model is there, and stands for nothing where there is no card, or one of
		// another model.
		entry.Target.Fingerprint.Serial = ""
		found, err := a.find(ctx, entry.Target, freshEnough)
		if err != nil && a.gone(entry.Target, err) {
			continue
		}
		if err != nil {
			return err
		}

		devices, err := pciFunctions(found, entry.Spec)
		if err != nil {
			return err
		}
		before = append(before, devices...)
	}

	return a.Nova.Write(novaconf.Content(a.Inventory.Host(), novaDevices(before)))
}

// contentBefore returns the content that the file had before a write, from the
// note of its journal step.
func contentBefore(s journal.Step) ([]byte, error) {
	var before whitelistBefore
	if err := json.Unmarshal(s.Note, &before); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "what Nova's whitelist was before cannot be read in the journal: %w", err)
	}
	return before.Content, nil
}

// whitelisted is a PCI function as it is written into the whitelist, and Nova's
// device type for it.
type whitelisted struct {
	novaconf.Device
	novaType string
}

// novaDevices returns the devices without Nova's device types.
func novaDevices(devices []whitelisted) []novaconf.Device {
	out := make([]novaconf.Device, len(devices))
	for i, d := range devices {
		out[i] = d.Device
	}
	return out
}

// checkedDevices lists the functions that are to be in the whitelist, as they
// are now. It refuses functions that the host lives on, that are gone or in
// use, or that Nova would not accept, and it refuses to remove a function that
// a guest has. The error names all that is refused, so that an operator
// corrects everything at once.
func (a *Activities) checkedDevices(ctx context.Context, t *try, in workflows.WhitelistInput) ([]whitelisted, error) {
	if in.Host != a.Inventory.Host() {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "this is the agent of host %s and not of %s", a.Inventory.Host(), in.Host)
	}
	var (
		out      []whitelisted
		refusals []error
	)
	for _, entry := range in.Work.Entries {
		devices, err := a.whitelistEntry(ctx, t, entry, in.Work.Had(entry.Target))
		if err != nil && !isRefusal(err) {
			return nil, err
		}
		if err != nil {
			refusals = append(refusals, err)
		}
		out = append(out, devices...)
	}

	removed := in.Work.Removed()
	for _, target := range removed {
		err := a.checkUnusedByGuests(ctx, t, target)
		if err != nil && !isRefusal(err) {
			return nil, err
		}
		if err != nil {
			refusals = append(refusals, err)
		}
	}

	return out, cyborg.WhitelistError(refusals, len(in.Work.Entries)+len(removed))
}

// whitelistEntry returns the functions of one accelerator. One that was in the
// whitelist before may be in use, namely by the guests to which Nova gave it.
func (a *Activities) whitelistEntry(ctx context.Context, t *try, entry cyborg.WhitelistEntry, had bool) ([]whitelisted, error) {
	found, err := a.findToChange(ctx, entry.Target, freshEnough)
	if err == nil && !had {
		err = a.checkIdle(ctx, t, found)
	}

	if err != nil {
		return nil, err
	}
	return pciFunctions(found, entry.Spec)
}

// pciFunctions returns the PCI functions of an accelerator, each of which Nova
// gives out by itself.
func pciFunctions(found inventory.Found, spec cyborg.NovaSpec) ([]whitelisted, error) {
	var out []whitelisted
	for _, handle := range found.Deployable.Handles {
		address, isPCI := handle.PCIAddress()
		if !isPCI {
			return nil, cyborg.Errorf(cyborg.ErrUnsupported, "%s is no PCI device: its handle %s is of kind %s", found.Deployable.Name, handle.Identity, handle.Kind)
		}

		device := whitelisted{Device: novaconf.Device{
			Address: address, VendorID: found.Deployable.Specs.VendorID, ProductID: found.Deployable.Specs.ProductID, Spec: spec,
		}, novaType: novaType(found, address)}

		if err := device.Check(); err != nil {
			return nil, err
		}

		if remote := spec.RemoteManaged; remote != nil && *remote && device.novaType != virtualFunction {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s is no virtual function, and only those can be remote_managed: nova-compute would not start", address)
		}

		out = append(out, device)
	}

	return out, nil
}

// checkUnusedByGuests refuses, with kind ErrInUse, a function that a guest has.
// Only a function that is bound to VFIO (attached) can be used by a guest. A
// user of one that is bound to another driver is no guest.
func (a *Activities) checkUnusedByGuests(ctx context.Context, t *try, target cyborg.Target) error {
	target.Fingerprint = cyborg.Fingerprint{} // the file lists an address, and a guest may have whichever card is there
	found, err := a.find(ctx, target, freshEnough)
	if err != nil {
		if a.gone(target, err) {
			return nil // a guest cannot have what is gone
		}
		return err
	}

	for _, handle := range found.Deployable.Handles {
		attached, err := a.attached(ctx, t, found, handle, newEntry(found, handle, uuid.Nil, cyborg.WorkHandle{Holder: a.hostItself()}))
		if err != nil {
			return err
		}
		who, err := a.inUse(ctx, t, found, handle)
		if err != nil {
			return err
		}

		if attached && who != "" {
			return cyborg.Errorf(cyborg.ErrInUse, "%s is in use by %s", handle.Identity, who).
				WithHint("Delete or move the instance that has it first.")
		}
	}

	return nil
}

// These are Nova's names for kinds of PCI devices (nova/objects/fields.py,
// PciDeviceType).
const (
	plainFunction    = "type-PCI"
	physicalFunction = "type-PF"
	virtualFunction  = "type-VF"
)

// novaType returns the kind of PCI device that Nova takes a function for.
// Nova's aliases and port types select functions by it.
func novaType(found inventory.Found, address cyborg.PCIAddress) string {
	if _, virtual := found.Deployable.Specs.Capability["physical_function"]; virtual {
		return virtualFunction
	}
	if _, capable := found.Device.BoardInfo["sriov_totalvfs"]; capable && found.Device.Identity == address.String() {
		return physicalFunction
	}
	return plainFunction
}
