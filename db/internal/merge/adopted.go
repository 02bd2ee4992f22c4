package merge

import (
	"encoding/json"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// AdoptedBackend is the backend of devices that were adopted from OpenStack and
// that no report has shown yet. No agent has a backend of that name; it is
// deleted with its last device.
const AdoptedBackend = "openstack"

// matchAdopted finds the adopted devices and deployables that a whole report
// shows, whatever the driver calls them: a device by its control path, and a
// deployable by one of its handles. A match takes the name that the driver
// gives it, and keeps its UUIDs, its resource provider and its accelerator's
// name.
func (v *Inventory) matchAdopted(r agentapi.Report) error {
	if _, adopted := v.Backends[AdoptedBackend]; !adopted {
		return nil
	}

	for _, b := range r.Content.Backends {
		if b.State != cyborg.BackendOK {
			continue
		}

		for _, d := range b.Devices {
			if err := v.matchAdoptedDevice(d); err != nil {
				return err
			}

			for _, part := range d.Deployables {
				v.matchAdoptedDeployable(part)
			}
		}
	}

	return nil
}

// matchAdoptedDevice renames the adopted device that has the same control path
// as a reported device which is not recorded yet.
func (v *Inventory) matchAdoptedDevice(r cyborg.DeviceReport) error {
	if _, known := v.Devices[r.Identity]; known || !cyborg.IsName(r.Identity) {
		return nil
	}

	text, err := json.Marshal(r.ControlPath.Info)
	if err != nil {
		return err
	}

	path, err := respell(text)
	if err != nil {
		return err
	}

	for identity, d := range v.Devices {
		if d.row.Backend == AdoptedBackend && d.row.ControlPathKind == r.ControlPath.Kind && d.row.ControlPathInfo == path {
			delete(v.Devices, identity)
			d.row.Identity = r.Identity
			v.Devices[r.Identity] = d
			return nil
		}
	}

	return nil
}

// matchAdoptedDeployable renames the adopted deployable that has a handle of a
// reported deployable which is not recorded yet.
func (v *Inventory) matchAdoptedDeployable(r cyborg.DeployableReport) {
	if _, known := v.Deployables[r.Name]; known || !cyborg.IsName(r.Name) {
		return
	}

	for _, h := range r.Handles {
		handle, ok := v.Handles[HandleKey{h.Kind, h.Identity}]
		if !ok {
			continue
		}

		for local, p := range v.Deployables {
			if p.row.UUID == handle.row.DeployableUUID && v.adopted(p) {
				delete(v.Deployables, local)
				p.row.LocalName = r.Name
				v.Deployables[r.Name] = p
				return
			}
		}
	}
}

// adopted reports whether no report has shown the deployable's device yet.
func (v *Inventory) adopted(p *Tracked[DeployableRow]) bool {
	for _, d := range v.Devices {
		if d.row.UUID == p.row.DeviceUUID {
			return d.row.Backend == AdoptedBackend
		}
	}
	return false
}
