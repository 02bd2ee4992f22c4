package inventory

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// Report returns everything that is known of the host now, under a new sequence
// number. It contains what operations have observed under earlier numbers: it
// waits for observations that have begun.
func (i *Inventory) Report(ctx context.Context) (agentapi.Report, error) {
	sequence, err := i.observations.after(ctx, i.journal)
	if err != nil {
		return agentapi.Report{}, err
	}

	content, now := i.known()
	if err := i.giveUpLayouts(); err != nil {
		return agentapi.Report{}, err
	}
	now.sequence = sequence
	i.mu.Lock()
	i.reported = now
	i.mu.Unlock()

	return agentapi.Report{
		Host: i.config.Host, BootID: i.journal.BootID(), AgentVersion: i.config.Version,
		Sequence: sequence, Digest: now.digest, Content: content,
	}, nil
}

// view is a summary of a report, for comparing it with a later one.
type view struct {
	sequence int64
	digest   string
	// backends is the digest of the backends without their devices.
	backends string
	// devices are the digests of the devices by identity.
	devices map[string]string
}

// Difference reduces a report to what has changed since the last acknowledged
// one. It returns false where it cannot: this process has no acknowledged
// report yet, or the backends themselves have changed.
func (i *Inventory) Difference(report agentapi.Report) (agentapi.Report, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.base.digest == "" || i.reported.sequence != report.Sequence || i.base.backends != i.reported.backends {
		return report, false
	}

	report.Base = i.base.digest
	content := agentapi.Content{Backends: []agentapi.BackendReport{}, Attachments: report.Content.Attachments, Whitelist: report.Content.Whitelist}

	for _, b := range report.Content.Backends {
		changed := agentapi.BackendReport{Name: b.Name, Driver: b.Driver, State: b.State}
		for _, device := range b.Devices {
			known := i.backends[b.Name].devices[device.Identity]
			// A device that an operation observed since is sent as well: the conductor has
			// recorded the observation, so its state differs from the base.
			if i.reported.devices[device.Identity] != i.base.devices[device.Identity] || known.observed > i.base.sequence {
				changed.Devices = append(changed.Devices, device)
			}
		}
		if len(changed.Devices) > 0 {
			content.Backends = append(content.Backends, changed)
		}
	}

	for _, identity := range slices.Sorted(maps.Keys(i.base.devices)) {
		if _, there := i.reported.devices[identity]; !there {
			report.Gone = append(report.Gone, identity)
		}
	}

	report.Content = content
	return report, true
}

// Content returns everything that is known of the host now, in a fixed order.
func (i *Inventory) Content() agentapi.Content {
	content, _ := i.known()
	return content
}

// Digest returns the digest of the content now.
func (i *Inventory) Digest() string {
	_, now := i.known()
	return now.digest
}

// known returns the content now, with its digests.
func (i *Inventory) known() (agentapi.Content, view) {
	content := agentapi.Content{Backends: []agentapi.BackendReport{}, Attachments: i.attachments(), Facts: i.config.Facts}
	now := view{devices: map[string]string{}}

	undone := i.undone()

	// The journal was read before mu is taken, so that it never nests with the journal's lock.
	i.mu.Lock()
	defer i.mu.Unlock()
	content.Whitelist = i.whitelist

	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		b := i.backends[name]
		report := agentapi.BackendReport{
			Name: name, Driver: b.setting.Driver, Options: b.setting.Options,
			State: cyborg.BackendOK, Error: i.failureOf(b), Services: b.services(), Devices: []cyborg.DeviceReport{},
		}

		switch {
		case !b.setting.Enabled:
			report.State, report.Error = cyborg.BackendDisabled, ""
		case report.Error != "":
			report.State = cyborg.BackendFailed
		default:
			report.Devices = slices.DeleteFunc(b.sorted(), func(device cyborg.DeviceReport) bool {
				return i.heldBack(undone, journal.DeviceKey{Backend: name, Device: device.Identity}, device)
			})
		}

		content.Backends = append(content.Backends, report)
		for _, device := range report.Devices {
			now.devices[device.Identity] = b.devices[device.Identity].digest
		}
	}

	now.digest = content.DigestOf(func(d *cyborg.DeviceReport) string { return now.devices[d.Identity] })
	now.backends = agentapi.Content{Backends: withoutDevices(content.Backends)}.Digest()
	return content, now
}

// withoutDevices returns copies of the backends that have no devices.
func withoutDevices(backends []agentapi.BackendReport) []agentapi.BackendReport {
	out := slices.Clone(backends)
	for i := range out {
		out[i].Devices = nil
	}
	return out
}

// services lists what the backend's driver can do; nothing where there is no
// driver.
func (b *backend) services() []string {
	if b.instance == nil {
		return []string{}
	}
	return drivers.Services(b.instance.driver)
}

// attachments lists the journal's attachments as they are reported. Where another
// card is in the place of the one that was attached, the hardware does not show the
// attachment any more, whatever the journal says: it does as soon as the card is
// back.
func (i *Inventory) attachments() []agentapi.Attachment {
	cards := i.fingerprints()
	// Before the journal: what a step has in doubt there, is in doubt because of it. A
	// step that ends meanwhile makes another report due.
	steps := i.locks.steps()
	all := []agentapi.Attachment{}
	for _, entry := range i.journal.Attachments() {
		state := cyborg.AttachmentDone
		switch {
		case i.journal.Lost(entry):
			state = cyborg.AttachmentLost
		case entry.State == journal.InDoubt, !entry.Of(cards[place{entry.Backend, entry.Device}]):
			state = cyborg.AttachmentInDoubt
		}

		reported := agentapi.Attachment{
			Backend: entry.Backend, Deployable: entry.Deployable, Handle: entry.Handle, Operation: entry.Operation, State: state,
		}
		if step := steps[entry.Device]; state == cyborg.AttachmentInDoubt && step.deployable == entry.Deployable {
			reported.Working = step.operation
		}
		all = append(all, reported)
	}

	return all
}

// place is where a backend shows a device.
type place struct{ backend, device string }

// fingerprints returns those of the cards that were seen last.
func (i *Inventory) fingerprints() map[place]cyborg.Fingerprint {
	i.mu.Lock()
	defer i.mu.Unlock()
	cards := map[place]cyborg.Fingerprint{}
	for name, b := range i.backends {
		for identity, device := range b.devices {
			cards[place{name, identity}] = device.report.Fingerprint
		}
	}
	return cards
}

// failureOf returns why a backend cannot be used now; empty where it can. The
// caller holds mu. Where two backends show the same device, the first by name
// keeps it and the other has failed.
func (i *Inventory) failureOf(b *backend) string {
	if b.failure != "" {
		return b.failure
	}
	if why := i.withheld[b.setting.Name]; why != "" {
		return why
	}

	if b.look == 0 {
		return "has not been looked at yet"
	}

	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		other := i.backends[name]
		if other == b {
			break
		}
		if other.setting.Enabled && other.failure == "" && other.look > 0 {
			if what := overlap(other.devices, b.devices); what != "" {
				return seenTwice(what, name)
			}
		}
	}

	return ""
}

// seenTwice is the failure of a backend that sees something which another
// backend sees as well.
func seenTwice(what, backend string) string {
	return what + " is also seen by backend " + backend + "; leave it out in the options of one of them"
}

// overlap returns something that both backends see; empty where there is none.
// Each thing on a host must have one name and one driver, or two operations
// could change it under different claims.
func overlap(a, b map[string]seen) string {
	things := map[string]bool{}
	for _, device := range a {
		for thing := range uniqueNames(device.report) {
			things[thing] = true
		}
	}

	for _, identity := range slices.Sorted(maps.Keys(b)) {
		for thing := range uniqueNames(b[identity].report) {
			if things[thing] {
				return thing
			}
		}
	}

	return ""
}

// uniqueNames yields the names in a device report that must be unique on a
// host: of the device, its deployables and their handles.
func uniqueNames(report cyborg.DeviceReport) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		if !yield("device " + report.Identity) {
			return
		}

		for _, deployable := range report.Deployables {
			if !yield("deployable " + deployable.Name) {
				return
			}
			for _, handle := range deployable.Handles {
				if !yield("handle " + string(handle.Kind) + " " + handle.Identity) {
					return
				}
			}
		}
	}
}

// normalise returns a driver's reports in a fixed order and without nil lists,
// so that equal hardware has an equal digest. The lists are copies. Reports
// that contradict themselves are an error of kind ErrInternal: the driver is
// wrong.
func normalise(reports []cyborg.DeviceReport) ([]cyborg.DeviceReport, error) {
	devices := make([]cyborg.DeviceReport, 0, len(reports))
	taken := map[string]bool{}
	for _, device := range reports {
		if device.ControlPath.Info == nil {
			device.ControlPath.Info = map[string]string{}
		}
		device.Partitioning = normalPartitioning(device.Partitioning)

		device.Deployables = sorted(device.Deployables, func(a, b cyborg.DeployableReport) int { return cmp.Compare(a.Name, b.Name) })
		for n := range device.Deployables {
			d := &device.Deployables[n]
			d.Attributes = sorted(d.Attributes, func(a, b cyborg.Attribute) int {
				return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
			})
			d.Handles = sorted(d.Handles, func(a, b cyborg.HandleReport) int {
				return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Kind, b.Kind))
			})

			for h := range d.Handles {
				if d.Handles[h].Info == nil {
					d.Handles[h].Info = map[string]string{}
				}
				if d.Handles[h].Identity == "" {
					return nil, cyborg.Errorf(cyborg.ErrInternal, "the driver reports a handle of %s without identity", d.Name)
				}
			}

			d.Excludes = cyborg.SortExcludes(d.Name, d.Excludes)
			if d.Specs.Capability == nil {
				d.Specs.Capability = cyborg.JSONObject{}
			}
			if d.Name == "" {
				return nil, cyborg.Errorf(cyborg.ErrInternal, "the driver reports a deployable of device %s without name", device.Identity)
			}
		}

		if device.Identity == "" {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "the driver reports a device without identity")
		}

		for thing := range uniqueNames(device) {
			if taken[thing] {
				return nil, cyborg.Errorf(cyborg.ErrInternal, "the driver reports %s twice", thing)
			}
			taken[thing] = true
		}
		devices = append(devices, device)
	}

	slices.SortFunc(devices, func(a, b cyborg.DeviceReport) int { return cmp.Compare(a.Identity, b.Identity) })
	return devices, nil
}

// normalPartitioning returns a copy without nil lists and without zeros; nil for nil.
func normalPartitioning(p *cyborg.Partitioning) *cyborg.Partitioning {
	if p == nil {
		return nil
	}
	return &cyborg.Partitioning{Parts: append([]cyborg.PartKind{}, p.Parts...), Layout: p.Layout.Normal()}
}

// sorted returns a sorted copy that is never nil.
func sorted[T any](items []T, compare func(a, b T) int) []T {
	out := append([]T{}, items...)
	slices.SortStableFunc(out, compare)
	return out
}

// Known is a deployable as it was seen last. Failure says why its backend
// cannot be asked now; it is empty where it can.
type Known struct {
	Found
	Failure string
}

// Deployables lists the deployables of all enabled backends. Those of a failed
// backend are listed as they were seen last.
func (i *Inventory) Deployables() []Known {
	i.mu.Lock()
	defer i.mu.Unlock()

	var all []Known
	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		b := i.backends[name]
		if !b.setting.Enabled {
			continue
		}

		failure := i.failureOf(b)
		for _, device := range b.sorted() {
			for _, deployable := range device.Deployables {
				known := Known{Found: Found{Backend: name, Target: drivers.Target{Device: device, Deployable: deployable}}, Failure: failure}
				if b.instance != nil {
					known.Driver = b.instance.driver
				}
				all = append(all, known)
			}
		}
	}

	return all
}
