package agent

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// checkUse makes sure that nobody uses the handles that an operation gives to
// instances or services, and that their devices are there and may be handed out.
//
// It changes nothing, so it needs no grant. It does not raise the assignment
// numbers either: binds that share an accelerator may arrive in any order, and
// without a grant nobody may raise a number.
//
// The new holder is no user yet, also for a repeated try: it learns of its handle
// when the operation has ended.
func (a *Activities) checkUse(ctx context.Context, t *try, in workflows.CheckUseInput) (struct{}, error) {
	for _, given := range in.Given {
		if err := a.checkGiven(ctx, t, in, given); err != nil {
			return struct{}{}, err
		}
	}

	return struct{}{}, nil
}

// checkGiven is checkUse for the handles of one deployable. Under the device's
// lock no step of an earlier operation is still at work on them.
func (a *Activities) checkGiven(ctx context.Context, t *try, in workflows.CheckUseInput, given cyborg.GivenHandles) error {
	target := given.Target
	unlock, err := a.Inventory.Lock(ctx, target.Device, attemptOf(workflows.CheckUseActivity, in.Operation))
	if err != nil {
		return err
	}
	defer unlock()

	// The inventory may be minutes old, and the host may have begun to use the
	// device since, such as by mounting a disk.
	if err := a.Inventory.LookAt(ctx, target.Backend, target.Device); err != nil {
		return err
	}
	found, err := a.findToChange(ctx, target, sinceLook)
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
		entry, attached := a.Journal.Attachment(journal.AttachmentKey{Backend: target.Backend, Handle: handle.Identity})

		switch {
		case who != "" && attached:
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s, since operation %s", handle.Identity, who, entry.Operation).
				WithHint("Stop its user, then try again.")
		case who != "":
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s is in use by %s", handle.Identity, who).
				WithHint("Stop its user, then try again.")
		case attached:
			// The records do not know of it. Reconcile decides by them, once the handle
			// is free again.
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s is still attached to %s %s by operation %s, says the journal of host %s",
				handle.Identity, entry.HolderKind, entry.HolderID, entry.Operation, a.Inventory.Host()).
				WithHint("Reconcile takes it back; then try again.")
		}
	}

	return nil
}
