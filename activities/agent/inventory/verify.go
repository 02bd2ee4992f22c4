package inventory

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// verify asks the driver, for each attachment of these devices, whether the
// handle is still attached. An attachment that is gone, because the card was
// pulled and put back or somebody unbound it by hand, becomes in doubt in the
// journal. The conductor sees that in the next report and has the attachment
// brought into the state that the records decided.
func (i *Inventory) verify(ctx context.Context, in *instance, devices []cyborg.DeviceReport) {
	attacher, ok := in.driver.(drivers.Attacher)
	if !ok {
		return
	}

	for _, entry := range i.journal.Attachments() {
		if entry.Backend != in.backend || !i.standsAttached(entry) {
			continue
		}

		if target, handle, shown := findHandle(devices, entry.Handle); shown {
			i.verifyOne(ctx, in, attacher, entry, target, handle)
		}
	}
}

// standsAttached reports whether, by the journal, the hardware is in the state
// that an attach leaves.
func (i *Inventory) standsAttached(entry journal.Attachment) bool {
	return entry.State == journal.Attached && !entry.HandedOut && !i.journal.Lost(entry)
}

// verifyOne verifies one attachment. It holds the device's lock meanwhile, so
// that it cannot mistake a detach that is under way for a lost attachment.
func (i *Inventory) verifyOne(
	ctx context.Context, in *instance, attacher drivers.Attacher, entry journal.Attachment, target drivers.Target, handle cyborg.HandleReport,
) {
	unlock, free := i.locks.tryLock(target.Device.Identity, "a look at what is attached")
	if !free {
		return // an operation works on the device and keeps the journal right
	}
	defer unlock()

	// The operation that held the lock before may have changed the entry.
	now, known := i.journal.Attachment(entry.Key())
	if !known || now.Operation != entry.Operation || !i.standsAttached(now) {
		return
	}

	const question = "question whether it is attached"
	attached, err := withWatchdog(ctx, &in.asking, i.config.ScanTimeout, question, func(ctx context.Context) (is bool, err error) {
		err = in.ask(ctx, question, func(ctx context.Context) error {
			is, err = attacher.Attached(ctx, drivers.AttachedRequest{
				Target: target, Handle: handle, Holder: cyborg.HolderKind(entry.HolderKind), HandleUUID: entry.HandleUUID,
			})
			return err
		})
		return is, err
	})
	if err != nil {
		in.log.WarnContext(ctx, "nobody can tell whether a handle is still attached", "handle", entry.Handle, "error", err)
		return
	}
	if attached {
		return
	}

	in.log.WarnContext(ctx, "a handle is no longer attached, and no operation detached it", "handle", entry.Handle,
		"holder", entry.HolderKind+":"+entry.HolderID, "operation", entry.Operation.String())
	now.State = journal.InDoubt
	if err := i.journal.Write(journal.Change{Attachments: []journal.Attachment{now}}); err != nil {
		in.log.ErrorContext(ctx, "the journal cannot keep that a handle is no longer attached", "handle", entry.Handle, "error", err)
		return
	}

	notify(i.changed)
}

// findHandle returns the handle of that identity, with its device and
// deployable.
func findHandle(devices []cyborg.DeviceReport, identity string) (drivers.Target, cyborg.HandleReport, bool) {
	for _, device := range devices {
		for _, deployable := range device.Deployables {
			for _, handle := range deployable.Handles {
				if handle.Identity == identity {
					return drivers.Target{Device: device, Deployable: deployable}, handle, true
				}
			}
		}
	}

	return drivers.Target{}, cyborg.HandleReport{}, false
}
