package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// deployable merges one deployable of device d and remembers its handles for
// finish, which needs to know all deployables first.
func (v *Inventory) deployable(backend string, d *Tracked[DeviceRow], r cyborg.DeployableReport, sequence int64) error {
	specs, err := DocumentOf(r.Specs, "{}")
	if err != nil {
		return err
	}

	attributes, err := DocumentOf(r.Attributes, "[]")
	if err != nil {
		return err
	}

	p, ok := v.Deployables[r.Name]
	this := reported{backend, "deployable", r.Name, ok}
	if v.tooLarge(this, r.BitstreamID, r.ProgramSet, r.SameHolder) || v.tooLargeDocument(this, specs, attributes) {
		return nil
	}

	pending, err := v.pendingImage(this, &r)
	if err != nil || pending == "" {
		return err
	}

	excludes, few := v.excludes(this, r.Excludes)
	if !few {
		return nil
	}

	conditions, err := v.conditions(this, r.Conditions)
	if err != nil {
		return err
	}

	preparation, err := v.preparation(this, r.Preparation)
	if err != nil || v.tooLargeDocument(this, preparation) {
		return err
	}

	cleaning, err := v.cleaning(this, r.Cleaning)
	if err != nil {
		return err
	}

	part := shownPart{
		backend: backend, on: d, report: r, excludes: excludes, specs: specs, attributes: attributes, pending: pending, conditions: conditions,
		preparation: preparation, cleaning: cleaning,
	}
	for _, h := range r.Handles {
		info, err := DocumentOf(h.Info, "{}")
		if err != nil {
			return err
		}
		part.infos = append(part.infos, info)
	}

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
		v.Deployables[r.Name] = p
	// An operation observed the deployable's present device after this report.
	case p.row.DeviceUUID != d.row.UUID && v.observedSince(p.row.DeviceUUID, sequence):
		v.Unsettled = true
		return nil
	case p.row.DeviceUUID != d.row.UUID && v.isOfAnother(p, d):
		v.displaced = append(v.displaced, part)
		return nil
	}

	v.show(p, part)
	return nil
}

// shownPart is a deployable as a report shows it.
type shownPart struct {
	backend  string
	on       *Tracked[DeviceRow]
	report   cyborg.DeployableReport
	infos    []Document // of its handles
	excludes []string

	specs, attributes, pending, conditions, preparation, cleaning Document
}

// show records a deployable as it is shown, and remembers its handles.
func (v *Inventory) show(p *Tracked[DeployableRow], part shownPart) {
	row, r := &p.row, part.report
	row.DeviceUUID, row.Presence = part.on.row.UUID, cyborg.PresencePresent
	row.Specs, row.Attributes, row.BitstreamID, row.PendingImage = part.specs, part.attributes, r.BitstreamID, part.pending
	row.Conditions, row.Preparation, row.Cleaning = part.conditions, part.preparation, part.cleaning
	row.Protected, row.ProgramSet, row.SameHolder, row.Excludes = cyborg.Sanitize(r.Protected, LongestError), r.ProgramSet, r.SameHolder, part.excludes
	if row.ProgramSet == "" { // by default one image changes the whole device
		row.ProgramSet = part.on.row.Identity
	}

	// The deployable was seen in this boot. From that, the database's trigger
	// deployables_image can tell an image that was lost at a boot from one that
	// somebody has replaced.
	if row.ImageBoot != nil {
		row.ImageBoot = &v.Boot
	}

	v.merged[row.UUID] = true
	for i, h := range r.Handles {
		v.wanted = append(v.wanted, wantedHandle{backend: part.backend, deployable: p, report: h, info: part.infos[i]})
	}
}

// newDeployable returns a deployable that was never seen before, with its name.
// It returns nil where a deployable of another host has that name, or too many
// are recorded.
func (v *Inventory) newDeployable(backend, local string) *Tracked[DeployableRow] {
	if v.full(backend, "deployable", local, len(v.Deployables)+v.Unloaded.Deployables, MostRecorded().Deployables) {
		return nil
	}

	name := v.name(v.host, local)
	if other, taken := v.taken.Deployables[name]; taken {
		v.complain(backend, "deployable %q is left out: its name %q belongs to one of host %s", local, name, other)
		return nil
	}

	v.taken.Deployables[name] = v.host
	row := DeployableRow{
		UUID: uuid.New(), Host: v.host, Name: name, LocalName: local, ProviderUUID: cyborg.ProviderUUID(name), Accelerator: name,
	}

	// The accelerator is named like the deployable, unless an operator has given
	// that name to another accelerator.
	if v.taken.Accelerators[name] {
		row.Accelerator = name + "~" + row.UUID.String()[:8]
	}

	v.taken.Accelerators[row.Accelerator] = true
	return &Tracked[DeployableRow]{row: row}
}

// mergedName reports whether this report has already shown a deployable of that
// name, on this device or another one.
func (v *Inventory) mergedName(local string) bool {
	p, ok := v.Deployables[local]
	return ok && p.row.Presence == cyborg.PresencePresent && v.merged[p.row.UUID]
}

// administration returns how a new deployable of a device is administered: in
// maintenance if all other deployables of the device are, because an operator
// has then taken the whole device out of use, and enabled otherwise. It copies
// the reason and the end of the maintenance from the deployable whose name
// comes first.
func (v *Inventory) administration(device uuid.UUID) administrationRow {
	enabled := administrationRow{Administration: cyborg.AdministrationEnabled}
	var first *DeployableRow

	for _, p := range v.Deployables {
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

// deployableMissing marks a deployable that is no longer shown as missing.
func (v *Inventory) deployableMissing(p *Tracked[DeployableRow]) {
	p.row.Presence = cyborg.PresenceMissing
	v.merged[p.row.UUID] = true
}

// forgetSameHolders empties what the deployables that this report does not show have
// in common with others, because the host has booted: the kernel numbers IOMMU groups
// anew, and what has an old number now may be another group. What an operation
// observed later is of this boot. A backend that failed has shown nothing: what it has
// may well be there, and in the same group.
func (v *Inventory) forgetSameHolders(sequence int64) {
	stays := map[uuid.UUID]bool{}
	for _, d := range v.Devices {
		stays[d.row.UUID] = d.row.ObservedSeq > sequence || v.Backends[d.row.Backend].row.State == cyborg.BackendFailed
	}

	for _, p := range v.Deployables {
		shown := v.merged[p.row.UUID] && p.row.Presence == cyborg.PresencePresent
		if !shown && !stays[p.row.DeviceUUID] {
			p.row.SameHolder = ""
		}
	}
}
