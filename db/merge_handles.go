package db

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// fenceVanished is the reason of the fence around an accelerator whose device
// went missing while somebody held it. This fence belongs to no operation. It
// is lifted when the device is back, or when nobody holds the accelerator any
// more.
const fenceVanished = "vanished while in use"

// goneUnderHolder is an SQL condition: somebody holds a missing handle of the
// deployable d.
const goneUnderHolder = `EXISTS (
	SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND holder_kind IS NOT NULL AND presence = 'missing')`

// handleKey identifies a handle on its host.
type handleKey struct {
	kind     cyborg.HandleKind
	identity string
}

// wantedHandle is a handle that the report shows, with the deployable that
// shows it.
type wantedHandle struct {
	backend    string
	deployable *tracked[deployableRow]
	report     cyborg.HandleReport
}

// finish merges the handles that were collected, once all deployables of the
// report are known, and then sets or lifts the fences that follow from them.
//
// Handles that their recorded deployable no longer shows become missing before
// the reported ones are merged: only then may a handle move to another
// deployable.
func (v *inventory) finish() error {
	shown := map[handleKey]bool{}
	owner := map[handleKey]uuid.UUID{} // the first deployable that shows the handle
	for _, w := range v.wanted {
		key := handleKey{w.report.Kind, w.report.Identity}
		if _, twice := owner[key]; !twice {
			owner[key] = w.deployable.row.UUID
		}
	}

	for key, h := range v.handles {
		if v.merged[h.row.DeployableUUID] && owner[key] != h.row.DeployableUUID {
			h.row.Presence = cyborg.PresenceMissing
		}
	}

	for _, w := range v.wanted {
		if err := v.handle(w, shown); err != nil {
			return err
		}
	}

	v.fences()
	return nil
}

// handle merges one reported handle. It leaves the handle with its recorded
// deployable where somebody holds it, or where that deployable still shows it.
func (v *inventory) handle(w wantedHandle, shown map[handleKey]bool) error {
	key := handleKey{w.report.Kind, w.report.Identity}
	deployable := &w.deployable.row

	if !cyborg.IsName(string(key.kind)) || !cyborg.IsName(key.identity) {
		v.complain(w.backend, "a handle without kind or identity, or with %.80q and %.80q for them, of %q is left out",
			key.kind, key.identity, deployable.LocalName)
		return nil
	}

	if shown[key] {
		v.complain(w.backend, "handle %s %s is shown twice; only the first one counts", key.kind, key.identity)
		return nil
	}

	shown[key] = true

	h, ok := v.handles[key]
	switch {
	case !ok:
		h = &tracked[handleRow]{row: handleRow{UUID: uuid.New(), Host: v.host, Kind: key.kind, Identity: key.identity}}
		v.handles[key] = h
	case h.row.DeployableUUID == deployable.UUID: // it stays where it is
	case h.row.Holder != "" || h.row.Presence == cyborg.PresencePresent:
		v.unsettled = true
		v.complain(w.backend, "handle %s %s of %q is left out: it belongs to %q%s", key.kind, key.identity, deployable.LocalName,
			v.localName(h.row.DeployableUUID), holding(h.row.Holder))
		return nil
	}

	info, err := documentOf(w.report.Info, "{}")
	if err != nil {
		return err
	}

	h.row.DeployableUUID, h.row.Info, h.row.Presence = deployable.UUID, info, cyborg.PresencePresent
	return nil
}

// holding names the holder in a complaint, if there is one.
func holding(holder string) string {
	if holder == "" {
		return ""
	}
	return ", held by " + holder
}

// localName returns the driver's name of a deployable.
func (v *inventory) localName(deployable uuid.UUID) string {
	for name, p := range v.deployables {
		if p.row.UUID == deployable {
			return name
		}
	}
	return deployable.String()
}

// fences puts a fence around the deployables whose held handles have gone
// missing, and lifts it from those that have them back. A deployable that is
// fenced for another reason keeps that fence; see remainingFence.
func (v *inventory) fences() {
	lost := map[uuid.UUID]bool{}
	for _, h := range v.handles {
		if h.row.Holder != "" && h.row.Presence == cyborg.PresenceMissing {
			lost[h.row.DeployableUUID] = true
		}
	}

	for _, p := range v.deployables {
		row := &p.row
		fence := row.FenceReason
		switch {
		case !v.merged[row.UUID]: // the report does not describe it completely
		case lost[row.UUID] && fence == nil:
			reason := fenceVanished
			row.FenceReason = &reason
		case !lost[row.UUID] && fence != nil && *fence == fenceVanished:
			row.FenceReason = nil
		}
	}
}
