package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// device merges one device with its deployables. It leaves the device as it is
// if an operation observed something newer, or if the device would move to
// another backend while it is in use.
func (v *Inventory) device(backend, driver string, r cyborg.DeviceReport, sequence int64) error {
	if !cyborg.IsName(r.Identity) {
		v.complain(backend, "a device without identity, or with %.80q for one, (%.80s %.80s) is left out", r.Identity, r.Vendor, r.Model)
		return nil
	}

	board, err := DocumentOf(r.BoardInfo, "{}")
	if err != nil {
		return err
	}

	path, err := DocumentOf(r.ControlPath.Info, "{}")
	if err != nil {
		return err
	}

	d, ok := v.Devices[r.Identity]
	this := reported{backend, "device", r.Identity, ok}
	partitioning, err := v.partitioning(this, r.Partitioning)
	if err != nil {
		return err
	}
	if v.tooLarge(this, deviceTexts(&r)...) || v.tooLargeDocument(this, board, path, partitioning) {
		return nil
	}

	switch {
	case !ok:
		if v.full(backend, "device", r.Identity, len(v.Devices)+v.Unloaded.Devices, MostRecorded().Devices) {
			return nil
		}
		d = &Tracked[DeviceRow]{row: DeviceRow{UUID: uuid.New(), Host: v.host, Identity: r.Identity}}
		v.Devices[r.Identity] = d
	case d.row.ObservedSeq > sequence:
		v.Overtaken, v.Exceed = true, max(v.Exceed, d.row.ObservedSeq)
		return nil
	case d.row.Fingerprint.Other(r.Fingerprint):
		v.replaced(backend, d, r, sequence)
		return nil
	case d.row.Backend != backend && d.row.Backend != AdoptedBackend && v.busy(d.row.UUID):
		v.Unsettled = true
		v.complain(backend, "device %s stays with backend %s as long as it is in use", r.Identity, d.row.Backend)
		return nil
	}

	// From here on the device is recorded as it was reported.
	node := r.NUMANode
	if node != nil && int(int32(*node)) != *node {
		v.complain(backend, "device %s is recorded without its NUMA node: %d is out of range", r.Identity, *node)
		node = nil
	}

	row := &d.row
	row.Backend, row.Driver, row.Type, row.Presence = backend, driver, r.Type, cyborg.PresencePresent
	row.VendorID, row.ProductID, row.Vendor, row.Model, row.NUMANode = r.VendorID, r.ProductID, r.Vendor, r.Model, node
	row.BoardInfo, row.ControlPathKind, row.ControlPathInfo, row.Partitioning = board, r.ControlPath.Kind, path, partitioning
	row.Fingerprint, row.ReplacedBy = row.Fingerprint.Learn(r.Fingerprint), nil

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
	for name, p := range v.Deployables {
		if p.row.DeviceUUID == row.UUID && !shown[name] {
			v.deployableMissing(p)
		}
	}

	return nil
}

// replaced marks a device as missing in whose place another card was shown.
func (v *Inventory) replaced(backend string, d *Tracked[DeviceRow], r cyborg.DeviceReport, sequence int64) {
	v.deviceMissing(d, sequence)
	v.keepOrForget(backend, r.Identity, d, r.Fingerprint)
}

// keepOrForget says of a missing device which other card is in its place. As long as
// somebody has the device, its records stay as they are, and what is shown of the
// other card is left out: it must not become what that one has. Whatever ends that has
// the host asked for its report (inventory.QueueWantReportOfReplaced). A device that
// nobody has is forgotten at once (inventory.QueueForgetReplaced), and the host reports
// again, so that the other card is recorded as new.
func (v *Inventory) keepOrForget(backend, left string, d *Tracked[DeviceRow], other cyborg.Fingerprint) {
	by := cyborg.Sanitize(other.String(), LongestError)
	d.row.ReplacedBy = &by
	v.Replaced = true

	var why string
	switch {
	case v.busy(d.row.UUID):
		why = "which is still in use; detach that one, or put it back"
	case v.novaGives(d.row.UUID):
		why = "which is in Nova's whitelist; take that one out of it, or put it back"
	default:
		v.Unsettled = true
		return
	}
	v.complain(backend, "%s (%s) is left out: it is in the place of another card (%s), %s", left, other, d.row.Fingerprint, why)
}

// isOfAnother reports whether the recorded device of the deployable is another card
// than d. One card may be shown as another device, such as by its virtual function
// alone: then its serial number is the same.
func (v *Inventory) isOfAnother(p *Tracked[DeployableRow], d *Tracked[DeviceRow]) bool {
	was := v.deviceOf(p)
	if was == nil {
		return false
	}
	before, now := was.row.Fingerprint, d.row.Fingerprint
	return before.Other(now) && (before.Serial == "" || before.Serial != now.Serial)
}

// deviceOf returns the recorded device of a deployable, if it was loaded.
func (v *Inventory) deviceOf(p *Tracked[DeployableRow]) *Tracked[DeviceRow] {
	for _, d := range v.Devices {
		if d.row.UUID == p.row.DeviceUUID {
			return d
		}
	}
	return nil
}

// displace decides about the deployables that were shown with another card than their
// own, once all devices are known. Where their own card is gone, it was replaced by
// that one. Where it is there, the part has moved, unless somebody has it.
func (v *Inventory) displace() {
	for _, part := range v.displaced {
		p := v.Deployables[part.report.Name]
		was := v.deviceOf(p)
		switch {
		case v.mergedName(part.report.Name):
			v.complain(part.backend, "deployable %q of device %s is shown twice; only the first one counts", part.report.Name, part.on.row.Identity)
		case was.row.Presence == cyborg.PresenceMissing:
			v.keepOrForget(part.backend, part.report.Name, was, part.on.row.Fingerprint)
		case p.row.Claimed || p.row.NovaGives || v.held(p.row.UUID):
			v.Unsettled = true
			v.complain(part.backend, "%s of device %s is left out: somebody has that of device %s, which is another card",
				part.report.Name, part.on.row.Identity, was.row.Identity)
		default:
			v.show(p, part)
		}
	}
}

// novaGives reports whether a deployable of the device is in the whitelist of Nova.
func (v *Inventory) novaGives(device uuid.UUID) bool {
	for _, p := range v.Deployables {
		if p.row.DeviceUUID == device && p.row.NovaGives {
			return true
		}
	}
	return false
}

// busy reports whether a deployable of the device is held or claimed, or the device is
// being divided.
func (v *Inventory) busy(device uuid.UUID) bool {
	for _, d := range v.Devices {
		if d.row.UUID == device && d.row.PartitionOperation != nil {
			return true
		}
	}
	for _, p := range v.Deployables {
		if p.row.DeviceUUID == device && (p.row.Claimed || v.held(p.row.UUID)) {
			return true
		}
	}
	return false
}

// held reports whether a handle of the deployable has a holder.
func (v *Inventory) held(deployable uuid.UUID) bool {
	for _, h := range v.Handles {
		if h.row.DeployableUUID == deployable && h.row.Holder != "" {
			return true
		}
	}
	return false
}

// observedSince reports whether an operation observed the device later than at
// that sequence number.
func (v *Inventory) observedSince(device uuid.UUID, sequence int64) bool {
	for _, d := range v.Devices {
		if d.row.UUID == device {
			return d.row.ObservedSeq > sequence
		}
	}
	return false
}

// deviceMissing marks a device that is no longer shown, and its deployables, as
// missing, unless an operation observed the device later.
func (v *Inventory) deviceMissing(d *Tracked[DeviceRow], sequence int64) {
	if d.row.ObservedSeq > sequence {
		v.Overtaken, v.Exceed = true, max(v.Exceed, d.row.ObservedSeq)
		return
	}

	d.row.Presence, d.row.ReplacedBy = cyborg.PresenceMissing, nil
	for _, p := range v.Deployables {
		if p.row.DeviceUUID == d.row.UUID {
			v.deployableMissing(p)
		}
	}
}
