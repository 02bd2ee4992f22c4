package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Inventory is what is recorded of one host while a report or an observation is
// merged into it. It lives in memory: ingest.loadInventories reads it, a merge
// changes it, and Changes.Collect finds what has to be written.
//
// A merge never deletes anything. What a host no longer shows becomes missing,
// and only inventory.Store deletes it: Forget alone, or ForgetHost together
// with its host.
type Inventory struct {
	host        string
	Boot        string // boot id of the host
	Backends    map[string]*Tracked[BackendRow]
	Devices     map[string]*Tracked[DeviceRow]     // by identity
	Deployables map[string]*Tracked[DeployableRow] // by the driver's name
	Handles     map[HandleKey]*Tracked[HandleRow]

	// name makes the name of a new deployable. taken is shared by all hosts that
	// are merged in one transaction, so that no two of them take the same name.
	name  func(host, local string) string
	taken *Names

	// Booted says that the host has booted since the report that is recorded. The
	// caller of Merge sets it.
	Booted bool

	// Unsettled is set where something that was reported could not be recorded as
	// it is, but may be later. The host is then asked for its report again.
	Unsettled bool

	// excluded is how many names the deployables of this report exclude.
	excluded int

	// Replaced is set where another card was shown in the place of a recorded one.
	Replaced bool

	// Overtaken is set where an operation observed a device after the report was
	// made, so that the records of this device are newer. The host is asked for its
	// report again, because the device may have changed back since. A difference may
	// build on the report all the same: it mentions what was observed after it.
	Overtaken bool

	// Exceed is the highest sequence number of the operations' observations that
	// are newer than what is merged; 0 for none.
	Exceed int64

	// Unloaded counts what is recorded of the host and was not read. It is not zero
	// only where the inventory is loaded in part.
	Unloaded Counts

	// Observed are the devices that operations observed since the newest report, by
	// identity, with the sequence number of the last observation. It is filled only
	// where the inventory is loaded in part.
	Observed map[string]int64

	displaced  []shownPart            // deployables that are shown with another card than their own, for finish
	merged     map[uuid.UUID]bool     // deployables that the report shows, or shows to be missing
	wanted     []wantedHandle         // handles that the report shows, for finish
	Complaints map[string]*Complaints // what could not be recorded, by backend
}

// Counts counts the rows of a host.
type Counts struct {
	Devices, Deployables, Handles int
}

// MostRecorded is how much is recorded of one host, missing ones included: twice
// what a report may show. A host could otherwise show other devices each time, and
// each report would take longer than the one before.
func MostRecorded() Counts { return Counts{Devices: 4096, Deployables: 8192, Handles: 16384} }

// full reports whether no more of something can be recorded, and complains about
// the one that is left out.
func (v *Inventory) full(backend, what, name string, recorded, most int) bool {
	if recorded < most {
		return false
	}

	v.complain(backend, "%s %s is left out: %d are recorded of this host; forget those that are missing", what, name, recorded)
	return true
}

// Names are the names that are in use on any host.
type Names struct {
	Deployables  map[string]string // name of a deployable → its host
	Accelerators map[string]bool
}

// NewInventory returns the empty inventory of a host.
func NewInventory(host string, name func(host, local string) string, taken *Names) *Inventory {
	return &Inventory{
		host: host, name: name, taken: taken,
		Backends: map[string]*Tracked[BackendRow]{}, Devices: map[string]*Tracked[DeviceRow]{},
		Deployables: map[string]*Tracked[DeployableRow]{}, Handles: map[HandleKey]*Tracked[HandleRow]{},
		merged: map[uuid.UUID]bool{}, Complaints: map[string]*Complaints{}, Observed: map[string]int64{},
	}
}

// Merge merges a report. It returns false if the report has only a difference,
// and that difference does not fit the records. The inventory is then half
// changed and must be thrown away.
func (v *Inventory) Merge(r agentapi.Report) (merged bool, err error) {
	if r.Base == "" {
		return true, v.report(r)
	}
	return v.difference(r)
}

// difference merges the devices that changed since the report that r is based
// on, and leaves all others as they are. It returns false wherever the
// difference alone does not determine the result, so that the host is asked for
// its whole report.
func (v *Inventory) difference(r agentapi.Report) (merged bool, err error) {
	mentioned := map[string]bool{} // devices, by identity
	for _, identity := range r.Gone {
		mentioned[identity] = true
	}

	for _, b := range r.Content.Backends {
		known, ok := v.Backends[b.Name]
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

	// An operation changed these devices after the report that r is based on. Those
	// that it changed before r was made must be mentioned; r cannot know the others.
	for identity, sequence := range v.Observed {
		switch {
		case sequence > r.Sequence:
			v.Overtaken = true
		case !mentioned[identity]:
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
		if d, ok := v.Devices[identity]; ok {
			v.deviceMissing(d, r.Sequence)
		}
	}

	v.finish()

	// The agent learns of a complaint only from a whole report, in which it sees
	// the state of its backends.
	return !v.Unsettled && len(v.Complaints) == 0, nil
}

// movesFromUnmentioned reports whether the difference shows a deployable on
// another device than the recorded one without mentioning the recorded device,
// which may still show the deployable as well.
func (v *Inventory) movesFromUnmentioned(r agentapi.Report, mentioned map[string]bool) bool {
	unmentioned := map[uuid.UUID]bool{}
	for identity, d := range v.Devices {
		unmentioned[d.row.UUID] = !mentioned[identity]
	}

	for _, b := range r.Content.Backends {
		for _, d := range b.Devices {
			for _, part := range d.Deployables {
				p, ok := v.Deployables[part.Name]
				if ok && p.row.Presence == cyborg.PresencePresent && unmentioned[p.row.DeviceUUID] {
					return true
				}
			}
		}
	}

	return false
}

// report merges a whole report: everything that the backends of the host see.
func (v *Inventory) report(r agentapi.Report) error {
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
	for identity, d := range v.Devices {
		// A backend that failed does not know which devices are there.
		if !shown[identity] && v.Backends[d.row.Backend].row.State != cyborg.BackendFailed {
			v.deviceMissing(d, r.Sequence)
		}
	}

	if v.Booted {
		v.forgetSameHolders(r.Sequence)
	}
	v.finish()

	for name, complaints := range v.Complaints {
		b := v.Backends[name]
		b.row.Error = complaints.after(b.row.Error)
	}

	return nil
}

// Observation merges what an agent observed of one device after it had changed
// it, with the sequence number of that observation. changed tells whether the
// records were different in what a report shows.
func (v *Inventory) Observation(o cyborg.Observation) (changed bool, err error) {
	b, ok := v.Backends[o.Backend]
	if !ok { // the first report with this backend also shows the device
		return false, nil
	}

	if err := v.device(o.Backend, b.row.Driver, o.Device, o.Sequence); err != nil {
		return false, err
	}
	v.finish()

	var diff Changes
	changed = diff.Collect(v) > 0

	if d := v.Devices[o.Device.Identity]; d != nil {
		d.row.ObservedSeq = max(d.row.ObservedSeq, o.Sequence)
	}
	return changed, nil
}
