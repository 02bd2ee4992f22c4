package inventory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Look is how a look at one backend went.
type Look struct {
	Backend string
	Devices int
	// Err is why it failed; nil where it did not.
	Err error
}

// Scan looks at all enabled backends at once and keeps what they see. It returns when the last of them has answered or
// its time is over.
func (i *Inventory) Scan(ctx context.Context) []Look {
	i.mu.Lock()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		if i.backends[name].setting.Enabled {
			names = append(names, name)
		}
	}
	i.mu.Unlock()
	return i.scan(ctx, names)
}

func (i *Inventory) scan(ctx context.Context, names []string) []Look {
	looks := make([]Look, len(names))
	var all sync.WaitGroup
	for n, name := range names {
		all.Go(func() { looks[n] = i.look(ctx, name) })
	}
	all.Wait()
	return looks
}

// look looks at one backend and keeps what it sees, unless the context ends before.
func (i *Inventory) look(ctx context.Context, name string) Look {
	in, err := i.instanceOf(ctx, name)
	if err != nil {
		if ctx.Err() == nil {
			i.failed(name, err)
		}
		return Look{Backend: name, Err: err}
	}
	// The number is taken before the look, so that what is changed during the look is observed under a later one.
	sequence, err := i.journal.NextSequence()
	if err != nil {
		return Look{Backend: name, Err: err}
	}
	devices, err := in.discover(ctx, i.config.ScanTimeout)
	if err != nil && ctx.Err() != nil {
		return Look{Backend: name, Err: err}
	}
	i.merge(in, sequence, devices, err)
	if err == nil {
		i.verify(ctx, in, devices)
	}
	return Look{Backend: name, Devices: len(devices), Err: err}
}

// instanceOf returns a backend's driver and makes it where it has not been, or where that failed before.
func (i *Inventory) instanceOf(ctx context.Context, name string) (*instance, error) {
	i.mu.Lock()
	b, ok := i.backends[name]
	i.mu.Unlock()
	if !ok || !b.setting.Enabled {
		return nil, cyborg.Errorf(cyborg.Changed, "backend %s of host %s is not enabled", name, i.config.Host)
	}
	i.mu.Lock()
	in := b.instance
	i.mu.Unlock()
	if in != nil {
		return in, nil
	}
	made, err := i.make(ctx, b.making, b.setting)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if b.instance == nil {
		b.instance = made
		notify(i.rewired)
	}
	return b.instance, nil
}

// failed keeps why a backend has no driver.
func (i *Inventory) failed(name string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[name]
	if !ok || !b.setting.Enabled || b.instance != nil {
		return
	}
	if text := failureText(err); b.failure != text {
		b.failure = text
		i.log.Error("a backend's driver cannot be made", "backend", name, "driver", b.setting.Driver, "error", err)
		notify(i.changed)
	}
}

// merge keeps what a look saw. What was seen of a device under a later number stays.
func (i *Inventory) merge(in *instance, sequence int64, devices []cyborg.DeviceReport, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer notify(i.changed)
	b, ok := i.backends[in.backend]
	if !ok || b.instance != in {
		return // it was replaced meanwhile
	}
	if sequence > b.look {
		failure := ""
		if err != nil {
			failure = failureText(err)
		}
		switch failure {
		case b.failure:
		case "":
			in.log.Info("the backend works again", "devices", len(devices))
		default:
			in.log.Error("the backend has failed", "error", failure)
		}
		b.look, b.lookedAt, b.failure = sequence, time.Now(), failure
	}
	if err != nil {
		return
	}
	fresh := map[string]seen{}
	for identity, old := range b.devices {
		if old.sequence > sequence {
			fresh[identity] = old
		}
	}
	for _, device := range devices {
		if _, newer := fresh[device.Identity]; !newer {
			fresh[device.Identity] = seen{sequence: sequence, report: device}
		}
	}
	b.devices = fresh
}

// Observe looks at a device after it was changed. What it returns has a later sequence number than the change. Keep, where
// it is not nil, writes down what came of it, before there can be a report with a later number. A device that is gone is
// an error of kind Hardware.
func (i *Inventory) Observe(
	ctx context.Context, backendName, device string, keep func(cyborg.Observation) error,
) (cyborg.Observation, error) {
	in, err := i.instanceOf(ctx, backendName)
	if err != nil {
		return cyborg.Observation{}, err
	}
	sequence, end, err := i.observations.begin(i.journal)
	if err != nil {
		return cyborg.Observation{}, err
	}
	defer end()
	devices, err := in.discover(ctx, i.config.ScanTimeout)
	if err != nil && ctx.Err() != nil {
		return cyborg.Observation{}, err
	}
	i.merge(in, sequence, devices, err)
	if err != nil {
		return cyborg.Observation{}, err
	}
	for _, report := range devices {
		if report.Identity != device {
			continue
		}
		observation := cyborg.Observation{Sequence: sequence, Backend: backendName, Device: report}
		if keep == nil {
			return observation, nil
		}
		return observation, keep(observation)
	}
	return cyborg.Observation{}, cyborg.Errorf(cyborg.Hardware, "device %s is gone from host %s", device, i.config.Host)
}

// Touch says that something else of what is reported has changed, such as the journal.
func (i *Inventory) Touch() { notify(i.changed) }

// Changes has an item after each change of what is reported; several changes may make one item.
func (i *Inventory) Changes() <-chan struct{} { return i.changed }

func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// failureText is what is reported of a failed backend: never empty, and the same for the same failure.
func failureText(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*cyborg.Error](err); ok && e.Hint != "" {
		text += ". " + e.Hint
	}
	if text == "" {
		return "failed without saying why"
	}
	return text
}
