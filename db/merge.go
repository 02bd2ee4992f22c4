package db

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// inventory is what is recorded of one host while a report or an observation is
// merged into it. It lives in memory: loadInventories reads it, a merge changes
// it, and changes.collect finds what has to be written.
//
// A merge never deletes anything. What a host no longer shows becomes missing,
// and only Forget deletes it, or ForgetHost together with its host.
type inventory struct {
	host        string
	boot        string // boot id of the host
	backends    map[string]*tracked[backendRow]
	devices     map[string]*tracked[deviceRow]     // by identity
	deployables map[string]*tracked[deployableRow] // by the driver's name
	handles     map[handleKey]*tracked[handleRow]

	// name makes the name of a new deployable. taken is shared by all hosts that
	// are merged in one transaction, so that no two of them take the same name.
	name  func(host, local string) string
	taken *names

	// unsettled is set where something that was reported could not be recorded as
	// it is, but may be later. The host is then asked for its report again.
	unsettled bool

	// exceed is the highest sequence number of the operations' observations that
	// are newer than what is merged; 0 for none.
	exceed int64

	// observed are the identities of the devices that operations observed since the
	// newest report. It is filled only where the inventory is loaded in part.
	observed []string

	merged     map[uuid.UUID]bool  // deployables that the report shows, or shows to be missing
	wanted     []wantedHandle      // handles that the report shows, for finish
	complaints map[string][]string // what could not be recorded, by backend
}

// names are the names that are in use on any host.
type names struct {
	deployables  map[string]string // name of a deployable → its host
	accelerators map[string]bool
}

// newInventory returns the empty inventory of a host.
func newInventory(host string, name func(host, local string) string, taken *names) *inventory {
	return &inventory{
		host: host, name: name, taken: taken,
		backends: map[string]*tracked[backendRow]{}, devices: map[string]*tracked[deviceRow]{},
		deployables: map[string]*tracked[deployableRow]{}, handles: map[handleKey]*tracked[handleRow]{},
		merged: map[uuid.UUID]bool{}, complaints: map[string][]string{},
	}
}

// merge merges a report. It returns false where the report tells only a
// difference and that difference does not fit the records; the inventory is
// then half changed and must be thrown away.
func (v *inventory) merge(r cyborg.Report) (merged bool, err error) {
	if r.Base == "" {
		return true, v.report(r)
	}
	return v.difference(r)
}

// difference merges the devices that changed since the report that r is based
// on, and leaves all others as they are. It returns false wherever the
// difference alone does not determine the result, so that the host is asked for
// its whole report.
func (v *inventory) difference(r cyborg.Report) (merged bool, err error) {
	mentioned := map[string]bool{} // devices, by identity
	for _, identity := range r.Gone {
		mentioned[identity] = true
	}

	for _, b := range r.Content.Backends {
		known, ok := v.backends[b.Name]
		if !ok || known.row.Driver != b.Driver || known.row.State != cyborg.BackendOK {
			return false, nil
		}

		for _, d := range b.Devices {
			if mentioned[d.Identity] {
				return false, nil
			}

			mentioned[d.Identity] = true
		}
	}

	if v.movesFromUnmentioned(r, mentioned) {
		return false, nil
	}

	// An operation changed these devices after the report that r is based on.
	for _, identity := range v.observed {
		if !mentioned[identity] {
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

	// The agent learns of a complaint only from a whole report, in which it sees
	// the state of its backends.
	return !v.unsettled && len(v.complaints) == 0, nil
}

// movesFromUnmentioned reports whether the difference shows a deployable on
// another device than the recorded one without mentioning the recorded device,
// which may still show the deployable as well.
func (v *inventory) movesFromUnmentioned(r cyborg.Report, mentioned map[string]bool) bool {
	unmentioned := map[uuid.UUID]bool{}
	for identity, d := range v.devices {
		unmentioned[d.row.UUID] = !mentioned[identity]
	}

	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			for _, part := range d.Deployables {
				p, ok := v.deployables[part.Name]
				if ok && p.row.Presence == cyborg.PresencePresent && unmentioned[p.row.DeviceUUID] {
					return true
				}
			}
		}
	}

	return false
}

// report merges a whole report: everything that the backends of the host see.
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

	v.disableAbsent(r)
	for identity, d := range v.devices {
		// A backend that failed does not know which devices are there.
		if !shown[identity] && v.backends[d.row.Backend].row.State != cyborg.BackendFailed {
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

// The error of a backend shows what could not be recorded. It is kept short
// enough to read in a table; the lengths are in characters.
const (
	longestComplaint = 300  // one complaint
	longestError     = 1000 // all of them, joined
)

// abridge joins texts into one that is short enough to read: it shows the first
// ten and says how many more there are.
func abridge(texts []string) string {
	const most = 10
	if len(texts) > most {
		texts = append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", len(texts)-most))
	}

	return cyborg.Sanitize(strings.Join(texts, "; "), longestError)
}

// observation merges what an agent observed of one device after it had changed
// it, with the sequence number of that observation.
func (v *inventory) observation(o cyborg.Observation) error {
	b, ok := v.backends[o.Backend]
	if !ok { // the first report with this backend also shows the device
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

// complain notes that a part of what a backend reported is not recorded. The
// complaints are shown as the error of the backend.
func (v *inventory) complain(backend, format string, args ...any) {
	v.complaints[backend] = append(v.complaints[backend], cyborg.Sanitize(fmt.Sprintf(format, args...), longestComplaint))
}

// backend records what is reported of a backend itself, without its devices.
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
	if b.row.Services == nil { // the column does not allow null
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

// disableAbsent disables the backends that the report no longer has.
func (v *inventory) disableAbsent(r cyborg.Report) {
	for name, b := range v.backends {
		if !slices.ContainsFunc(r.Content.Backends, func(other cyborg.BackendReport) bool { return other.Name == name }) {
			b.row.State, b.row.Error, b.row.Reported = cyborg.BackendDisabled, "", false
		}
	}
}

// device merges one device with its deployables. It leaves the device as it is
// where an operation observed something newer, and where the device would move
// to another backend while it is in use.
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

	// From here on the device is recorded as it was reported.
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

	shown := map[string]bool{} // deployables, by the driver's name
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

	// The device was reported completely: whatever it does not show is missing.
	for name, p := range v.deployables {
		if p.row.DeviceUUID == row.UUID && !shown[name] {
			v.deployableMissing(p)
		}
	}

	return nil
}

// busy reports whether a deployable of the device is held or claimed.
func (v *inventory) busy(device uuid.UUID) bool {
	for _, p := range v.deployables {
		if p.row.DeviceUUID == device && (p.row.Claimed || v.held(p.row.UUID)) {
			return true
		}
	}
	return false
}

// held reports whether a handle of the deployable has a holder.
func (v *inventory) held(deployable uuid.UUID) bool {
	for _, h := range v.handles {
		if h.row.DeployableUUID == deployable && h.row.Holder != "" {
			return true
		}
	}
	return false
}

// mergedName reports whether this report has already shown a deployable of that
// name, on this device or another one.
func (v *inventory) mergedName(local string) bool {
	p, ok := v.deployables[local]
	return ok && p.row.Presence == cyborg.PresencePresent && v.merged[p.row.UUID]
}

// deployable merges one deployable of device d and remembers its handles for
// finish, which needs to know all deployables first.
func (v *inventory) deployable(backend string, d *tracked[deviceRow], r cyborg.DeployableReport, sequence int64) error {
	p, ok := v.deployables[r.Name]
	switch {
	case !cyborg.IsName(r.Name):
		v.complain(backend, "a deployable without name, or with %.80q for one, of device %s is left out", r.Name, d.row.Identity)
		return nil
	case !ok:
		p = v.newDeployable(backend, r.Name)
		if p == nil {
			return nil
		}

		p.row.administrationRow = v.administration(d.row.UUID)
		v.deployables[r.Name] = p
	// An operation observed the deployable's present device after this report.
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
	row.ProgramSet = r.ProgramSet
	if row.ProgramSet == "" { // by default one image changes the whole device
		row.ProgramSet = d.row.Identity
	}

	// The deployable was seen in this boot. By that the database's trigger
	// deployables_image tells an image that was lost at a boot from one that
	// somebody has replaced.
	if row.ImageBoot != nil {
		row.ImageBoot = &v.boot
	}

	v.merged[row.UUID] = true
	for _, h := range r.Handles {
		v.wanted = append(v.wanted, wantedHandle{backend: backend, deployable: p, report: h})
	}

	return nil
}

// newDeployable returns a deployable that was never seen before, with its name.
// It returns nil where a deployable of another host has that name.
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

	// The accelerator is named like the deployable, unless an operator has given
	// that name to another accelerator.
	if v.taken.accelerators[name] {
		row.Accelerator = name + "~" + row.UUID.String()[:8]
	}

	v.taken.accelerators[row.Accelerator] = true
	return &tracked[deployableRow]{row: row}
}

// administration returns how a new deployable of a device is administered: in
// maintenance where all other deployables of the device are, because an
// operator then took the whole device out of use, and enabled otherwise. With
// several in maintenance it copies the reason and the end from the first by
// name.
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

// observedSince reports whether an operation observed the device later than at
// that sequence number.
func (v *inventory) observedSince(device uuid.UUID, sequence int64) bool {
	for _, d := range v.devices {
		if d.row.UUID == device {
			return d.row.ObservedSeq > sequence
		}
	}
	return false
}

// deviceMissing marks a device that is no longer shown, and its deployables, as
// missing, unless an operation observed the device later.
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

// deployableMissing marks a deployable that is no longer shown as missing.
func (v *inventory) deployableMissing(p *tracked[deployableRow]) {
	p.row.Presence = cyborg.PresenceMissing
	v.merged[p.row.UUID] = true
}

// changes collects what a merge of one or several hosts has to write.
type changes struct {
	backends    pending[backendRow]
	devices     pending[deviceRow]
	deployables pending[deployableRow]
	handles     pending[handleRow]
}

// collect adds what differs from the records in the inventory of one host, and
// returns how many rows that is. The order is fixed, so that two transactions
// write the same rows in the same order.
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

// size returns how many rows are to be written.
func (c *changes) size() int {
	return c.backends.size() + c.devices.size() + c.deployables.size() + c.handles.size()
}
