package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// HandleKey identifies a handle on its host.
type HandleKey struct {
	Kind     cyborg.HandleKind
	Identity string
}

// wantedHandle is a handle that the report shows, with the deployable that
// shows it.
type wantedHandle struct {
	backend    string
	deployable *Tracked[DeployableRow]
	report     cyborg.HandleReport
	info       Document // of the report
}

// finish merges the handles that were collected, once all deployables of the
// report are known, and then sets or lifts the fences that follow from them.
//
// Handles that their recorded deployable no longer shows become missing before
// the reported ones are merged: only then may a handle move to another
// deployable. One that is too large to be recorded there stays where it was.
func (v *Inventory) finish() {
	v.displace()

	shown := map[HandleKey]bool{}
	owner := map[HandleKey]uuid.UUID{} // the first deployable that shows the handle
	stays := map[HandleKey]bool{}
	for _, w := range v.wanted {
		key := HandleKey{w.report.Kind, w.report.Identity}
		if _, twice := owner[key]; !twice {
			owner[key] = w.deployable.row.UUID
			stays[key] = len(w.info) > largestDocument
		}
	}

	for key, h := range v.Handles {
		if v.merged[h.row.DeployableUUID] && !stays[key] && owner[key] != h.row.DeployableUUID {
			h.row.Presence = cyborg.PresenceMissing
		}
	}

	for _, w := range v.wanted {
		v.handle(w, shown)
	}

	v.fences()
}

// handle merges one reported handle. It leaves the handle with its recorded
// deployable if somebody holds the handle, or if that deployable still shows
// it.
func (v *Inventory) handle(w wantedHandle, shown map[HandleKey]bool) {
	key := HandleKey{w.report.Kind, w.report.Identity}
	deployable := &w.deployable.row

	if !cyborg.IsName(string(key.Kind)) || !cyborg.IsName(key.Identity) {
		v.complain(w.backend, "a handle without kind or identity, or with %.80q and %.80q for them, of %q is left out",
			key.Kind, key.Identity, deployable.LocalName)
		return
	}

	if shown[key] {
		v.complain(w.backend, "handle %s %s is shown twice; only the first one counts", key.Kind, key.Identity)
		return
	}

	shown[key] = true

	h, ok := v.Handles[key]
	if v.tooLargeDocument(reported{w.backend, "handle", key.Identity, ok}, w.info) {
		return
	}

	switch {
	case !ok:
		if v.full(w.backend, "handle", key.Identity, len(v.Handles)+v.Unloaded.Handles, MostRecorded().Handles) {
			return
		}
		h = &Tracked[HandleRow]{row: HandleRow{UUID: uuid.New(), Host: v.host, Kind: key.Kind, Identity: key.Identity}}
		v.Handles[key] = h
	case h.row.DeployableUUID == deployable.UUID: // it stays where it is
	case h.row.Holder != "" || h.row.Presence == cyborg.PresencePresent:
		v.Unsettled = true
		v.complain(w.backend, "handle %s %s of %q is left out: it belongs to %q%s", key.Kind, key.Identity, deployable.LocalName,
			localName{v, h.row.DeployableUUID}, holding(h.row.Holder))
		return
	}

	h.row.DeployableUUID, h.row.Info, h.row.Presence = deployable.UUID, w.info, cyborg.PresencePresent
	h.row.Companions = v.companions(w)
}

// holding names the holder in a complaint, if there is one.
func holding(holder string) string {
	if holder == "" {
		return ""
	}
	return ", held by " + holder
}

// localName is the driver's name of a deployable. It is looked for only where a
// complaint is kept.
type localName struct {
	inventory  *Inventory
	deployable uuid.UUID
}

func (n localName) String() string {
	for name, p := range n.inventory.Deployables {
		if p.row.UUID == n.deployable {
			return name
		}
	}
	return n.deployable.String()
}
