package db

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// inventory is what is recorded of one host, and what becomes of it in a merge. Nothing is ever deleted here: what a
// host no longer shows is missing, until Forget.
type inventory struct {
	host        string
	boot        string // in which the host is
	backends    map[string]*tracked[backendRow]
	devices     map[string]*tracked[deviceRow]     // by identity
	deployables map[string]*tracked[deployableRow] // by the driver's name
	handles     map[handleKey]*tracked[handleRow]

	// name makes a new deployable's name, and taken says who has one; it is shared by the hosts of a merge.
	name  func(host, local string) string
	taken *names

	// unsettled says that what was reported could not be recorded as it is, but may be later.
	unsettled bool
	// exceed is the highest number of what operations observed later than what is merged; 0 for none.
	exceed int64

	// observed are the devices that operations saw since the newest report; known where the inventory is loaded in part.
	observed []string

	merged     map[uuid.UUID]bool // deployables about which the report says all there is
	wanted     []wantedHandle
	complaints map[string][]string // by backend
}

// names are those in use anywhere.
type names struct {
	deployables  map[string]string // name of a deployable → its host
	accelerators map[string]bool
}

func newInventory(host string, name func(host, local string) string, taken *names) *inventory {
	return &inventory{
		host: host, name: name, taken: taken,
		backends: map[string]*tracked[backendRow]{}, devices: map[string]*tracked[deviceRow]{},
		deployables: map[string]*tracked[deployableRow]{}, handles: map[handleKey]*tracked[handleRow]{},
		merged: map[uuid.UUID]bool{}, complaints: map[string][]string{},
	}
}

// merge merges a report. Where it tells a difference that these records cannot stand on, merged is false and the inventory
// is of no further use.
func (v *inventory) merge(r cyborg.Report) (merged bool, err error) {
	if r.Base == "" {
		return true, v.report(r)
	}
	return v.difference(r)
}

// difference merges the devices that changed, and leaves all others as they are.
func (v *inventory) difference(r cyborg.Report) (merged bool, err error) {
	told := map[string]bool{}
	for _, identity := range r.Gone {
		told[identity] = true
	}
	for _, b := range r.Content.Backends {
		known, ok := v.backends[b.Name]
		if !ok || known.row.Driver != b.Driver || known.row.State != cyborg.BackendOK {
			return false, nil
		}
		for _, d := range b.Devices {
			if told[d.Identity] {
				return false, nil
			}
			told[d.Identity] = true
		}
	}
	if v.takesFromOthers(r, told) {
		return false, nil
	}
	for _, identity := range v.observed { // what an operation saw is no part of the base
		if !told[identity] {
			return false, nil
		}
	}
	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			if err := v.device(b.Name, b.Driver, d, r.Sequence); err != nil {
				return false, err
			}
		}
	}
	for _, identity := range r.Gone {
		if d, ok := v.devices[identity]; ok {
			v.deviceMissing(d, r.Sequence)
		}
	}
	if err := v.finish(); err != nil {
		return false, err
	}
	// What cannot be recorded as it is told has to be looked at as a whole.
	return !v.unsettled && len(v.complaints) == 0, nil
}

// takesFromOthers says whether a difference shows a part with another device than the one that has it, and says nothing of
// that one, which may still show it as well.
func (v *inventory) takesFromOthers(r cyborg.Report, told map[string]bool) bool {
	untold := map[uuid.UUID]bool{}
	for identity, d := range v.devices {
		untold[d.row.UUID] = !told[identity]
	}
	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			for _, part := range d.Deployables {
				p, ok := v.deployables[part.Name]
				if ok && p.row.Presence == cyborg.PresencePresent && untold[p.row.DeviceUUID] {
					return true
				}
			}
		}
	}
	return false
}

// report merges everything that the host's backends see.
func (v *inventory) report(r cyborg.Report) error {
	if err := v.matchAdopted(r); err != nil {
		return err
	}
	shown := map[string]bool{} // devices, by identity
	for _, b := range r.Content.Backends {
		if err := v.backend(b); err != nil {
			return err
		}
		if b.State != cyborg.BackendOK {
			continue
		}
		for _, d := range b.Devices {
			if shown[d.Identity] {
				v.complain(b.Name, "device %s is shown twice; only the first one counts", d.Identity)
				continue
			}
			shown[d.Identity] = true
			if err := v.device(b.Name, b.Driver, d, r.Sequence); err != nil {
				return err
			}
		}
	}
	v.absent(r)
	for identity, d := range v.devices {
		if !shown[identity] && v.backends[d.row.Backend].row.State != cyborg.BackendFailed { // which does not know
			v.deviceMissing(d, r.Sequence)
		}
	}
	if err := v.finish(); err != nil {
		return err
	}
	for name, texts := range v.complaints {
		b := v.backends[name]
		if b.row.Error != "" {
			texts = append([]string{b.row.Error}, texts...)
		}
		b.row.Error = abridge(texts)
	}
	return nil
}

// longestComplaint is how long one complaint is at most, and longestError what a backend tells, in characters.
const (
	longestComplaint = 300
	longestError     = 1000
)

// abridge joins texts, and counts those that would make it too long to read.
func abridge(texts []string) string {
	const most = 10
	if len(texts) > most {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", len(texts)-most))
	}
	return cyborg.Sanitize(strings.Join(texts, "; "), longestError)
}

// observation merges what an agent saw of one device after it changed it.
func (v *inventory) observation(o cyborg.Observation) error {
	b, ok := v.backends[o.Backend]
	if !ok { // the report that brings the backend brings the device
		return nil
	}
	if err := v.device(o.Backend, b.row.Driver, o.Device, o.Sequence); err != nil {
		return err
	}
	if d := v.devices[o.Device.Identity]; d != nil {
		d.row.ObservedSeq = max(d.row.ObservedSeq, o.Sequence)
	}
	return v.finish()
}

func (v *inventory) complain(backend, format string, args ...any) {
	v.complaints[backend] = append(v.complaints[backend], cyborg.Sanitize(fmt.Sprintf(format, args...), longestComplaint))
}

func (v *inventory) backend(r cyborg.BackendReport) error {
	options, err := documentOf(r.Options, "{}")
	if err != nil {
		return err
	}
	b, ok := v.backends[r.Name]
	if !ok {
		b = &tracked[backendRow]{}
		v.backends[r.Name] = b
	}
	b.row = backendRow{
		Host: v.host, Name: r.Name, Driver: r.Driver, Options: options, State: r.State, Error: cyborg.Sanitize(r.Error, longestError),
		Services: r.Services, Reported: true,
	}
	if b.row.Services == nil {
		b.row.Services = []string{}
	}
	switch {
	case r.State == cyborg.BackendDisabled:
		b.row.Error = ""
	case r.State == cyborg.BackendFailed && r.Error == "":
		b.row.Error = "discovery failed; the agent did not say why"
	}
	return nil
}

// absent disables the backends that the agent no longer has.
func (v *inventory) absent(r cyborg.Report) {
	for name, b := range v.backends {
		if !slices.ContainsFunc(r.Content.Backends, func(other cyborg.BackendReport) bool { return other.Name == name }) {
			b.row.State, b.row.Error, b.row.Reported = cyborg.BackendDisabled, "", false
		}
	}
}

// device merges one device with its parts, unless an operation's result is newer.
func (v *inventory) device(backend, driver string, r cyborg.DeviceReport, sequence int64) error {
	if !cyborg.IsName(r.Identity) {
		v.complain(backend, "a device without identity, or with %.80q for one, (%.80s %.80s) is left out", r.Identity, r.Vendor, r.Model)
		return nil
	}
	d, ok := v.devices[r.Identity]
	switch {
	case !ok:
		d = &tracked[deviceRow]{row: deviceRow{UUID: uuid.New(), Host: v.host, Identity: r.Identity}}
		v.devices[r.Identity] = d
	case d.row.ObservedSeq > sequence:
		v.unsettled, v.exceed = true, max(v.exceed, d.row.ObservedSeq)
		return nil
	case d.row.Backend != backend && d.row.Backend != adoptedBackend && v.busy(d.row.UUID):
		v.unsettled = true
		v.complain(backend, "device %s stays with backend %s as long as it is in use", r.Identity, d.row.Backend)
		return nil
	}
	board, err := documentOf(r.BoardInfo, "{}")
	if err != nil {
		return err
	}
	path, err := documentOf(r.ControlPath.Info, "{}")
	if err != nil {
		return err
	}
	row := &d.row
	row.Backend, row.Driver, row.Type, row.Presence = backend, driver, r.Type, cyborg.PresencePresent
	row.VendorID, row.ProductID, row.Vendor, row.Model, row.NUMANode = r.VendorID, r.ProductID, r.Vendor, r.Model, r.NUMANode
	row.BoardInfo, row.ControlPathKind, row.ControlPathInfo = board, r.ControlPath.Kind, path

	shown := map[string]bool{}
	for _, part := range r.Deployables {
		if v.mergedName(part.Name) || shown[part.Name] {
			v.complain(backend, "deployable %q of device %s is shown twice; only the first one counts", part.Name, r.Identity)
			continue
		}
		shown[part.Name] = true
		if err := v.deployable(backend, d, part, sequence); err != nil {
			return err
		}
	}
	for name, p := range v.deployables {
		if p.row.DeviceUUID == row.UUID && !shown[name] {
			v.deployableMissing(p)
		}
	}
	return nil
}

// busy says that somebody holds or works on a part of the device.
func (v *inventory) busy(device uuid.UUID) bool {
	for _, p := range v.deployables {
		if p.row.DeviceUUID == device && (p.row.Claimed || v.held(p.row.UUID)) {
			return true
		}
	}
	return false
}

func (v *inventory) held(deployable uuid.UUID) bool {
	for _, h := range v.handles {
		if h.row.DeployableUUID == deployable && h.row.Holder != "" {
			return true
		}
	}
	return false
}

func (v *inventory) mergedName(local string) bool {
	p, ok := v.deployables[local]
	return ok && p.row.Presence == cyborg.PresencePresent && v.merged[p.row.UUID]
}

func (v *inventory) deployable(backend string, d *tracked[deviceRow], r cyborg.DeployableReport, sequence int64) error {
	p, ok := v.deployables[r.Name]
	switch {
	case !cyborg.IsName(r.Name):
		v.complain(backend, "a deployable without name, or with %.80q for one, of device %s is left out", r.Name, d.row.Identity)
		return nil
	case !ok:
		if p = v.newDeployable(backend, r.Name); p == nil {
			return nil
		}
		p.row.administrationRow = v.administration(d.row.UUID)
		v.deployables[r.Name] = p
	case p.row.DeviceUUID != d.row.UUID && v.observedSince(p.row.DeviceUUID, sequence):
		v.unsettled = true
		return nil
	}
	specs, err := documentOf(r.Specs, "{}")
	if err != nil {
		return err
	}
	attributes, err := documentOf(r.Attributes, "[]")
	if err != nil {
		return err
	}
	row := &p.row
	row.DeviceUUID, row.Presence = d.row.UUID, cyborg.PresencePresent
	row.Specs, row.Attributes, row.BitstreamID, row.Protected = specs, attributes, r.BitstreamID, r.Protected
	if row.ProgramSet = r.ProgramSet; row.ProgramSet == "" {
		row.ProgramSet = d.row.Identity
	}
	if row.ImageBoot != nil {
		row.ImageBoot = &v.boot
	}
	v.merged[row.UUID] = true
	for _, h := range r.Handles {
		v.wanted = append(v.wanted, wantedHandle{backend: backend, deployable: p, report: h})
	}
	return nil
}

// newDeployable names a deployable that was never seen before; nil where its name is another host's.
func (v *inventory) newDeployable(backend, local string) *tracked[deployableRow] {
	name := v.name(v.host, local)
	if other, taken := v.taken.deployables[name]; taken {
		v.complain(backend, "deployable %q is left out: its name %q belongs to one of host %s", local, name, other)
		return nil
	}
	v.taken.deployables[name] = v.host
	row := deployableRow{
		UUID: uuid.New(), Host: v.host, Name: name, LocalName: local, ProviderUUID: cyborg.ProviderUUID(name), Accelerator: name,
	}
	if v.taken.accelerators[name] { // somebody gave it to another accelerator
		row.Accelerator = name + "~" + row.UUID.String()[:8]
	}
	v.taken.accelerators[row.Accelerator] = true
	return &tracked[deployableRow]{row: row}
}

// administration is how something new on a device begins: in maintenance where all others of the device are, since then it
// was the device that somebody took out of use.
func (v *inventory) administration(device uuid.UUID) administrationRow {
	enabled := administrationRow{Administration: cyborg.AdministrationEnabled}
	var first *deployableRow
	for _, p := range v.deployables {
		switch {
		case p.row.DeviceUUID != device:
		case p.row.Administration != cyborg.AdministrationMaintaining:
			return enabled
		case first == nil || p.row.Name < first.Name:
			first = &p.row
		}
	}
	if first == nil {
		return enabled
	}
	return first.administrationRow
}

func (v *inventory) observedSince(device uuid.UUID, sequence int64) bool {
	for _, d := range v.devices {
		if d.row.UUID == device {
			return d.row.ObservedSeq > sequence
		}
	}
	return false
}

func (v *inventory) deviceMissing(d *tracked[deviceRow], sequence int64) {
	if d.row.ObservedSeq > sequence {
		v.unsettled = true
		return
	}
	d.row.Presence = cyborg.PresenceMissing
	for _, p := range v.deployables {
		if p.row.DeviceUUID == d.row.UUID {
			v.deployableMissing(p)
		}
	}
}

func (v *inventory) deployableMissing(p *tracked[deployableRow]) {
	p.row.Presence = cyborg.PresenceMissing
	v.merged[p.row.UUID] = true
}

// changes collects what a merge of several hosts writes.
type changes struct {
	backends    pending[backendRow]
	devices     pending[deviceRow]
	deployables pending[deployableRow]
	handles     pending[handleRow]
}

// collect adds a host's differences, in a fixed order, and returns how many there are.
func (c *changes) collect(v *inventory) int {
	before := c.size()
	for _, key := range slices.Sorted(maps.Keys(v.backends)) {
		c.backends.add(v.backends[key])
	}
	for _, key := range slices.Sorted(maps.Keys(v.devices)) {
		c.devices.add(v.devices[key])
	}
	for _, key := range slices.Sorted(maps.Keys(v.deployables)) {
		c.deployables.add(v.deployables[key])
	}
	order := func(a, b handleKey) int {
		return strings.Compare(string(a.kind)+" "+a.identity, string(b.kind)+" "+b.identity)
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.handles), order) {
		c.handles.add(v.handles[key])
	}
	return c.size() - before
}

func (c *changes) size() int {
	return c.backends.size() + c.devices.size() + c.deployables.size() + c.handles.size()
}
