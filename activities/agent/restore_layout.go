package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// restoreLayout divides a device as it was before the operation's partition step, wherever
// that step stopped. It also covers a step that never began: marking it as undone keeps a
// late try of it from beginning.
func (a *Activities) restoreLayout(ctx context.Context, t *try, in workflows.RestoreLayoutInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.lockDevice(ctx, in.Addressee, in.Device, workflows.RestoreLayoutActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, workflows.RestoreLayoutActivity, &result)
	if done || err != nil {
		return result, err
	}

	divide := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.PartitionActivity}}
	divide.prior, _ = a.Journal.Step(divide.key)
	var note layoutNote
	if divide.prior.Note != nil {
		if err := json.Unmarshal(divide.prior.Note, &note); err != nil {
			return result, cyborg.Errorf(cyborg.ErrInternal, "the journal's note of a partition step cannot be read: %w", err)
		}
	}

	if err := a.Journal.Write(journal.Change{Steps: []journal.Step{s.at(journal.Started), divide.at(journal.Undone)}}); err != nil {
		return result, err
	}

	lost := note.Lost || divide.prior.Note == nil && a.mayHaveLostLayout(in.Device)
	if lost {
		note.Layout = in.Device.Layout // the records know, if anybody does
	}
	if divide.prior.Note == nil && !lost || note.Layout == nil {
		return a.neverDivided(ctx, t, s, in, lost)
	}

	found, err := a.findDevice(ctx, in.Device, lookFirst)
	if err != nil {
		return result, err
	}
	if err := a.raiseShown(in.Addressee, found.Backend, found.Device); err != nil {
		return result, err
	}

	right := found.Device.Partitioning.Is(note.Layout)
	if lost && right && showsRecorded(found.Device, in.Device) {
		return finish(ctx, a, s, found, recording(journal.Change{}))
	}

	plan, err := a.planLayout(ctx, t, found, in.Operation, note.Layout)
	if err != nil {
		return result, err
	}
	// Where the device is divided like that, and the operation has changed nothing, there is
	// nothing to do, whoever uses it.
	if lost || plan.changed || !right {
		if err := a.divideAsBefore(ctx, t, &plan, in.Device, right); err != nil {
			return result, err
		}
	}

	return finish(ctx, a, s, plan.found, func(seen cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		change := plan.divided(note.Wanted, seen, a.Journal.BootID())
		if err := checkDivided(plan, seen); err != nil {
			return result, change, err
		}
		return workflows.ChangeResult{Observation: seen}, change, a.raiseShown(in.Addressee, plan.found.Backend, seen.Device)
	})
}

// divideAsBefore divides a device as it was before an operation, and installs again what was
// in service. Where it is divided right, its driver has nothing to change, whoever uses it,
// but nothing is installed under its user.
func (a *Activities) divideAsBefore(ctx context.Context, t *try, plan *partitionPlan, target cyborg.DeviceTarget, right bool) error {
	if !right || len(target.Installed) > 0 {
		if err := a.checkDeviceFree(ctx, t, plan.found, a.Journal.Lost); err != nil {
			return err
		}
	}

	if err := a.callPartition(ctx, t, plan); err != nil {
		if ctx.Err() == nil {
			a.showFailed(ctx, t, plan.found)
		}
		return err
	}
	return a.installAgain(ctx, t, target)
}

// neverDivided ends the undo of a partition of which the journal knows nothing: it has not
// begun, and there is nothing to do. Where that may have been lost, and the records do not say
// how the device was divided, it must show what they had when the operation began.
func (a *Activities) neverDivided(
	ctx context.Context, t *try, s step, in workflows.RestoreLayoutInput, mayBeLost bool,
) (workflows.ChangeResult, error) {
	found, err := a.findDevice(ctx, in.Device, lookFirst)
	switch {
	case err != nil && mayBeLost:
		return workflows.ChangeResult{}, err
	case err != nil: // nothing was done to it, whatever has become of it
		t.log.WarnContext(ctx, "a device that was not divided cannot be looked at", "device", in.Device.Identity, "error", err)
		return workflows.ChangeResult{}, ctx.Err()
	}

	if mayBeLost && !showsRecorded(found.Device, in.Device) {
		return workflows.ChangeResult{}, cyborg.Errorf(cyborg.ErrHardware,
			"the agent has lost its journal, and nobody knows how device %s was divided before: it has %q, and the records had %q",
			in.Device.Identity, shownNames(found.Device), in.Device.Deployables)
	}
	return finish(ctx, a, s, found, recording(journal.Change{}))
}

// mayHaveLostLayout reports whether the journal was emptied, and knows nothing of how the
// device is divided: it may have lost that.
func (a *Activities) mayHaveLostLayout(target cyborg.DeviceTarget) bool {
	_, known := a.Journal.Layout(journal.DeviceKey{Backend: target.Backend, Device: target.Identity})
	return !known && a.Journal.Forgot() != journal.Position{}
}

// showsRecorded reports whether the device shows what the records had of it when the
// operation began.
func showsRecorded(device cyborg.DeviceReport, target cyborg.DeviceTarget) bool {
	return slices.Equal(shownNames(device), target.Deployables)
}

// shownNames are the names of what the device shows, sorted.
func shownNames(device cyborg.DeviceReport) []string {
	var names []string
	for _, one := range device.Deployables {
		names = append(names, one.Name)
	}
	slices.Sort(names)
	return names
}

// RestoreLayouts divides devices again as the last partition of each has left them, where a
// boot of the host has undone that. It is called before the first report, so that nobody
// gets what the boot has left. It returns soon after the given time, whatever happens: the
// log says what could not be restored, and the report shows what is there. A
// backend whose driver does not come back by then is withheld from reports until it does,
// so that the records keep what they have of it.
func (a *Activities) RestoreLayouts(ctx context.Context, within time.Duration) {
	a.restoreUndone(ctx, within, func(backend string, done <-chan struct{}) {
		a.Log.ErrorContext(ctx, "a driver hangs while it divides devices after a boot; its backend is not reported before it is back", "backend", backend)
		release := a.Inventory.Withhold(backend, "its driver has not come back from dividing devices after the last boot")
		go func() {
			<-done
			release()
		}()
	})
}

// RestoreAppeared is RestoreLayouts for devices that have appeared for the first time since
// the boot, after the first report. No report has such a device before it was tried, or
// before its driver is back. All others are reported meanwhile.
func (a *Activities) RestoreAppeared(ctx context.Context, within time.Duration) {
	a.restoreUndone(ctx, within, func(backend string, _ <-chan struct{}) {
		a.Log.ErrorContext(ctx, "a driver hangs while it divides what has appeared after a boot; that is not reported before it is back", "backend", backend)
	})
}

// restoreUndone restores the layouts that a boot has undone of the devices that are there,
// and that nobody has begun to restore. It calls hangs for each backend whose driver does not
// come back in time; done is closed when it has.
func (a *Activities) restoreUndone(ctx context.Context, within time.Duration, hangs func(backend string, done <-chan struct{})) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	var backends []string
	restored := map[string]*sync.WaitGroup{}
	for _, entry := range a.Inventory.TakeUndone() {
		log := a.Log.With("device", entry.Device, "wanted", cyborg.Layout(entry.Wanted).String(), "operation_id", entry.Operation)
		if !a.allows(cyborg.OperationPartition) {
			log.WarnContext(ctx, "a device is not divided again after a boot, because this host does not allow that in agent.activities")
			a.Inventory.EndRestore(entry.DeviceKey, true)
			continue
		}

		if restored[entry.Backend] == nil {
			restored[entry.Backend] = &sync.WaitGroup{}
			backends = append(backends, entry.Backend)
		}
		restored[entry.Backend].Go(func() {
			tried := a.restoreAfterBoot(ctx, log, entry.DeviceKey)
			// An agent that stops reports nothing more, so that the next one can try it again.
			if !errors.Is(ctx.Err(), context.Canceled) {
				a.Inventory.EndRestore(entry.DeviceKey, tried)
			}
		})
	}

	for _, backend := range backends {
		done := make(chan struct{})
		go func() {
			restored[backend].Wait()
			close(done)
		}()

		select {
		case <-done:
			continue
		case <-ctx.Done():
		}
		// Most drivers notice the end of their context.
		timer := time.NewTimer(layoutGrace)
		select {
		case <-done:
		case <-timer.C:
			hangs(backend, done)
		}
		timer.Stop()
	}
}

// layoutGrace is how long a driver may take to return when the time to restore layouts is
// over.
const layoutGrace = 2 * time.Second

// restoreAfterBoot restores the layout of one device, and logs what came of it. It returns
// false where it has tried nothing, because the device is not there.
func (a *Activities) restoreAfterBoot(ctx context.Context, log *slog.Logger, key journal.DeviceKey) (tried bool) {
	t := &try{heartbeat: &heartbeat{}, log: log}
	var changed bool
	err := recovered(log, func() (err error) {
		changed, err = a.divideAgain(ctx, t, key)
		return err
	})

	switch kind := cyborg.ErrorKindOf(err); {
	case err == nil && changed:
		log.InfoContext(ctx, "a device is divided again as before the boot")
	case err == nil:
	case errors.Is(err, errNotYet):
		log.InfoContext(ctx, "a device that is to be divided again after a boot is not there", "reason", err)
		return false
	default:
		log.ErrorContext(ctx, "a device cannot be divided again after a boot; it is reported as it is", "kind", kind, "error", err)
	}
	return true
}

// errNotYet is wrapped by the error of a device that was to be divided again and is not there.
var errNotYet = errors.New("it is divided again when it appears")

// divideAgain restores the layout of one device, under its lock. What the journal has
// attached before the boot is no obstacle: the boot has undone that, and its holder gets
// the same part again. What is really in use is one.
func (a *Activities) divideAgain(ctx context.Context, t *try, key journal.DeviceKey) (changed bool, err error) {
	unlock, err := a.Inventory.Lock(ctx, key.Device, "dividing it again after a boot")
	if err != nil {
		return false, err
	}
	defer unlock()

	entry, known := a.Journal.Layout(key)
	if !known || !entry.Undone(a.Journal.BootID()) {
		return false, nil
	}
	found, err := a.findDevice(ctx, cyborg.DeviceTarget{
		Backend: key.Backend, Identity: key.Device, Fingerprint: cyborg.Fingerprint(entry.Fingerprint),
	}, freshEnough)
	if err != nil {
		return false, fmt.Errorf("%w; %w", err, errNotYet)
	}

	layout := cyborg.Layout(entry.Wanted)
	// A partition that was interrupted may have left nothing at all of the device.
	if found.Device.Partitioning.Is(layout) && len(found.Device.Deployables) > 0 {
		entry.BootID = a.Journal.BootID()
		return false, a.writeLayouts(journal.Change{Layouts: []journal.Layout{entry}})
	}

	before := func(attachment journal.Attachment) bool { return attachment.BootID != a.Journal.BootID() }
	if err := a.checkDeviceFree(ctx, t, found, before); err != nil {
		return false, err
	}
	plan, err := a.planLayout(ctx, t, found, entry.Operation, layout)
	if err != nil {
		return false, err
	}
	err = a.callPartition(ctx, t, &plan)
	ctx = context.WithoutCancel(ctx) // what has become of the device is reported, also when the time is over
	if err != nil {
		a.showFailed(ctx, t, plan.found)
		return true, err
	}

	_, err = a.Inventory.Observe(ctx, key.Backend, key.Device, func(seen cyborg.Observation) error {
		if err := checkDivided(plan, seen); err != nil {
			return err
		}
		return a.writeLayouts(plan.divided(layout, seen, a.Journal.BootID()))
	})
	return true, err
}
