package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// layoutNote is what the journal keeps of a partition step: how the device was before it.
type layoutNote struct {
	// Layout is how the device was divided, by its hardware.
	Layout cyborg.Layout `json:"layout"`
	// Wanted is what a boot had to bring back; nil for nothing.
	Wanted map[string]int `json:"wanted"`
	// Lost says that the journal was emptied, and the device not what the records had: an
	// earlier try may have made it so, and nobody knows how it was before that.
	Lost bool `json:"lost,omitempty"`
}

// partition divides a device, or makes it whole again. The journal gets what it was like
// before, because the undo needs that, and what a boot has to bring back once the device is
// divided.
func (a *Activities) partition(ctx context.Context, t *try, in workflows.PartitionInput) (workflows.PartitionResult, error) {
	var result workflows.PartitionResult
	unlock, err := a.lockDevice(ctx, in.Addressee, in.Device, workflows.PartitionActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, workflows.PartitionActivity, &result)
	if done || err != nil {
		return result, err
	}

	plan, err := a.planPartition(ctx, t, in)
	if err != nil {
		if s.begun {
			err = uncertain(err)
		}
		return result, err
	}
	if err := a.raiseShown(in.Addressee, plan.found.Backend, plan.found.Device); err != nil {
		return result, err
	}

	if err := a.beginPartition(&s, &plan, in.Device); err != nil {
		return result, err
	}

	if err := a.callPartition(ctx, t, &plan); err != nil {
		if ctx.Err() != nil {
			return result, err
		}
		if isRefusal(err) {
			err = a.refusedPartition(ctx, t, s, plan, err)
		}
		a.showFailed(ctx, t, plan.found)
		return result, err
	}

	if err := a.installAgain(ctx, t, in.Device); err != nil {
		return result, uncertain(err)
	}
	return finish(ctx, a, s, plan.found, func(seen cyborg.Observation) (workflows.PartitionResult, journal.Change, error) {
		change := plan.divided(plan.layout, seen, a.Journal.BootID())
		if err := checkDivided(plan, seen); err != nil {
			return result, change, err
		}
		// Late steps on the new parts, from when the device had them before, are refused.
		return workflows.PartitionResult{Observation: seen}, change, a.raiseShown(in.Addressee, plan.found.Backend, seen.Device)
	})
}

// partitionPlan is how a device is about to be divided, and what it was like before.
type partitionPlan struct {
	found       inventory.Found
	partitioner drivers.Partitioner
	layout      cyborg.Layout
	// entry is what is written to the journal before the hardware is touched.
	entry journal.Layout
	// before is the journal's entry that entry replaces; nil where there is none.
	before *journal.Layout
	// prior is the driver's last note of this card in the present boot.
	prior json.RawMessage
	// images are the journal's images of what the device shows, and cleanings the cleans that
	// it has of handles which the device does not show. Both are forgotten with the driver's
	// first note, before anything is changed.
	images    []journal.RegionKey
	cleanings []journal.AttachmentKey
	// noted says that the driver has stored a note, so that it may have changed something, and
	// changed that it had done so before for the same operation.
	noted, changed bool
}

// planPartition finds the device to divide, and refuses one of which somebody has something
// or that cannot be divided like that. It changes nothing.
func (a *Activities) planPartition(ctx context.Context, t *try, in workflows.PartitionInput) (partitionPlan, error) {
	// Look at the hardware first: the journal keeps how it is divided now, for the undo.
	found, err := a.findDevice(ctx, in.Device, lookFirst)
	if err != nil {
		return partitionPlan{}, err
	}
	if _, err := partitionerOf(found); err != nil {
		return partitionPlan{}, err
	}
	if err := a.checkDeviceFree(ctx, t, found, a.Journal.Lost); err != nil {
		return partitionPlan{}, err
	}
	unseen, err := a.unseenCleanings(found)
	if err != nil {
		return partitionPlan{}, err
	}

	plan, err := a.planLayout(ctx, t, found, in.Operation, in.Layout)
	plan.cleanings = unseen
	return plan, err
}

// planLayout plans to divide a device for an operation. The error says why it cannot be
// divided like that.
func (a *Activities) planLayout(
	ctx context.Context, t *try, found inventory.Found, operation uuid.UUID, layout cyborg.Layout,
) (partitionPlan, error) {
	partitioner, err := partitionerOf(found)
	if err != nil {
		return partitionPlan{}, err
	}
	if err := found.Device.Partitioning.Check(layout); err != nil {
		return partitionPlan{}, err
	}
	err = t.guarded("asking for a layout", func() error { return partitioner.CheckLayout(ctx, found.Device, layout) })
	if err != nil {
		return partitionPlan{}, a.showOther(ctx, t, found, err)
	}

	plan := partitionPlan{found: found, partitioner: partitioner, layout: layout.Normal(), entry: journal.Layout{
		DeviceKey: journal.DeviceKey{Backend: found.Backend, Device: found.Device.Identity}, Fingerprint: journal.Fingerprint(found.Device.Fingerprint),
		Operation: operation,
	}}
	if before, known := a.Journal.Layout(plan.entry.DeviceKey); known {
		plan.before = &before
		// That of another card says nothing of this one.
		if before.Of(found.Device.Fingerprint) {
			plan.entry.Wanted, plan.entry.BootID, plan.entry.Changed = before.Wanted, before.BootID, before.Changed
			if plan.changed = before.ChangedBy(operation); plan.changed {
				plan.entry.Changed = operation
			}
			if before.NoteBootID == a.Journal.BootID() {
				plan.prior, plan.entry.Note, plan.entry.NoteBootID = before.Note, before.Note, before.NoteBootID
			}
		}
	}

	for _, one := range found.Device.Deployables {
		if loaded, known := a.Journal.Loaded(regionOf(found.Backend, found.Device, one)); known {
			plan.images = append(plan.images, loaded.RegionKey)
		}
	}
	return plan, nil
}

// partitionerOf returns the driver that divides the device. The error is of kind
// ErrUnsupported where it cannot.
func partitionerOf(found inventory.Found) (drivers.Partitioner, error) {
	partitioner, ok := found.Driver.(drivers.Partitioner)
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "the driver of backend %s cannot divide devices", found.Backend)
	}
	return partitioner, nil
}

// checkDeviceFree refuses a device of which somebody has something, or on which the host
// lives. The journal's attachments that are over no longer count.
func (a *Activities) checkDeviceFree(
	ctx context.Context, t *try, found inventory.Found, over func(journal.Attachment) bool,
) error {
	for _, one := range found.Device.Deployables {
		if one.Protected != "" {
			return cyborg.Errorf(cyborg.ErrProtected, "%s is not touched, because the host lives on it: %s", one.Name, one.Protected)
		}
	}

	handles := shownHandles(found.Device)
	for _, entry := range a.Journal.Attachments() {
		mine := entry.Backend == found.Backend && (entry.Device == found.Device.Identity || handles[entry.Handle])
		if mine && !over(entry) && entry.Of(found.Device.Fingerprint) {
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s of device %s is attached since operation %s", entry.Handle, found.Device.Identity, entry.Operation).
				WithHint("Detach it first.")
		}
	}

	for _, one := range found.Device.Deployables {
		part := found
		part.Deployable = one
		for _, handle := range one.Handles {
			who, err := a.inUse(ctx, t, part, handle)
			if err != nil {
				return err
			}
			if who != "" {
				return cyborg.Errorf(cyborg.ErrInUse, "handle %s of device %s is in use by %s", handle.Identity, found.Device.Identity, who).
					WithHint("Stop its user first.")
			}
		}
	}
	return nil
}

// shownHandles are the handles that the device shows, and what goes with them.
func shownHandles(device cyborg.DeviceReport) map[string]bool {
	handles := map[string]bool{}
	for _, one := range device.Deployables {
		for _, handle := range one.Handles {
			handles[handle.Identity] = true
			for _, with := range handle.With {
				handles[with.String()] = true
			}
		}
	}
	return handles
}

// unseenCleanings are the cleans that the journal has of handles which the device no longer
// shows. The records have called all of them clean when they let the device be divided, and
// its driver must not go on there with what is made of it now. A handle that it shows, and
// whose clean has begun and not ended, is refused: it would take what is left on it to other
// parts.
func (a *Activities) unseenCleanings(found inventory.Found) (unseen []journal.AttachmentKey, err error) {
	handles := shownHandles(found.Device)
	for _, entry := range a.Journal.Cleanings() {
		switch {
		case entry.Backend != found.Backend || !entry.Of(found.Device.Fingerprint):
		case handles[entry.Handle]:
			return nil, cyborg.Errorf(cyborg.ErrChanged, "handle %s was not cleaned to its end since operation %s", entry.Handle, entry.Operation).
				WithHint("Clean its accelerator again, with --method %s.", entry.Method)
		case entry.Device == found.Device.Identity:
			unseen = append(unseen, entry.Key())
		}
	}
	return unseen, nil
}

// beginPartition writes into the journal how the device is divided before it is changed. A
// later try keeps what the first one wrote.
func (a *Activities) beginPartition(s *step, plan *partitionPlan, target cyborg.DeviceTarget) error {
	if !s.begun {
		note := layoutNote{
			Layout: plan.found.Device.Partitioning.Layout, Wanted: plan.entry.Wanted,
			Lost: a.mayHaveLostLayout(target) && !showsRecorded(plan.found.Device, target),
		}
		text, err := json.Marshal(note)
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "the note of a partition step cannot be kept: %w", err)
		}
		s.prior.Note = text
	}

	return a.writeLayouts(journal.Change{Steps: []journal.Step{s.at(journal.Started)}, Layouts: []journal.Layout{plan.entry}})
}

// callPartition calls the driver, and writes each note of the driver into the plan's entry
// and the journal at once. From its first note on it may change something: what the device
// had loaded is not known any more then. What was not cleaned to its end is forgotten there,
// too, and not at the end: a later try may find these handles again.
func (a *Activities) callPartition(ctx context.Context, t *try, plan *partitionPlan) error {
	err := t.guarded("partition of "+plan.found.Device.Identity, func() error {
		return plan.partitioner.Partition(ctx, drivers.PartitionRequest{
			Device: plan.found.Device, Layout: plan.layout, Prior: plan.prior, Progress: t.heartbeat.setProgress,
			Note: func(note json.RawMessage) error {
				plan.noted = true
				plan.entry.Note, plan.entry.NoteBootID, plan.entry.Changed = bytes.Clone(note), a.Journal.BootID(), plan.entry.Operation
				return a.writeLayouts(journal.Change{Layouts: []journal.Layout{plan.entry}, DropLoaded: plan.images, DropCleanings: plan.cleanings})
			},
		})
	})
	return a.showOther(ctx, t, plan.found, err)
}

// installAgain installs what was in service before the device was divided, as far as the
// device has it now: it was made anew, by this operation or by one that has failed. The
// caller has made sure that nobody uses it.
func (a *Activities) installAgain(ctx context.Context, t *try, target cyborg.DeviceTarget) error {
	if len(target.Installed) == 0 {
		return nil
	}
	found, err := a.findDevice(ctx, target, lookFirst)
	if err != nil {
		return err
	}
	installer, ok := found.Driver.(drivers.Installer)
	if !ok {
		return nil
	}

	for _, one := range found.Device.Deployables {
		if !slices.Contains(target.Installed, one.Name) {
			continue
		}
		err := t.guarded("install", func() error {
			return installer.Install(ctx, drivers.Target{Device: found.Device, Deployable: one})
		})
		if err != nil {
			return a.showOther(ctx, t, found, err)
		}
	}
	return nil
}

// showFailed looks at a device that could not be divided, so that the next report shows what
// has become of it.
func (a *Activities) showFailed(ctx context.Context, t *try, found inventory.Found) {
	if err := a.Inventory.LookAt(ctx, found.Backend, found.Device.Identity); err != nil {
		t.log.WarnContext(ctx, "a device that could not be divided cannot be looked at", "device", found.Device.Identity, "error", err)
	}
}

// refusedPartition returns the error of a partition that the driver refused. Where neither
// this try nor an earlier one can have changed anything, the journal goes back to what it
// held before.
func (a *Activities) refusedPartition(ctx context.Context, t *try, s step, plan partitionPlan, cause error) error {
	if s.begun || plan.noted {
		return uncertain(cause)
	}

	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropLayouts: []journal.DeviceKey{plan.entry.DeviceKey}}
	if plan.before != nil {
		change.Layouts = []journal.Layout{*plan.before}
	}
	if err := a.writeLayouts(change); err != nil {
		t.log.WarnContext(ctx, "a refused partition stays in the journal", "error", err)
		return uncertain(cause)
	}
	return cause
}

// divided is the journal's change for a device that was divided in this boot, with what a
// later one has to bring back.
func (p *partitionPlan) divided(wanted map[string]int, seen cyborg.Observation, bootID string) journal.Change {
	entry := p.entry
	entry.Wanted, entry.BootID = wanted, bootID
	entry.Fingerprint = journal.Fingerprint(cyborg.Fingerprint(entry.Fingerprint).Learn(seen.Device.Fingerprint))
	return journal.Change{Layouts: []journal.Layout{entry}}
}

// checkDivided makes sure that the device shows what its driver was asked for.
func checkDivided(plan partitionPlan, seen cyborg.Observation) error {
	if err := sameCard(plan.found, seen); err != nil {
		return err
	}

	shown := "nothing of that"
	if p := seen.Device.Partitioning; p != nil {
		if p.Layout.Equal(plan.layout) {
			return nil
		}
		shown = p.Layout.String()
	}
	return cyborg.Errorf(cyborg.ErrHardware, "device %s was divided (%s), and shows %s", seen.Device.Identity, plan.layout, shown)
}

// writeLayouts writes a change of the journal that may have layouts.
func (a *Activities) writeLayouts(change journal.Change) error {
	return a.Inventory.KeepLayouts(func() error { return a.Journal.Write(change) })
}
