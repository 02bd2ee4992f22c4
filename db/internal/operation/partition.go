package operation

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// partition divides a device into parts, or makes it whole again. From its admission until
// its end it has the device (devices.partition_operation) and claims all that the device
// has, missing ones included; what appears there meanwhile is claimed by a trigger, in the
// transaction that records it (migration 34). So nobody gets a part before all of them are
// there, and what the new layout lacks is deleted while nobody can have it.
type partition struct {
	request     cyborg.PartitionRequest
	silentAfter time.Duration
}

func newPartition(r cyborg.PartitionRequest, o records.Options) operationHandler {
	r.Layout = r.Layout.Normal()
	return partition{r, o.SilentAfter}
}

// choose locks the device. Where it is divided like that already, and should be, there is
// nothing to do, whoever has its parts.
func (p partition) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	device, targets, err := inventory.LockDevice(ctx, tx, p.request.Device)
	if err != nil {
		return choice{}, err
	}

	out := choice{host: device.Host, device: device.UUID, targets: targets}
	if err := p.divisible(&device, uuid.Nil); err != nil {
		return choice{}, err
	}
	if p.done(&device, targets) {
		out.nothing = true
		return out, nil
	}
	return out, p.guard(targets, uuid.Nil)
}

// divisible refuses a device that cannot be divided like that now, whatever is on it.
func (p partition) divisible(device *inventory.LockedDevice, operation uuid.UUID) error {
	if err := inventory.FirstError(device.Unclaimed(operation), device.Present(), device.Enrolled()); err != nil {
		return err
	}
	return device.Partitioning.Check(p.request.Layout)
}

// done says that the device is divided like that, and that this is what is wanted of it.
func (p partition) done(device *inventory.LockedDevice, targets []inventory.Accelerator) bool {
	return device.Partitioning.Layout.Equal(p.request.Layout) && device.WantedLayout != nil && device.WantedLayout.Equal(p.request.Layout) &&
		!device.LayoutInDoubt && !slices.ContainsFunc(targets, layoutInDoubt)
}

// layoutInDoubt says that the accelerator is in error because nobody knew how its device
// is divided.
func layoutInDoubt(a inventory.Accelerator) bool {
	return a.Lifecycle == cyborg.LifecycleError && a.ErrorKind.Doubt() == cyborg.DoubtLayout
}

// admit gives the device to the operation.
func (partition) admit(_ context.Context, tx pgx.Tx, chosen choice) error {
	records.Queue(tx, "UPDATE devices SET partition_operation = $2 WHERE uuid = $1 AND partition_operation IS NULL", chosen.device, chosen.operation).
		Exec(records.MustAffect(records.ErrCollision))
	return nil
}

// guard refuses to divide a device of which somebody has something, or may have, or has
// left something.
func (partition) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		if err := targets[i].Unclaimed(operation); err != nil {
			return err
		}
	}

	for i := range targets {
		t := &targets[i]
		if err := inventory.FirstError(t.Unprotected(), t.Unheld(), t.Confirmed(), t.AllClean(), t.NotExcludedBut(targets), t.NobodyBeside()); err != nil {
			return err
		}
	}
	return nil
}

// begin looks at the device once more, with all that has appeared on it since the admission.
func (p partition) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	device, targets, err := inventory.LockDevice(ctx, tx, p.request.Device)
	if err != nil {
		return err
	}
	o.targets = targets
	if err := inventory.FirstError(p.divisible(&device, o.id), device.Heard(p.silentAfter), p.guard(targets, o.id)); err != nil {
		return err
	}

	names := make([]string, len(targets))
	for i := range targets {
		names[i] = targets[i].LocalName
	}
	slices.Sort(names)

	// What was never in service stays so, also where a partition has left it in error. Nobody
	// knows of what could not be installed or uninstalled, and the same cures it as before.
	rows, err := tx.Query(ctx, `
		SELECT local_name FROM deployables WHERE uuid = ANY($1) AND lifecycle <> $2 AND NOT untouched AND error_kind <> ALL($3)
		ORDER BY local_name COLLATE "C"`, inventory.UUIDs(targets), string(cyborg.LifecycleInactive),
		[]string{string(cyborg.OperationProvision), string(cyborg.OperationRetire)})
	if err != nil {
		return err
	}
	installed, err := pgx.AppendRows([]string(nil), rows, pgx.RowTo[string]) // nil for none, as it is read again
	if err != nil {
		return err
	}

	o.before.Partition = &cyborg.PartitionWork{
		Device: cyborg.DeviceTarget{
			UUID: device.UUID, Backend: device.Backend, Identity: device.Identity, Fingerprint: device.Fingerprint,
			Layout: device.Partitioning.Layout.Normal(), Deployables: names, Installed: installed,
		},
		Layout: p.request.Layout,
	}
	return nil
}

// describe adds what begin has found.
func (partition) describe(o *running, work *cyborg.Work) { work.Partition = o.before.Partition }

// end records how the device should be divided from now on, and lets go of it. What its
// host does not show any more, because it is divided anew, is deleted.
func (p partition) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) (err error) {
	// More may have appeared since the operation was read, also by its own observation.
	o.targets, err = inventory.LockAccelerators(ctx, tx, "d.uuid IN (SELECT deployable_uuid FROM claims WHERE operation_id = $1)", o.id)
	if err != nil {
		return err
	}

	switch outcome.State {
	case cyborg.OperationSucceeded:
		records.Queue(tx, `
			UPDATE devices SET wanted_layout = $3, layout_doubt_operation = NULL WHERE uuid = $1 AND partition_operation = $2`,
			p.request.Device, o.id, p.request.Layout)
		queueLayoutKnown(tx, o)
	case cyborg.OperationNeedsOperator:
		if err := p.markInError(ctx, tx, o, outcome); err != nil {
			return err
		}
	default: // what the operation had found is there again
	}

	gone := p.gone(o, outcome.State)
	records.Queue(tx, "UPDATE devices SET partition_operation = NULL WHERE partition_operation = $1", o.id)
	records.Queue(tx, "DELETE FROM claims WHERE operation_id = $1", o.id) // what is deleted below must not be claimed
	p.queueDelete(tx, o, gone, outcome.State)
	return nil
}

// queueLayoutKnown takes the targets out of an error that was about how the device is
// divided: into service, or back to where those are that never were in service. See
// records.Queue.
func queueLayoutKnown(tx pgx.Tx, o *running) {
	var known []uuid.UUID
	for i := range o.targets {
		if layoutInDoubt(o.targets[i]) {
			known = append(known, o.targets[i].UUID)
		}
	}
	records.Queue(tx, `
		UPDATE deployables SET lifecycle = CASE WHEN untouched THEN $2 ELSE $3 END, reason = '', error_operation = NULL, error_kind = '',
		    uninstall_pending_since = CASE WHEN untouched THEN uninstall_pending_since END
		WHERE uuid = ANY($1)`, known, string(cyborg.LifecycleInactive), string(cyborg.LifecycleReady))
}

// markInError leaves all of the device in error, also what was never in service: that would
// else be taken into service by itself, and nobody knows how the device is divided. The mark
// on the device does the same for what appears later, also where the device has nothing now.
func (p partition) markInError(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	records.Queue(tx, "UPDATE devices SET layout_doubt_operation = $2 WHERE uuid = $1", p.request.Device, o.id)
	records.Queue(tx, `
		UPDATE deployables SET lifecycle = $2, reason = $3, error_operation = $4, error_kind = $5
		WHERE uuid = ANY($1) AND untouched AND lifecycle = $6`, inventory.UUIDs(o.targets), string(cyborg.LifecycleError), errorReason(o, outcome),
		o.id, string(o.kind), string(cyborg.LifecycleInactive))
	return markInError(ctx, tx, o, outcome)
}

// gone lists the targets that are missing because the device is divided anew: after a success
// all that its host does not show, and after an undo what has appeared since begin. What
// somebody has all the same, or has left something on, stays.
func (p partition) gone(o *running, state cyborg.OperationState) []uuid.UUID {
	var out []uuid.UUID
	for i := range o.targets {
		t := &o.targets[i]
		switch {
		case t.Presence == cyborg.PresencePresent || t.DeviceUUID != p.request.Device || o.before.Partition == nil:
		case state == cyborg.OperationNeedsOperator:
		case state != cyborg.OperationSucceeded && slices.Contains(o.before.Partition.Device.Deployables, t.LocalName):
		case inventory.FirstError(t.Unheld(), t.Confirmed(), t.AllClean()) == nil:
			out = append(out, t.UUID)
		}
	}
	return out
}

// queueDelete deletes what is gone, and after a success also the free handles that are
// missing of the rest. Nothing is deleted of a device that is missing itself: then nobody
// knows how it is divided. Nothing is remembered of what was installed of the parts: that is
// gone with them. See records.Queue.
func (p partition) queueDelete(tx pgx.Tx, o *running, gone []uuid.UUID, state cyborg.OperationState) {
	const shown = " AND EXISTS (SELECT FROM devices WHERE uuid = $2 AND presence = 'present')"
	if state == cyborg.OperationSucceeded {
		records.Queue(tx, `
			DELETE FROM attach_handles WHERE deployable_uuid = ANY($1) AND presence = 'missing' AND holder_kind IS NULL AND unconfirmed_kind IS NULL
			  AND unclean = ''`+shown, inventory.UUIDs(o.targets), p.request.Device)
	}
	records.Queue(tx, "DELETE FROM attach_handles WHERE deployable_uuid = ANY($1)"+shown, gone, p.request.Device)
	records.Queue(tx, "DELETE FROM deployables WHERE uuid = ANY($1)"+shown, gone, p.request.Device)
}
