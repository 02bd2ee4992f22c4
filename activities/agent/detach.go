package agent

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// detachNote is what the journal keeps of a detach: the attachments that it
// takes away, so that they can be restored.
type detachNote struct {
	Attachments []journal.Attachment `json:"attachments"`
}

// detachedAttachment returns the attachment of a handle from the note of a
// detach; nil where the note has none.
func detachedAttachment(detach journal.Step, key journal.AttachmentKey) *journal.Attachment {
	var note detachNote
	if json.Unmarshal(detach.Note, &note) != nil { // the detach never began, so it has no note
		return nil
	}

	for _, entry := range note.Attachments {
		if entry.Key() == key {
			return &entry
		}
	}

	return nil
}

// detach takes handles back. Those that the host holds, or has prepared for others,
// are detached from its hardware; for all others, which guests or services hold, it
// only makes sure that nobody on the host uses them. It touches none of them while one
// is in use.
func (a *Activities) detach(ctx context.Context, t *try, in workflows.DetachInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.DetachActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	if in.Undo {
		return a.undoAttach(ctx, t, in)
	}

	s, done, err := a.stepOf(in.Operation, workflows.DetachActivity, &result)
	if done || err != nil {
		return result, err
	}

	found, handles, err := a.planDetach(ctx, t, s, in)
	if err != nil {
		return result, err
	}
	if found == nil { // the device is gone, and with it everything that was attached
		return result, a.forget(in)
	}

	if err := a.beginDetach(&s, in); err != nil {
		return result, err
	}

	var detached []journal.AttachmentKey
	for _, one := range handles {
		if err := a.callDetach(ctx, t, *found, one.handle, one.entry, false); err != nil {
			return result, a.failedDetach(ctx, t, s, *found, handles, detached, err)
		}
		detached = append(detached, one.entry.Key())
	}

	// The entries are dropped together with the end of the step: until then a
	// repeat detaches all of them again, which the driver allows.
	return finish(ctx, a, s, *found, recording(journal.Change{DropAttachments: keysOf(a.entriesOf(in))}))
}

// entriesOf returns what the journal has of the handles that are attached on the host,
// without what is attached to another card than the target. Once the driver has detached
// those that are there, all of them are detached: the others are gone.
func (a *Activities) entriesOf(in workflows.DetachInput) []journal.Attachment {
	var entries []journal.Attachment
	for _, handle := range in.Handles {
		entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: in.Target.Backend, Handle: handle.Identity})
		if known && isOnHost(handle, entry) && entry.Of(in.Target.Fingerprint) {
			entries = append(entries, entry)
		}
	}
	return entries
}

// isOnHost reports whether a handle is attached on the host, of which the journal has
// this entry. A server of release 0.1 does not say so of what was prepared for others.
func isOnHost(handle cyborg.WorkHandle, entry journal.Attachment) bool {
	return handle.OnHost() || handle.Holder == holderOf(entry)
}

// detachPlan is a handle that the driver has to detach, with what the journal has of
// it; where that is nothing, with what it would have.
type detachPlan struct {
	handle cyborg.HandleReport
	entry  journal.Attachment
}

// keysOf returns the keys of the entries.
func keysOf(entries []journal.Attachment) []journal.AttachmentKey {
	keys := make([]journal.AttachmentKey, len(entries))
	for i, entry := range entries {
		keys[i] = entry.Key()
	}
	return keys
}

// planDetach finds the handles that the driver has to detach. It refuses with
// kind ErrInUse if any of the operation's handles is in use, and changes
// nothing. The first result is nil if the device is gone.
func (a *Activities) planDetach(ctx context.Context, t *try, s step, in workflows.DetachInput) (*inventory.Found, []detachPlan, error) {
	// An earlier try that began may have changed something, so its refusals must
	// not read as "nothing changed".
	keep := func(err error) error {
		if s.begun {
			return uncertain(err)
		}
		return err
	}

	found, err := a.find(ctx, in.Target, freshEnough)
	if err != nil {
		if a.gone(in.Target, err) {
			t.log.WarnContext(ctx, "what is to be detached is gone", "deployable", in.Target.Deployable)
			return nil, nil, nil
		}
		return nil, nil, keep(err)
	}

	var (
		handles []detachPlan
		used    []string
	)

	for _, wanted := range in.Handles {
		handle, err := found.Handle(wanted.Identity)
		if err != nil {
			t.log.WarnContext(ctx, "a handle to detach is gone", "handle", wanted.Identity)
			continue // what is gone is detached
		}
		entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: in.Target.Backend, Handle: wanted.Identity})
		if !known {
			entry = newEntry(found, handle, in.Operation, wanted)
		}
		onHost := wanted.OnHost() || known && isOnHost(wanted, entry)
		if known && onHost && !entry.Of(found.Device.Fingerprint) {
			t.log.WarnContext(ctx, "a handle to detach is of another card now", "handle", wanted.Identity)
			continue
		}

		who, err := a.inUse(ctx, t, found, handle)
		if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrChanged { // of another card, the driver detaches nothing
			return nil, nil, keep(err)
		}

		if who != "" {
			used = append(used, "handle "+handle.Identity+" is in use by "+who)
		}

		if onHost {
			handles = append(handles, detachPlan{handle, entry})
		}
	}

	if len(used) > 0 {
		err := cyborg.Errorf(cyborg.ErrInUse, "%s", strings.Join(used, "; ")).WithHint("Stop its user, then detach again.")
		if s.begun {
			return nil, nil, a.failedDetach(ctx, t, s, found, handles, nil, err)
		}
		return nil, nil, err
	}

	return &found, handles, nil
}

// beginDetach writes into the journal that the attachments are in doubt from
// here on, and what they were. A repeated try keeps the note of the first: by
// then the entries say only that they are in doubt.
func (a *Activities) beginDetach(s *step, in workflows.DetachInput) error {
	var (
		note   detachNote
		change journal.Change
	)
	for _, entry := range a.entriesOf(in) {
		note.Attachments = append(note.Attachments, entry)
		entry.State = journal.InDoubt
		change.Attachments = append(change.Attachments, entry)
	}

	if !s.begun {
		text, err := json.Marshal(note)
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "the note of a detach cannot be kept: %w", err)
		}
		s.prior.Note = text
	}

	change.Steps = []journal.Step{s.at(journal.Started)}
	if err := a.Journal.Write(change); err != nil {
		return err
	}
	a.Inventory.MarkChanged()
	return nil
}

// callDetach calls the driver's Detach, where the driver has something to do for the
// attachment. Undo says that the attach may be incomplete.
func (a *Activities) callDetach(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry journal.Attachment, undo bool,
) error {
	attacher, ok := attacherOf(found, entry)
	if !ok {
		return nil
	}
	return t.guarded("detach of "+handle.Identity, func() error {
		return attacher.Detach(ctx, drivers.DetachRequest{
			Target: found.Target, Handle: handle, Holder: holderOf(entry), HandleUUID: entry.HandleUUID, Prior: entry.Note, Undo: undo,
		})
	})
}

// failedDetach updates the journal after a detach has failed, and returns the
// error for the workflow. The parameter gone has the attachments that were
// detached before the failure. If the driver refused and everything is still
// attached, the journal is reset to what it held before the detach, and the
// error stays a refusal.
func (a *Activities) failedDetach(
	ctx context.Context, t *try, s step, found inventory.Found, handles []detachPlan, gone []journal.AttachmentKey, cause error,
) error {
	var change journal.Change
	untouched := ctx.Err() == nil && isRefusal(cause) && len(gone) == 0
	for _, one := range handles {
		if untouched {
			is, err := a.attached(ctx, t, found, one.handle, one.entry)
			untouched = err == nil && is
		}
	}

	if untouched {
		change.DropSteps = []journal.StepKey{s.key}
		for _, one := range handles {
			if before := detachedAttachment(s.at(journal.Started), one.entry.Key()); before != nil {
				change.Attachments = append(change.Attachments, *before)
			}
		}
	} else {
		change.DropAttachments = gone
	}

	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a failed detach stays in doubt in the journal", "error", err)
		untouched = false
	}

	a.Inventory.MarkChanged()
	if untouched {
		return cause
	}

	return uncertain(cause)
}

// forget drops from the journal the attachments of a device that is gone. Those of
// another card in its place stay.
func (a *Activities) forget(in workflows.DetachInput) error {
	entries := a.entriesOf(in)
	if len(entries) == 0 {
		return nil
	}

	defer a.Inventory.MarkChanged()
	return a.Journal.Write(journal.Change{DropAttachments: keysOf(entries)})
}

// undoAttach undoes the attach of the same operation, wherever it stopped. It
// also covers an attach that never began: marking its steps as undone keeps a
// late try of it from beginning. A handle without a journal entry was either
// never touched, or the journal has been lost since; so the hardware is asked.
func (a *Activities) undoAttach(ctx context.Context, t *try, in workflows.DetachInput) (workflows.ChangeResult, error) {
	var (
		result workflows.ChangeResult
		change journal.Change
		// mine are the attachments of this operation in the journal, and strange those
		// that it has made to another card than its target.
		mine, strange []journal.Attachment
		// unknown are the handles without a journal entry.
		unknown []cyborg.WorkHandle
	)

	for _, handle := range in.Handles {
		if !handle.OnHost() {
			continue
		}
		change.Steps = append(change.Steps, journal.Step{
			StepKey: journal.StepKey{Operation: in.Operation, Name: attachStep(handle.Identity)}, State: journal.Undone,
		})

		entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: in.Target.Backend, Handle: handle.Identity})
		switch {
		case !known:
			unknown = append(unknown, handle)
		case entry.Operation != in.Operation: // it is not this one's to undo
		case !entry.Of(in.Target.Fingerprint):
			strange = append(strange, entry)
		default:
			entry.State = journal.InDoubt
			change.Attachments = append(change.Attachments, entry)
			mine = append(mine, entry)
		}
	}

	if err := a.Journal.Write(change); err != nil {
		return result, err
	}
	if err := a.takeBackOther(ctx, t, in.Target, strange); err != nil {
		return result, err
	}
	if len(mine)+len(unknown) == 0 {
		return result, nil
	}

	a.Inventory.MarkChanged()
	found, err := a.find(ctx, in.Target, freshEnough)
	if err != nil {
		if a.gone(in.Target, err) {
			t.log.WarnContext(ctx, "what was to be attached is gone", "deployable", in.Target.Deployable)
			return result, a.forget(in)
		}
		return result, err
	}

	for _, entry := range mine {
		if handle, err := found.Handle(entry.Handle); err != nil || !entry.Of(found.Device.Fingerprint) {
			t.log.WarnContext(ctx, "a handle to take back is gone, or is of another card now", "handle", entry.Handle)
		} else if err := a.checkAttachedUnused(ctx, t, found, handle, entry); err != nil {
			return result, err
		} else if err := a.callDetach(ctx, t, found, handle, entry, true); err != nil {
			return result, err
		}
		// Each entry is dropped as soon as its handle is detached, so that a repeat
		// does not detach it again.
		if err := a.Journal.Write(journal.Change{DropAttachments: []journal.AttachmentKey{entry.Key()}}); err != nil {
			return result, err
		}
	}

	for _, wanted := range unknown {
		if handle, err := found.Handle(wanted.Identity); err == nil {
			if _, err := a.detachUnknown(ctx, t, found, handle, newEntry(found, handle, in.Operation, wanted)); err != nil {
				return result, uncertain(err)
			}
		}
	}

	a.Inventory.MarkChanged()
	result.Observation, err = a.Inventory.Observe(ctx, found.Backend, found.Device.Identity, nil)
	return result, err
}

// takeBackOther takes back what an attach has attached to another card than its
// target, if that one is still there, and drops each entry. Who uses it keeps it: it
// is no accelerator of the operation.
func (a *Activities) takeBackOther(ctx context.Context, t *try, target cyborg.Target, entries []journal.Attachment) error {
	for _, entry := range entries {
		target.Fingerprint = cyborg.Fingerprint(entry.Fingerprint)
		found, err := a.find(ctx, target, freshEnough)
		if err != nil && !a.gone(target, err) {
			return err
		}

		if err == nil {
			handle, missing := found.Handle(entry.Handle)
			if missing == nil {
				err = a.takeBack(ctx, t, found, handle, entry)
			}
			if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrInUse {
				return err
			}
		}

		if err != nil {
			t.log.WarnContext(ctx, "what was attached to another card is not taken back", "handle", entry.Handle, "reason", err)
		}
		if err := a.Journal.Write(journal.Change{DropAttachments: []journal.AttachmentKey{entry.Key()}}); err != nil {
			return err
		}
		a.Inventory.MarkChanged()
	}

	return nil
}

// detachUnknown detaches a handle that nobody should have and that the journal
// does not know, perhaps because the journal was lost: entry is what it would have. It
// asks the hardware first, and refuses with kind ErrInUse where somebody uses the
// handle. The first result says that it was attached.
func (a *Activities) detachUnknown(
	ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, entry journal.Attachment,
) (bool, error) {
	if is, err := a.attached(ctx, t, found, handle, entry); err != nil || !is {
		return false, err
	}
	if err := a.checkUnused(ctx, t, found, handle); err != nil {
		return false, err
	}

	t.log.WarnContext(ctx, "a handle is attached that the journal does not know; it is taken back", "handle", handle.Identity)
	return true, a.callDetach(ctx, t, found, handle, entry, false)
}
