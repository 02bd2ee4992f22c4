package agent

import (
	"context"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// checkUse makes sure that nobody uses the handles that an operation gives to
// instances or services, and that their devices are there and may be handed out.
//
// It changes nothing on the hardware, so it needs no grant. All that the journal may lose
// is where the clean of a handle was interrupted that is declared clean: who has that said
// falsely gets no handle by it, because the records know what is clean. It does not raise the assignment
// numbers either: binds that share an accelerator may arrive in any order, and
// without a grant nobody may raise a number. Nor does it wait for the lock of a
// device, which another region's image may have for minutes: the operation's claim
// keeps others from these handles, and the journal has what a late step is still
// doing to them.
//
// The new holder is no user yet, also for a repeated try: it learns of its handle
// when the operation has ended.
func (a *Activities) checkUse(ctx context.Context, t *try, in workflows.CheckUseInput) (struct{}, error) {
	type place struct{ backend, device string }
	looked := map[place]bool{}

	for _, given := range in.Given {
		// The inventory may be minutes old, and the host may have begun to use the
		// device since, such as by mounting a disk.
		if at := (place{given.Target.Backend, given.Target.Device}); !looked[at] {
			if err := a.Inventory.LookAt(ctx, at.backend, at.device); err != nil {
				return struct{}{}, err
			}
			looked[at] = true
		}

		if err := a.checkGiven(ctx, t, given); err != nil {
			return struct{}{}, err
		}
	}

	return struct{}{}, nil
}

// checkGiven is checkUse for the handles of one deployable, at whose device the
// agent has just looked.
func (a *Activities) checkGiven(ctx context.Context, t *try, given cyborg.GivenHandles) error {
	found, err := a.findToChange(ctx, given.Target, sinceLook)
	if err == nil {
		err = available(found)
	}
	if err != nil {
		return err
	}

	for _, wanted := range given.Handles {
		handle, err := found.Handle(wanted.Identity)
		if err != nil {
			return err
		}

		who, err := a.inUse(ctx, t, found, handle)
		if err != nil {
			return err
		}
		if who != "" {
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s", handle.Identity, who).
				WithHint("Stop its user, then try again.")
		}

		if err := a.checkPrepared(ctx, t, found, handle, wanted); err != nil {
			return err
		}

		// The records do not know of an attachment in the journal. Reconcile decides by
		// them. What a boot has undone is attached to nobody.
		entry, known := a.Journal.Attachment(journal.AttachmentKey{Backend: given.Target.Backend, Handle: handle.Identity})
		if known && !a.Journal.Lost(entry) && entry.Of(found.Device.Fingerprint) {
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s is still attached to %s %s by operation %s, says the journal of host %s",
				handle.Identity, entry.HolderKind, entry.HolderID, entry.Operation, a.Inventory.Host()).
				WithHint("Reconcile takes it back; then try again.")
		}

		if err := a.checkCleanUnlocked(ctx, t, found, handle, wanted); err != nil {
			return err
		}
	}

	return nil
}

// checkPrepared refuses to give a handle out as it is, with kind ErrChanged, that must be
// prepared: the records do not know that, and nobody is about to do it. The hardware
// decides, because somebody may have prepared all such handles of a host by hand.
func (a *Activities) checkPrepared(ctx context.Context, t *try, found inventory.Found, handle cyborg.HandleReport, wanted cyborg.WorkHandle) error {
	if wanted.OnHost() || found.Deployable.Preparation == nil {
		return nil
	}

	is, err := a.attached(ctx, t, found, handle, newEntry(found, handle, uuid.Nil, wanted))
	if err != nil || is {
		return err
	}
	return cyborg.Errorf(cyborg.ErrChanged, "this host prepares %s for whoever gets it, which the server does not know yet", handle.Identity).
		WithHint("Try again when the host has reported. If the server is of an earlier release, upgrade it.")
}
