package agent

import (
	"cmp"
	"context"
	"errors"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// settle brings attachments into the state that the records decided, each
// independently of the others. The request may be older than what has happened
// on the host since, so it leaves alone what has had a later step meanwhile.
func (a *Activities) settle(ctx context.Context, t *try, in workflows.SettleInput) (workflows.SettleResult, error) {
	result := workflows.SettleResult{Settled: []workflows.SettleEntry{}, Errors: map[string]string{}, Changed: map[string]bool{}}
	for _, entry := range in.Entries {
		t.heartbeat.setProgress(unknownProgress, "handle "+entry.Handle.Identity)
		changed, err := a.settleOne(ctx, t, in.Addressee, entry, &result.Observations)
		if ctx.Err() != nil {
			return result, context.Cause(ctx)
		}

		if err != nil {
			result.Errors[entry.Handle.Identity] = err.Error()
			continue
		}
		result.Settled = append(result.Settled, entry)
		result.Changed[entry.Handle.Identity] = changed
	}

	a.Inventory.MarkChanged() // the attachments of the next report have changed
	return result, nil
}

// settleOne settles one attachment under the lock of its device. A nil error
// means that it is in the wanted state; changed, that it was not before, in the
// hardware or in the journal. What the device is like afterwards is added to
// observations: its number tells which reports are of before.
func (a *Activities) settleOne(
	ctx context.Context, t *try, to workflows.Addressee, entry workflows.SettleEntry, observations *[]cyborg.Observation,
) (changed bool, err error) {
	subject := journal.Subject{Backend: entry.Backend, Deployable: entry.Deployable}
	if !entry.Handle.OnHost() && entry.Want == workflows.GoalAttached {
		return false, a.Journal.Raise(to.Assignment, subject) // the handle was only handed out, and this host has nothing to attach
	}

	// The device is needed for its lock. Where the hardware does not show the
	// handle, the journal may still know the device.
	key := journal.AttachmentKey{Backend: entry.Backend, Handle: entry.Handle.Identity}
	known, _ := a.Journal.Attachment(key)
	device := known.Device

	// A backend may have been renamed since: what it had attached is the other's now.
	backend := entry.Backend
	if !a.Inventory.Enabled(backend) && device != "" {
		backend = cmp.Or(a.Inventory.BackendOf(device, entry.Deployable), backend)
	}

	found, err := a.Inventory.Find(ctx, backend, entry.Deployable, freshEnough)
	if err == nil {
		device = found.Device.Identity
	}

	if device == "" {
		// Neither the hardware nor the journal knows the handle, and the backend works:
		// it is detached.
		if entry.Want != workflows.GoalAttached && cyborg.ErrorKindOf(err) == cyborg.ErrNotFound && a.Inventory.Enabled(entry.Backend) {
			return false, a.Journal.Raise(to.Assignment, subject)
		}
		return false, err
	}

	target := cyborg.Target{Backend: backend, Deployable: entry.Deployable, Device: device, Fingerprint: entry.Fingerprint}
	unlock, err := a.lockToSettle(ctx, to, target, entry.Operation)
	if err != nil {
		return false, err
	}
	defer unlock()

	// Read again under the lock: an operation may have changed the entry while this
	// waited.
	known, isKnown := a.Journal.Attachment(key)
	if isKnown && known.Operation != entry.Operation && entry.Want != workflows.GoalAttached {
		return false, cyborg.Errorf(cyborg.ErrChanged, "operation %s has attached it since", known.Operation)
	}

	attached := false
	switch entry.Want {
	case workflows.GoalAttached:
		attached, changed, err = a.settleAttached(ctx, t, entry, target)
	case workflows.GoalDetached, workflows.GoalGivenUp:
		changed, err = a.settleDetached(ctx, t, entry, target, known, isKnown)
	default:
		err = cyborg.Errorf(cyborg.ErrInvalid, "an attachment cannot be %q", entry.Want)
	}
	if err != nil || !changed {
		return false, err
	}

	seen, err := a.Inventory.Observe(ctx, backend, device, nil)
	if err != nil { // such as of a device that is gone; the attachment is settled all the same
		t.log.WarnContext(ctx, "the device of a settled attachment cannot be looked at", "device", device, "error", err)
		return true, nil
	}

	if entry.Want == workflows.GoalAttached {
		if err := a.settledCard(ctx, t, target, entry.Handle.Identity, attached, seen); err != nil {
			return false, err
		}
	}
	if seen.Device.Fingerprint.Other(entry.Fingerprint) { // it is gone, too
		return true, nil
	}

	*observations = append(*observations, seen)
	return true, nil
}

// settledCard writes into the journal what the device of a settled attachment shows
// of its card. If that is another one than the attachment's, the error says so, the
// attachment is in doubt, and what the driver has attached just now is taken back.
func (a *Activities) settledCard(ctx context.Context, t *try, target cyborg.Target, handle string, attached bool, seen cyborg.Observation) error {
	known, isKnown := a.Journal.Attachment(journal.AttachmentKey{Backend: target.Backend, Handle: handle})
	now := seen.Device.Fingerprint
	switch {
	case !isKnown:
		return nil
	case known.Of(now):
		learned := learnCard(known, seen)
		if learned.Fingerprint == known.Fingerprint {
			return nil
		}
		return a.Journal.Write(journal.Change{Attachments: []journal.Attachment{learned}})
	}

	cause := otherCard(target.Device, now, cyborg.Fingerprint(known.Fingerprint))
	known.State = journal.InDoubt
	if err := a.Journal.Write(journal.Change{Attachments: []journal.Attachment{known}}); err != nil || !attached {
		return errors.Join(cause, err)
	}

	found, err := a.Inventory.Find(ctx, target.Backend, target.Deployable, sinceLook)
	if err != nil {
		return errors.Join(cause, err)
	}
	report, err := found.Handle(handle)
	if err == nil {
		err = a.takeBack(ctx, t, found, report, known)
	}
	return errors.Join(cause, err)
}

// settleAttached attaches a handle that the records say is attached. Where the
// journal says that the attach was left in doubt, was undone by a boot, or
// belongs to another operation, the driver attaches at once. Otherwise the
// hardware is asked first, and left alone if it shows the handle attached:
// somebody may be using it. The first result says that the driver has attached it.
func (a *Activities) settleAttached(
	ctx context.Context, t *try, entry workflows.SettleEntry, target cyborg.Target,
) (attached, changed bool, err error) {
	plan, err := a.planAttach(ctx, t, workflows.AttachInput{Operation: entry.Operation, Target: target, Handle: entry.Handle})
	if err != nil {
		return false, false, err
	}

	if err := a.checkNoStranger(ctx, t, plan, true); err != nil {
		return false, false, err
	}
	if err := a.checkClean(ctx, t, plan.found, plan.handle, entry.Handle); err != nil {
		return false, false, err
	}

	plan.entry.Operation = entry.Operation
	b := plan.before

	// Either the journal says that the handle is attached, or it knows nothing and
	// may have been lost. In both cases the hardware decides whether there is
	// anything to do.
	if b == nil || b.State == journal.Attached && b.Operation == entry.Operation && !a.Journal.Lost(*b) {
		is, err := a.attached(ctx, t, plan.found, plan.handle, plan.entry)
		switch {
		case err != nil || !is: // it is to be attached; the driver finds out what is wrong, if anything
		case b != nil:
			return false, false, nil
		default: // the journal was lost; somebody may be using the handle, so only the journal is corrected
			t.log.WarnContext(ctx, "a handle is attached as the records say, and the journal did not know it",
				"handle", plan.handle.Identity, "operation_id", entry.Operation)
			plan.entry.State = journal.Attached
			return false, true, a.Journal.Write(journal.Change{Attachments: []journal.Attachment{plan.entry}})
		}
	}

	if err := a.Journal.Write(journal.Change{Attachments: []journal.Attachment{plan.entry}}); err != nil {
		return false, false, err
	}

	if err := a.callAttach(ctx, t, &plan); err != nil {
		return false, false, err
	}

	plan.entry.State = journal.Attached
	return true, true, a.Journal.Write(journal.Change{Attachments: []journal.Attachment{plan.entry}})
}

// settleDetached detaches a handle that the records say is free. It refuses
// what is in use, and drops the journal entry once the handle is detached or
// gone.
func (a *Activities) settleDetached(
	ctx context.Context, t *try, entry workflows.SettleEntry, target cyborg.Target, known journal.Attachment, isKnown bool,
) (changed bool, err error) {
	drop := journal.Change{DropAttachments: []journal.AttachmentKey{{Backend: entry.Backend, Handle: entry.Handle.Identity}}}

	found, err := a.find(ctx, target, freshEnough)
	if err != nil {
		if a.gone(target, err) {
			return isKnown, a.Journal.Write(drop)
		}
		return false, err
	}

	handle, err := found.Handle(entry.Handle.Identity)
	if err != nil || isKnown && !known.Of(found.Device.Fingerprint) { // it is gone, or it is that of another card
		return isKnown, a.Journal.Write(drop)
	}

	if entry.Want == workflows.GoalGivenUp {
		if !isKnown {
			return false, nil // this host has given it up since, and what the hardware shows is the instance's
		}
		if holder := holderOf(known); holder.Kind != cyborg.HolderHost {
			return false, cyborg.Errorf(cyborg.ErrChanged, "this host has prepared it for %s %s, and does not have it itself", holder.Kind, holder.ID).
				WithHint("The server is of an earlier release, which does not know that: upgrade it.")
		}
		if _, ok := found.Driver.(drivers.Users); !ok {
			return false, cyborg.Errorf(cyborg.ErrUnsupported, "the records give it to somebody else, and its driver cannot tell whether that one uses it").
				WithHint("Detach it from the instance or the service, and from the host.")
		}
	}

	if !isKnown && !entry.Handle.OnHost() { // the handle was only handed out; nobody may use it any more
		return false, a.checkUnused(ctx, t, found, handle)
	}

	if !isKnown { // the records are in doubt, and the journal may have been lost
		return a.detachUnknown(ctx, t, found, handle, newEntry(found, handle, entry.Operation, entry.Handle))
	}

	if err := a.checkUnused(ctx, t, found, handle); err != nil {
		return false, err
	}

	// As with an attach, the journal is written before the hardware is touched.
	known.State = journal.InDoubt
	if err := a.Journal.Write(journal.Change{Attachments: []journal.Attachment{known}}); err != nil {
		return false, err
	}

	if err := a.callDetach(ctx, t, found, handle, known, false); err != nil {
		return false, err
	}

	return true, a.Journal.Write(drop)
}

// checkAttachedUnused is checkUnused for an attach that may be incomplete: before a
// handle is attached, its user has it from somebody else, and the undo of what was
// begun does not take it away.
func (a *Activities) checkAttachedUnused(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry journal.Attachment,
) error {
	if is, err := a.attached(ctx, t, found, handle, entry); err != nil || !is {
		return err
	}
	return a.checkUnused(ctx, t, found, handle)
}

// checkUnused refuses, with kind ErrInUse, a handle that somebody uses. Nobody uses
// what is another card's by now; the driver does nothing to that one.
func (a *Activities) checkUnused(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport) error {
	who, err := a.inUse(ctx, t, found, handle)
	switch {
	case cyborg.ErrorKindOf(err) == cyborg.ErrChanged:
		return nil
	case err == nil && who != "":
		return cyborg.Errorf(cyborg.ErrInUse, "it is in use by %s", who)
	default:
		return err
	}
}
