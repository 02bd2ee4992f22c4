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

// Look is the outcome of looking at one backend.
type Look struct {
	Backend string
	Devices int
	// Err is why the look failed; nil for a successful one.
	Err error
}

// Scan looks at all enabled backends at the same time and keeps what they see.
// It returns when the last of them has answered or timed out.
func (i *Inventory) Scan(ctx context.Context) []Look {
	i.mu.Lock()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		if i.backends[name].setting.Enabled {
			names = append(names, name)
		}
	}
	i.mu.Unlock()

	i.LookAtWhitelist()
	return i.scan(ctx, names)
}

// LookAtWhitelist reads the file of Nova's whitelist, where the host has one,
// for the next report.
func (i *Inventory) LookAtWhitelist() {
	if i.config.Whitelist == nil {
		return
	}

	// Without this lock, a look that began earlier could overwrite what a later one
	// saw. It is not mu, since this reads the disk.
	i.whitelistLook.Lock()
	defer i.whitelistLook.Unlock()
	now := i.config.Whitelist()

	i.mu.Lock()
	defer i.mu.Unlock()
	i.whitelist = &now
	notify(i.changed)
}

// scan looks at the named backends at the same time.
func (i *Inventory) scan(ctx context.Context, names []string) []Look {
	looks := make([]Look, len(names))

	var all sync.WaitGroup
	for n, name := range names {
		all.Go(func() { looks[n] = i.look(ctx, name) })
	}

	all.Wait()
	return looks
}

// look looks at one backend and keeps what it sees, unless the context ends
// first: then the outcome says nothing about the backend.
func (i *Inventory) look(ctx context.Context, name string) Look {
	in, err := i.instanceOf(ctx, name)
	if err != nil {
		if ctx.Err() == nil {
			i.failed(name, err)
		}
		return Look{Backend: name, Err: err}
	}

	// The number is taken before the look, so that a change during the look is
	// observed under a later number.
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

// instanceOf returns a backend's driver. It makes the driver where that has not
// happened yet or has failed before.
func (i *Inventory) instanceOf(ctx context.Context, name string) (*instance, error) {
	i.mu.Lock()
	b, ok := i.backends[name]
	i.mu.Unlock()

	if !ok || !b.setting.Enabled {
		return nil, cyborg.Errorf(cyborg.ErrChanged, "backend %s of host %s is not enabled", name, i.config.Host)
	}

	i.mu.Lock()
	in := b.instance
	i.mu.Unlock()
	if in != nil {
		return in, nil
	}

	// Making a driver may take long, so mu is not held. Two callers may make one
	// each; the first to finish wins below.
	made, err := i.make(ctx, b.making, b.setting)
	if err != nil {
		return nil, err
	}

	i.mu.Lock()
	defer i.mu.Unlock()
	if b.instance == nil {
		b.instance = made
		notify(i.backendsChanged)
	}

	return b.instance, nil
}

// failed records why a backend's driver could not be made, and logs it when the
// reason is a new one.
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

// merge keeps what a look saw. Of each device the newest look counts:
// operations look at single devices at the same time, and what they saw under a
// later number stays.
func (i *Inventory) merge(in *instance, sequence int64, devices []cyborg.DeviceReport, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer notify(i.changed)

	b, ok := i.backends[in.backend]
	if !ok || b.instance != in { // the backend was replaced meanwhile
		return
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
			one := newSeen(sequence, device)
			one.observed = b.devices[device.Identity].observed
			fresh[device.Identity] = one
		}
	}

	b.devices = fresh
	notify(i.looked)
}

// Observe looks at a device after it was changed, and returns what it saw under
// a sequence number that is later than the change. Where keep is not nil, it is
// called with the observation, to write down the result of the change before
// there can be a report with a later number. The error is of kind ErrHardware
// where the device is gone.
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

	report, err := i.lookAt(ctx, in, sequence, device)
	if err != nil {
		return cyborg.Observation{}, err
	}

	i.markObserved(backendName, device, sequence)
	in.health.recheck(report)
	observation := cyborg.Observation{Sequence: sequence, Backend: backendName, Device: report}
	if keep == nil {
		return observation, nil
	}

	return observation, keep(observation)
}

// LookAt looks at a device that nobody has changed, for a step that depends on
// who uses it now. A device that is gone is no error: Find does not find it then.
// What differs from the last look is reported soon. The error is of kind
// ErrUnavailable where the backend has failed.
func (i *Inventory) LookAt(ctx context.Context, backendName, device string) error {
	in, err := i.instanceOf(ctx, backendName)
	if err != nil {
		return err
	}
	sequence, err := i.journal.NextSequence()
	if err != nil {
		return err
	}

	before := i.digestOf(backendName, device)
	if _, err := i.lookAt(ctx, in, sequence, device); err != nil && !errors.Is(err, errGone) {
		if ctx.Err() != nil {
			return err
		}
		return cyborg.Errorf(cyborg.ErrUnavailable, "backend %s of host %s has failed: %w", backendName, i.config.Host, err)
	}

	if i.digestOf(backendName, device) != before {
		notify(i.changed)
	}
	return nil
}

// digestOf returns the digest of a device as it was seen last; empty where it
// was not seen.
func (i *Inventory) digestOf(backendName, device string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if b, ok := i.backends[backendName]; ok {
		return b.devices[device].digest
	}
	return ""
}

// errGone is wrapped by the error of a look at a device that is not there.
var errGone = errors.New("is gone")

// lookAt looks at a device and keeps what it sees. It looks at that device
// alone where the driver can and the result contradicts nothing that is known;
// else at all devices of the backend.
func (i *Inventory) lookAt(ctx context.Context, in *instance, sequence int64, device string) (cyborg.DeviceReport, error) {
	if report, ok := in.inspect(ctx, i.config.ScanTimeout, device); ok && i.mergeOne(in, sequence, report) {
		return report, nil
	}

	devices, err := in.discover(ctx, i.config.ScanTimeout)
	if err != nil && ctx.Err() != nil {
		return cyborg.DeviceReport{}, err
	}

	i.merge(in, sequence, devices, err)
	if err != nil {
		return cyborg.DeviceReport{}, err
	}

	for _, report := range devices {
		if report.Identity == device {
			return report, nil
		}
	}

	return cyborg.DeviceReport{}, cyborg.Errorf(cyborg.ErrHardware, "device %s %w from host %s", device, errGone, i.config.Host)
}

// mergeOne keeps what was seen of one known device. It returns false where the
// backend does not work, or where the device shares a name with another device:
// then only a look at all devices tells what is right.
func (i *Inventory) mergeOne(in *instance, sequence int64, report cyborg.DeviceReport) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[in.backend]
	if !ok || b.instance != in || b.failure != "" {
		return false
	}

	old, known := b.devices[report.Identity]
	if !known {
		return false
	}

	others := maps.Clone(b.devices)
	delete(others, report.Identity)
	if overlap(map[string]seen{report.Identity: {report: report}}, others) != "" {
		return false
	}

	if old.sequence < sequence {
		fresh := newSeen(sequence, report)
		fresh.observed = old.observed
		b.devices[report.Identity] = fresh
	}

	return true
}

// markObserved records that an operation looked at the device. The conductor
// records what the operation saw, so the next difference must include the
// device even where it is again as the last report had it.
func (i *Inventory) markObserved(backendName, device string, sequence int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if b, ok := i.backends[backendName]; ok {
		if one, ok := b.devices[device]; ok {
			one.observed = max(one.observed, sequence)
			b.devices[device] = one
		}
	}
}

// MarkChanged announces that something else that is reported has changed, such
// as the journal.
func (i *Inventory) MarkChanged() { notify(i.changed) }

// Changes receives an item after changes of what is reported. Several changes
// may share one item.
func (i *Inventory) Changes() <-chan struct{} { return i.changed }

// notify sends a signal without waiting. A signal that was not yet received
// covers this one.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// failureText is the failure of a backend as it is reported: never empty, and
// the same text for the same failure, so that a repeated failure is no change
// of the report.
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
