package agent

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// attachStep names the attach of one handle, of which an operation may have several.
func attachStep(handle string) string { return workflows.AttachActivity + "/" + handle }

// attach makes a handle usable on this host.
func (a *Activities) attach(ctx context.Context, t *try, in workflows.AttachInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	identity := in.Handle.Identity
	if in.Handle.Holder.Kind != cyborg.HolderHost {
		return result, cyborg.Errorf(cyborg.ErrInvalid, "handle %s is for %s %s, and an agent attaches to its host only",
			identity, in.Handle.Holder.Kind, in.Handle.Holder.ID)
	}
	unlock, err := a.Inventory.Lock(ctx, in.Target.Device, attemptOf(workflows.AttachActivity, in.Operation))
	if err != nil {
		return result, err
	}
	defer unlock()
	entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: in.Target.Backend, Handle: identity})
	s, done, err := a.stepOf(in.Operation, attachStep(identity), &result)
	if err != nil {
		return result, err
	}
	if done {
		if !known || !a.Journal.Lost(entry) {
			return result, nil
		}
		s.begun = true // it was done, and then undone by a boot
	}
	plan, err := a.planAttach(ctx, t, in)
	if err != nil {
		if s.begun {
			err = doubt(err)
		}
		return result, err
	}
	if err := a.Journal.Write(journal.Change{
		Steps: append(plan.steps, s.at(journal.Started)), Attachments: []journal.Attachment{plan.entry},
	}); err != nil {
		return result, err
	}
	a.Inventory.Touch()
	if err := a.callAttach(ctx, t, plan.found, plan.handle, &plan.entry, plan.prior); err != nil {
		if ctx.Err() == nil && refuses(err) {
			err = a.refusedAttach(ctx, t, s, plan, err)
		}
		return result, err
	}
	plan.entry.State = journal.Attached
	return finish(ctx, a, s, plan.found, recording(journal.Change{Attachments: []journal.Attachment{plan.entry}}))
}

// attachPlan is what an attach is about to do.
type attachPlan struct {
	found  inventory.Found
	handle cyborg.HandleReport
	// entry is the attachment as it is written before the hardware is touched, and before is what it replaces.
	entry  journal.Attachment
	before *journal.Attachment
	// prior is the note of an earlier try, or of the attach that this one takes over, in this boot.
	prior json.RawMessage
	// again says that this undoes a detach of the same operation, and steps is what to write down of that.
	again bool
	steps []journal.Step
}

// planAttach finds what to attach. It changes nothing.
func (a *Activities) planAttach(ctx context.Context, t *try, in workflows.AttachInput) (attachPlan, error) {
	found, err := a.findToChange(ctx, in.Target, freshEnough)
	if err != nil {
		return attachPlan{}, err
	}
	handle, err := found.Handle(in.Handle.Identity)
	if err != nil {
		return attachPlan{}, err
	}
	plan := attachPlan{found: found, handle: handle, entry: newEntry(found, handle, in.Operation, in.Handle.Holder)}
	key := plan.entry.Key()
	if entry, known := a.Journal.Attachment(key); known {
		plan.before = &entry
	}
	if in.Undo {
		// This brings back what the operation's own detach took: under the operation that attached it at first. The
		// detach must not go on, or begin, after that.
		plan.again = true
		detach := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.DetachActivity}}.at(journal.Undone)
		if begun, ok := a.Journal.Step(detach.StepKey); ok {
			detach.Note = begun.Note
		}
		plan.steps = []journal.Step{detach}
		if plan.before == nil {
			plan.before = takenBy(detach, key)
		}
	}
	switch {
	case plan.before == nil:
	case in.Undo:
		plan.entry.Operation = plan.before.Operation
	case plan.before.HolderKind != plan.entry.HolderKind || plan.before.HolderID != plan.entry.HolderID:
		// The records gave the handle to another holder than the journal knows; so be it, unless somebody uses it.
		who, err := a.inUse(ctx, t, found, handle)
		if err != nil {
			return attachPlan{}, err
		}
		if who != "" {
			return attachPlan{}, cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s, since operation %s", key.Handle, who, plan.before.Operation)
		}
	}
	if plan.before != nil && plan.before.BootID == a.Journal.BootID() {
		plan.prior = plan.before.Note
		plan.entry.Note = plan.before.Note
	}
	return plan, nil
}

func newEntry(found inventory.Found, handle cyborg.HandleReport, operation uuid.UUID, holder cyborg.Holder) journal.Attachment {
	_, attaches := found.Driver.(drivers.Attacher)
	return journal.Attachment{
		Backend: found.Backend, Handle: handle.Identity, Device: found.Device.Identity, Deployable: found.Deployable.Name,
		Operation: operation, HolderKind: string(holder.Kind), HolderID: holder.ID,
		State: journal.InDoubt, HandedOut: !attaches,
	}
}

// callAttach calls the driver, which keeps its notes in the journal. Where the driver has nothing to attach, the handle
// is handed out as it is.
func (a *Activities) callAttach(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry *journal.Attachment, prior json.RawMessage,
) error {
	attacher, ok := found.Driver.(drivers.Attacher)
	if !ok {
		return nil
	}
	return t.guarded("attach of "+handle.Identity, func() error {
		return attacher.Attach(ctx, drivers.AttachRequest{
			Target: found.Target, Handle: handle, Prior: prior,
			Holder: cyborg.Holder{Kind: cyborg.HolderKind(entry.HolderKind), ID: entry.HolderID},
			Note: func(note json.RawMessage) error {
				entry.Note = bytes.Clone(note)
				return a.Journal.Write(journal.Change{Attachments: []journal.Attachment{*entry}})
			},
		})
	})
}

// refusedAttach makes sure that an attach that the driver refuses has changed nothing, since the workflow will not undo
// it; where that is not certain, the error says so.
func (a *Activities) refusedAttach(ctx context.Context, t *try, s step, plan attachPlan, cause error) error {
	if s.begun || plan.again {
		return doubt(cause)
	}
	was := plan.before != nil && plan.before.State == journal.Attached && !a.Journal.Lost(*plan.before)
	is, err := a.attached(ctx, t, plan.found, plan.handle)
	if err != nil || is != was {
		return doubt(cause)
	}
	if noted := !bytes.Equal(plan.entry.Note, plan.prior); noted {
		// A driver notes before it touches: what it touched may not show, such as a driver_override.
		if was || a.callDetach(ctx, t, plan.found, plan.handle, plan.entry.Note, true) != nil {
			return doubt(cause)
		}
	}
	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropAttachments: []journal.AttachmentKey{plan.entry.Key()}}
	if plan.before != nil {
		change.Attachments = []journal.Attachment{*plan.before}
	}
	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a refused attach stays in doubt in the journal", "error", err)
		return doubt(cause)
	}
	a.Inventory.Touch()
	return cause
}

// inUse returns who uses a handle, as far as the driver can tell.
func (a *Activities) inUse(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport) (who string, err error) {
	users, ok := found.Driver.(drivers.Users)
	if !ok {
		return "", nil
	}
	err = t.guarded("asking who uses "+handle.Identity, func() (err error) {
		who, err = users.InUse(ctx, found.Target, handle)
		return err
	})
	return who, err
}

// attached asks the hardware whether a handle is attached. Where the driver has nothing to attach, the journal knows.
func (a *Activities) attached(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport) (is bool, err error) {
	attacher, ok := found.Driver.(drivers.Attacher)
	if !ok {
		entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: found.Backend, Handle: handle.Identity})
		return known && entry.State == journal.Attached, nil
	}
	err = t.guarded("asking whether "+handle.Identity+" is attached", func() (err error) {
		is, err = attacher.Attached(ctx, found.Target, handle)
		return err
	})
	return is, err
}
