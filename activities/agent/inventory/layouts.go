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

	dividing := i.locks.steps()
	var change journal.Change
	for _, entry := range i.journal.Layouts() {
		device, shown := i.shown(entry.DeviceKey)
		if entry.Wanted == nil || !shown || !entry.Of(device.Fingerprint) || isDivided(device, entry.Wanted) {
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

// isDivided reports whether the device is divided like that.
func isDivided(device cyborg.DeviceReport, layout cyborg.Layout) bool {
	return device.Partitioning != nil && device.Partitioning.Layout.Equal(layout)
}

// shown returns a device as a report shows it now.
func (i *Inventory) shown(key journal.DeviceKey) (device cyborg.DeviceReport, is bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[key.Backend]
	if !ok || !b.setting.Enabled || i.failureOf(b) != "" {
		return cyborg.DeviceReport{}, false
	}
	one, is := b.devices[key.Device]
	return one.report, is
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
