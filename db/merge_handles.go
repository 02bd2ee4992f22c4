package db

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// vanished is the fence of an accelerator whose device went away under its holder. It has no operation, and is lifted
// when the device is back or nobody holds it any more.
const vanished = "vanished while in use"

// goneUnderHolder says that somebody holds a handle of a deployable d that is missing.
const goneUnderHolder = `EXISTS (
	SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND holder_kind IS NOT NULL AND presence = 'missing')`

// handleKey is what a handle is known by on its host.
type handleKey struct {
	kind     cyborg.HandleKind
	identity string
}

type wantedHandle struct {
	backend    string
	deployable *tracked[deployableRow]
	report     cyborg.HandleReport
}

// finish settles the handles, once it is known which deployables are there, and the fences that follow from them.
func (v *inventory) finish() error {
	shown := map[handleKey]bool{}
	own := map[handleKey]uuid.UUID{} // the first deployable that shows the handle
	for _, w := range v.wanted {
		key := handleKey{w.report.Kind, w.report.Identity}
		if _, twice := own[key]; !twice {
			own[key] = w.deployable.row.UUID
		}
	}
	for key, h := range v.handles {
		if v.merged[h.row.DeployableUUID] && own[key] != h.row.DeployableUUID {
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
	case h.row.DeployableUUID == deployable.UUID:
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

func holding(holder string) string {
	if holder == "" {
		return ""
	}
	return ", held by " + holder
}

func (v *inventory) localName(deployable uuid.UUID) string {
	for name, p := range v.deployables {
		if p.row.UUID == deployable {
			return name
		}
	}
	return deployable.String()
}

// fences puts a fence around what went away under its holder, and lifts it when it is back.
func (v *inventory) fences() {
	lost := map[uuid.UUID]bool{}
	for _, h := range v.handles {
		if h.row.Holder != "" && h.row.Presence == cyborg.PresenceMissing {
			lost[h.row.DeployableUUID] = true
		}
	}
	for _, p := range v.deployables {
		row := &p.row
		switch fence := row.FenceReason; {
		case !v.merged[row.UUID]:
		case lost[row.UUID] && fence == nil:
			reason := vanished
			row.FenceReason = &reason
		case !lost[row.UUID] && fence != nil && *fence == vanished:
			row.FenceReason = nil
		}
	}
}
