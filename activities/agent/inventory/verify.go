package inventory

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// verify asks the driver of each attachment among these devices whether it still is one. What is no longer attached,
// because the device was pulled and put back or somebody took it by hand, is in doubt from then on; the conductor sees that
// and has it brought into the state that the records decided.
func (i *Inventory) verify(ctx context.Context, in *instance, devices []cyborg.DeviceReport) {
	attacher, ok := in.driver.(drivers.Attacher)
	if !ok {
		return
	}
	for _, entry := range i.journal.Attachments() {
		if entry.Backend != in.backend || !i.stands(entry) {
			continue
		}
		if target, handle, shown := findHandle(devices, entry.Handle); shown {
			i.verifyOne(ctx, in, attacher, entry, target, handle)
		}
	}
}

// stands says that, by the journal, the hardware is in the state that an attach leaves.
func (i *Inventory) stands(entry journal.Attachment) bool {
	return entry.State == journal.Attached && !entry.HandedOut && !i.journal.Lost(entry)
}

func (i *Inventory) verifyOne(
	ctx context.Context, in *instance, attacher drivers.Attacher, entry journal.Attachment, target drivers.Target, handle cyborg.HandleReport,
) {
	unlock, free := i.locks.tryLock(target.Device.Identity, "a look at what is attached")
	if !free {
		return // what works on it knows better
	}
	defer unlock()
	now, known := i.journal.Attachment(entry.Key())
	if !known || now.Operation != entry.Operation || !i.stands(now) {
		return
	}
	const question = "question whether it is attached"
	attached, err := leashed(ctx, &in.asking, i.config.ScanTimeout, question, func(ctx context.Context) (is bool, err error) {
		err = Guard(in.log, question, func() error {
			is, err = attacher.Attached(ctx, target, handle)
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
		in.log.ErrorContext(ctx, "that cannot be written down", "handle", entry.Handle, "error", err)
		return
	}
	notify(i.changed)
}

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
