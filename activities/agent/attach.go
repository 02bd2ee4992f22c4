package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// attachStep is the name of the journal step that attaches one handle. It
// contains the handle because one operation may attach several.
func attachStep(handle string) string { return workflows.AttachActivity + "/" + handle }

// attach makes a handle usable for its holder, on this host. The journal says that the
// attachment is in doubt before the driver is called, so that a try after a
// crash knows that the hardware may have been touched.
func (a *Activities) attach(ctx context.Context, t *try, in workflows.AttachInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	identity := in.Handle.Identity
	if !in.Handle.OnHost() {
		return result, cyborg.Errorf(cyborg.ErrInvalid, "handle %s is for %s %s, which gets it as it is: its host attaches nothing",
			identity, in.Handle.Holder.Kind, in.Handle.Holder.ID)
	}

	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.AttachActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()
	// The journal is read under the device's lock, so that no other change of the
	// device can come between reading and acting.
	entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: in.Target.Backend, Handle: identity})
	s, done, err := a.stepOf(in.Operation, attachStep(identity), &result)
	if err != nil {
		return result, err
	}

	if done {
		if !known || !a.Journal.Lost(entry) {
			return result, nil
		}
		s.begun = true // the step was done, and a boot of the machine has undone it since
	}

	plan, err := a.planAttach(ctx, t, in)
	if err == nil {
		err = a.checkNoStranger(ctx, t, plan, in.Undo)
	}
	if had := in.Undo || plan.before != nil && plan.before.Operation == in.Operation; err == nil && !had { // who had it gets it back
		err = available(plan.found)
	}
	if err == nil {
		err = a.checkClean(ctx, t, plan.found, plan.handle, in.Handle)
	}
	if err != nil {
		if s.begun {
			err = uncertain(err)
		}
		return result, err
	}

	if err := a.Journal.Write(journal.Change{
		Steps: append(plan.steps, s.at(journal.Started)), Attachments: []journal.Attachment{plan.entry},
	}); err != nil {
		return result, err
	}
	a.Inventory.MarkChanged()

	// The workflow undoes nothing after a refusal. So a refusal may only be
	// returned once it is certain that nothing changed.
	if err := a.callAttach(ctx, t, &plan); err != nil {
		if ctx.Err() == nil && isRefusal(err) {
			err = a.refusedAttach(ctx, t, s, plan, err)
		}
		return result, err
	}

	var seen cyborg.Observation
	result, err = finish(ctx, a, s, plan.found, func(now cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		seen = now
		attached := learnCard(plan.entry, now)
		attached.State = journal.Attached
		return workflows.ChangeResult{Observation: now}, journal.Change{Attachments: []journal.Attachment{attached}}, sameCard(plan.found, now)
	})
	if errors.Is(err, errOtherCard) {
		err = a.attachedOther(ctx, t, s, plan, seen)
	}
	return result, err
}

// learnCard returns the attachment with what was seen of its card. One that slept
// before tells its serial number only once it is attached.
func learnCard(entry journal.Attachment, seen cyborg.Observation) journal.Attachment {
	entry.Fingerprint = journal.Fingerprint(cyborg.Fingerprint(entry.Fingerprint).Learn(seen.Device.Fingerprint))
	return entry
}

// attachedOther takes back what was attached to another card than the one that the
// step is about, as the device shows afterwards, and returns the error of the step.
// It is a refusal where the handle is certainly as it was before: not where it was
// attached, because it has been detached here.
func (a *Activities) attachedOther(ctx context.Context, t *try, s step, plan attachPlan, seen cyborg.Observation) error {
	cause := sameCard(plan.found, seen)
	plan.found.Device = seen.Device
	if err := a.takeBack(ctx, t, plan.found, plan.handle, plan.entry); err != nil {
		t.log.ErrorContext(ctx, "what was attached to another card cannot be taken back", "handle", plan.handle.Identity, "error", err)
		a.keepOther(ctx, t, plan, seen)
		return uncertain(cause)
	}

	if s.begun || plan.again || a.wasAttached(plan) {
		return uncertain(cause)
	}
	return a.forgetAttach(ctx, t, s, plan, cause)
}

// keepOther writes into the journal to which card the handle has been attached, so
// that the undo of the attach takes it back from that one. What undoes a detach has no
// such undo: its attachment stays that of the former card, which may come back.
func (a *Activities) keepOther(ctx context.Context, t *try, plan attachPlan, seen cyborg.Observation) {
	if plan.again {
		return
	}

	plan.entry.Fingerprint = journal.Fingerprint(seen.Device.Fingerprint)
	if err := a.Journal.Write(journal.Change{Attachments: []journal.Attachment{plan.entry}}); err != nil {
		t.log.ErrorContext(ctx, "the journal does not know to which card a handle was attached", "handle", plan.handle.Identity, "error", err)
	}
}

// wasAttached reports whether the handle was attached before the attach, as far as
// the journal knows.
func (a *Activities) wasAttached(plan attachPlan) bool {
	return plan.before != nil && plan.before.State == journal.Attached && !a.Journal.Lost(*plan.before)
}

// takeBack detaches a handle of a card to which it should not have been attached,
// unless somebody uses it already.
func (a *Activities) takeBack(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry journal.Attachment) error {
	if err := a.checkAttachedUnused(ctx, t, found, handle, entry); err != nil {
		return err
	}
	return a.callDetach(ctx, t, found, handle, entry, true)
}

// attachPlan is what an attach is about to do, and what it found before.
type attachPlan struct {
	found  inventory.Found
	handle cyborg.HandleReport
	// parameters are what was chosen for the handle.
	parameters map[string]string
	// entry is the attachment as it is written to the journal before the hardware
	// is touched.
	entry journal.Attachment
	// before is the journal entry that entry replaces; nil where there is none.
	before *journal.Attachment
	// prior is the driver's note of an earlier attach of this handle in the present
	// boot: by an earlier try, or for the previous holder. The driver needs it to
	// find out what is already done.
	prior json.RawMessage
	// again is true where this attach undoes a detach of the same operation.
	again bool
	// steps are the journal steps to write together with entry, such as the undone
	// detach.
	steps []journal.Step
}

// planAttach finds what to attach and checks that it may be attached. It
// changes nothing.
func (a *Activities) planAttach(ctx context.Context, t *try, in workflows.AttachInput) (attachPlan, error) {
	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil {
		return attachPlan{}, err
	}

	handle, err := found.Handle(in.Handle.Identity)
	if err != nil {
		return attachPlan{}, err
	}

	// The records may not know yet that the driver takes other parameters than before.
	if err := found.Deployable.Preparation.Check(in.Handle.Parameters); err != nil {
		return attachPlan{}, err
	}

	plan := attachPlan{
		found: found, handle: handle, parameters: in.Handle.Parameters, entry: newEntry(found, handle, in.Operation, in.Handle),
	}
	key := plan.entry.Key()
	if entry, known := a.Journal.Attachment(key); known {
		plan.before = &entry
	}

	if in.Undo {
		// This restores what the operation's own detach took away, on behalf of the
		// operation that had attached it. Marking the detach as undone keeps a late try
		// of it from running after this.
		plan.again = true
		detach := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.DetachActivity}}.at(journal.Undone)
		if begun, ok := a.Journal.Step(detach.StepKey); ok {
			detach.Note = begun.Note
		}
		plan.steps = []journal.Step{detach}
		if plan.before == nil {
			plan.before = detachedAttachment(detach, key)
		}
	}

	// What was attached to another card says nothing of this one. The operation that
	// has attached it does not get this one instead.
	if before := plan.before; before != nil && !before.Of(found.Device.Fingerprint) {
		if in.Undo || before.Operation == in.Operation {
			return attachPlan{}, otherCard(found.Device.Identity, found.Device.Fingerprint, cyborg.Fingerprint(before.Fingerprint))
		}
		plan.before = nil
	}

	// Of a card that sleeps, the journal may know more than the records.
	if before := plan.before; before != nil && (in.Undo || before.Operation == in.Operation) {
		plan.found.Device.Fingerprint = cyborg.Fingerprint(before.Fingerprint).Learn(found.Device.Fingerprint)
		plan.entry.Fingerprint = journal.Fingerprint(plan.found.Device.Fingerprint)
	}

	switch {
	case plan.before == nil: // the journal knows no attachment of the handle, so there is nothing to compare
	case in.Undo:
		plan.entry.Operation = plan.before.Operation
	case plan.before.HolderKind != plan.entry.HolderKind || plan.before.HolderID != plan.entry.HolderID:
		// The records name another holder than the journal does. The records are right,
		// unless somebody still uses the handle.
		who, err := a.inUse(ctx, t, found, handle)
		if err != nil {
			return attachPlan{}, err
		}

		if who != "" {
			return attachPlan{}, cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s, since operation %s", key.Handle, who, plan.before.Operation)
		}
	}

	// A note from before the last boot describes hardware state that the boot has
	// reset.
	if plan.before != nil && plan.before.BootID == a.Journal.BootID() {
		plan.prior = plan.before.Note
		plan.entry.Note = plan.before.Note
	}

	return plan, nil
}

// checkNoStranger refuses, with kind ErrInUse, a handle that somebody uses who
// cannot have it from this agent: it is not attached, or the journal does not
// know the attachment. The driver may not look. With restores, the records say
// that the handle was attached before, so whoever uses an attached one is its
// holder, and only the journal may have been lost. A guest to whom the handle belongs
// by the journal, too, may have started before its host prepared it again, such as
// after a boot: whether that can be done under the guest, the driver knows.
func (a *Activities) checkNoStranger(ctx context.Context, t *try, plan attachPlan, restores bool) error {
	if _, ok := attacherOf(plan.found, plan.entry); !ok {
		return nil // nothing is done on the hardware that could take it away
	}
	holder := holderOf(plan.entry)
	if restores && holder.Kind != cyborg.HolderHost && plan.before != nil && holderOf(*plan.before) == holder {
		return nil
	}

	who, err := a.inUse(ctx, t, plan.found, plan.handle)
	if err != nil || who == "" {
		return err
	}

	is, err := a.attached(ctx, t, plan.found, plan.handle, plan.entry)
	if err != nil || is && (restores || plan.before != nil) {
		return err
	}

	err = cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s, and this agent has not attached it", plan.handle.Identity, who).
		WithHint("Stop its user, then attach again.")
	if is { // an earlier try may have attached it, before the journal was lost
		return uncertain(err)
	}
	return err
}

// newEntry is the journal entry of an attachment that is about to begin. Where
// the driver has nothing to attach for the holder, the handle only changes hands,
// and no boot undoes that.
func newEntry(found inventory.Found, handle cyborg.HandleReport, operation uuid.UUID, recorded cyborg.WorkHandle) journal.Attachment {
	holder := recorded.Holder
	_, attaches := found.Driver.(drivers.Attacher)
	attaches = attaches && (holder.Kind == cyborg.HolderHost || found.Deployable.Preparation != nil)

	return journal.Attachment{
		Backend: found.Backend, Handle: handle.Identity, Device: found.Device.Identity, Deployable: found.Deployable.Name,
		Fingerprint: journal.Fingerprint(found.Device.Fingerprint), Operation: operation, HolderKind: string(holder.Kind), HolderID: holder.ID,
		State: journal.InDoubt, HandleUUID: recorded.UUID, HandedOut: !attaches,
	}
}

// entryOr returns what the journal has of a handle of this card or, where that is
// nothing, what it would have of an attachment for this holder.
func (a *Activities) entryOr(found inventory.Found, handle cyborg.HandleReport, holder cyborg.Holder) journal.Attachment {
	entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: found.Backend, Handle: handle.Identity})
	if known && entry.Of(found.Device.Fingerprint) {
		return entry
	}
	return newEntry(found, handle, uuid.Nil, cyborg.WorkHandle{Holder: holder})
}

// hostItself returns the holder of what is attached to this host.
func (a *Activities) hostItself() cyborg.Holder {
	return cyborg.Holder{Kind: cyborg.HolderHost, ID: a.Inventory.Host()}
}

// attacherOf returns the driver of an attachment; false where it has nothing to do for
// the holder, because the handle is usable as it is.
func attacherOf(found inventory.Found, entry journal.Attachment) (drivers.Attacher, bool) {
	attacher, ok := found.Driver.(drivers.Attacher)
	return attacher, ok && (holderOf(entry).Kind == cyborg.HolderHost || !entry.HandedOut)
}

// holderOf returns the holder of an attachment.
func holderOf(entry journal.Attachment) cyborg.Holder {
	return cyborg.Holder{Kind: cyborg.HolderKind(entry.HolderKind), ID: entry.HolderID}
}

// callAttach calls the driver and writes each note of the driver into the plan's entry
// and the journal at once. It does nothing where the driver has nothing to attach.
func (a *Activities) callAttach(ctx context.Context, t *try, plan *attachPlan) error {
	attacher, ok := attacherOf(plan.found, plan.entry)
	if !ok {
		return nil
	}

	err := t.guarded("attach of "+plan.handle.Identity, func() error {
		return attacher.Attach(ctx, drivers.AttachRequest{
			Target: plan.found.Target, Handle: plan.handle, Holder: holderOf(plan.entry), HandleUUID: plan.entry.HandleUUID, Parameters: plan.parameters, Prior: plan.prior,
			Note: func(note json.RawMessage) error {
				plan.entry.Note = bytes.Clone(note)
				return a.Journal.Write(journal.Change{Attachments: []journal.Attachment{plan.entry}})
			},
		})
	})
	return a.showOther(ctx, t, plan.found, err)
}

// refusedAttach returns the error of an attach that the driver refused. The
// workflow does not undo a refused attach, so this makes sure that nothing has
// changed; if that is not certain, the error says so and is not a refusal.
func (a *Activities) refusedAttach(ctx context.Context, t *try, s step, plan attachPlan, cause error) error {
	// An earlier try, or the undone detach, may have changed the hardware before
	// the driver refused.
	if s.begun || plan.again {
		return uncertain(cause)
	}

	was := a.wasAttached(plan)
	is, err := a.attached(ctx, t, plan.found, plan.handle, plan.entry)
	if err != nil || is != was {
		return uncertain(cause)
	}

	// A driver writes its note before it touches anything. What it touched may not
	// show in Attached, such as a driver_override, so a new note means that it must
	// be asked to undo.
	if noted := !bytes.Equal(plan.entry.Note, plan.prior); noted {
		if was || a.callDetach(ctx, t, plan.found, plan.handle, plan.entry, true) != nil {
			return uncertain(cause)
		}
	}

	return a.forgetAttach(ctx, t, s, plan, cause)
}

// forgetAttach has the journal go back to what it held before an attach that has
// changed nothing, in one write, and returns the cause as the error for the workflow.
func (a *Activities) forgetAttach(ctx context.Context, t *try, s step, plan attachPlan, cause error) error {
	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropAttachments: []journal.AttachmentKey{plan.entry.Key()}}
	if plan.before != nil {
		change.Attachments = []journal.Attachment{*plan.before}
	}

	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a refused attach stays in doubt in the journal", "error", err)
		return uncertain(cause)
	}

	a.Inventory.MarkChanged()
	return cause
}

// inUse returns who uses a handle, as far as the driver can find out; empty for
// nobody. The error is of kind ErrChanged where the driver finds another card in the
// place of the one that was found: a look at the inventory does not wake a card that
// sleeps.
func (a *Activities) inUse(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport) (who string, err error) {
	users, ok := found.Driver.(drivers.Users)
	if !ok {
		return "", nil
	}

	err = t.guarded("asking who uses "+handle.Identity, func() (err error) {
		who, err = users.InUse(ctx, found.Target, handle)
		return err
	})
	return who, a.showOther(ctx, t, found, err)
}

// showOther returns the error of a driver. Where the driver has found another card,
// it looks at the device first: the driver has woken that card up, and while it is
// awake a look sees which one it is. The next report then tells the conductor.
func (a *Activities) showOther(ctx context.Context, t *try, found inventory.Found, err error) error {
	if cyborg.ErrorKindOf(err) != cyborg.ErrChanged {
		return err
	}

	if lookErr := a.Inventory.LookAt(ctx, found.Backend, found.Device.Identity); lookErr != nil {
		t.log.WarnContext(ctx, "the card that a driver has found cannot be looked at", "device", found.Device.Identity, "error", lookErr)
	}
	return err
}

// attached asks the hardware whether a handle is attached as the entry says. Where the
// driver has nothing to attach, the journal decides.
func (a *Activities) attached(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry journal.Attachment,
) (is bool, err error) {
	attacher, ok := attacherOf(found, entry)
	if !ok {
		known, ok := a.Journal.Attachment(entry.Key())
		return ok && known.State == journal.Attached && known.Of(found.Device.Fingerprint), nil
	}

	err = t.guarded("asking whether "+handle.Identity+" is attached", func() (err error) {
		is, err = attacher.Attached(ctx, drivers.AttachedRequest{
			Target: found.Target, Handle: handle, Holder: holderOf(entry).Kind, HandleUUID: entry.HandleUUID,
		})
		return err
	})
	return is, err
}
