package inventory

import (
	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// KeepLayouts calls write, which changes layouts in the journal. No report gives one of
// them up meanwhile.
func (i *Inventory) KeepLayouts(write func() error) error {
	i.layouts.Lock()
	defer i.layouts.Unlock()
	return write()
}

// giveUpLayouts notes in the journal which devices are divided otherwise than the last
// partition of each has left them. It comes before a report goes out that shows them: from
// then on the records may give away what is there, so no boot may bring the other layout
// back. What a step divides at this moment, nobody gets.
func (i *Inventory) giveUpLayouts() error {
	i.layouts.Lock()
	defer i.layouts.Unlock()

	dividing, undone := i.locks.steps(), i.undone()
	var change journal.Change
	for _, entry := range i.journal.Layouts() {
		device, shown := i.shown(entry.DeviceKey, undone)
		if entry.Wanted == nil || !shown || !entry.Of(device.Fingerprint) || device.Partitioning.Is(entry.Wanted) {
			continue
		}
		if step, locked := dividing[entry.Device]; locked && step.deployable == "" {
			continue
		}

		i.log.Warn("a device is not divided as its last partition has left it, and is not divided like that again by itself",
			"device", entry.Device, "wanted", cyborg.Layout(entry.Wanted).String(), "operation_id", entry.Operation)
		entry.Wanted = nil
		change.Layouts = append(change.Layouts, entry)
	}

	if len(change.Layouts) == 0 {
		return nil
	}
	return i.journal.Write(change)
}

// shown returns a device as a report shows it now. Undone is what i.undone returned before.
func (i *Inventory) shown(key journal.DeviceKey, undone map[journal.DeviceKey]journal.Layout) (device cyborg.DeviceReport, is bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	device, is = i.present(key)
	return device, is && !i.heldBack(undone, key, device)
}

// present returns a device as it was seen last, if its backend works. The caller holds mu.
func (i *Inventory) present(key journal.DeviceKey) (device cyborg.DeviceReport, is bool) {
	b, ok := i.backends[key.Backend]
	if !ok || !b.setting.Enabled || i.failureOf(b) != "" {
		return cyborg.DeviceReport{}, false
	}
	one, is := b.devices[key.Device]
	return one.report, is
}

// undone returns the journal's layouts that the present boot may have undone, and that were
// not brought back or given up since.
func (i *Inventory) undone() map[journal.DeviceKey]journal.Layout {
	undone := map[journal.DeviceKey]journal.Layout{}
	for _, entry := range i.journal.Layouts() {
		if entry.Undone(i.journal.BootID()) {
			undone[entry.DeviceKey] = entry
		}
	}
	return undone
}

// heldBack reports whether no report has the device yet, because it has appeared for the
// first time in this boot, and its layout was not tried to be restored: nobody may get what
// it shows until then. The caller holds mu.
func (i *Inventory) heldBack(undone map[journal.DeviceKey]journal.Layout, key journal.DeviceKey, device cyborg.DeviceReport) bool {
	entry, is := undone[key]
	return is && entry.Of(device.Fingerprint) && !i.restores[key]
}

// TakeUndone returns the layouts, of devices that are there, that the present boot may have
// undone. It returns each once, and no report has the device until EndRestore.
func (i *Inventory) TakeUndone() []journal.Layout {
	undone := i.undone()
	i.mu.Lock()
	defer i.mu.Unlock()

	var taken []journal.Layout
	for key, entry := range undone {
		device, there := i.present(key)
		if _, begun := i.restores[key]; begun || !there || !entry.Of(device.Fingerprint) {
			continue
		}
		i.restores[key] = false
		taken = append(taken, entry)
	}
	return taken
}

// EndRestore has reports show a device that TakeUndone has returned, as it is now. Where
// nothing was tried, because the device was not there after all, TakeUndone returns it again
// when it is.
func (i *Inventory) EndRestore(key journal.DeviceKey, tried bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if tried {
		i.restores[key] = true
	} else {
		delete(i.restores, key)
	}
	notify(i.changed)
}

// Withhold has reports say of a backend only why it cannot be used yet, until release is
// called. It is for a backend whose driver still divides a device: nobody may get what the
// device shows meanwhile.
func (i *Inventory) Withhold(backendName, why string) (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.withheld[backendName] = why
	notify(i.changed)

	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.withheld, backendName)
		notify(i.changed)
	}
}
