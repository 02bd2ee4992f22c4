package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// FenceVanished is the reason of the fence around an accelerator whose device
// went missing while somebody held it. This fence belongs to no operation. It
// is lifted when the device is back, or when nobody holds the accelerator any
// more.
const FenceVanished = "vanished while in use"

// fences puts a fence around the deployables whose held handles have gone
// missing, and lifts it from those that have them back. A deployable that is
// fenced for another reason keeps that fence; see inventory.RemainingFence.
func (v *Inventory) fences() {
	lost := map[uuid.UUID]bool{}
	for _, h := range v.Handles {
		if h.row.Holder != "" && h.row.Presence == cyborg.PresenceMissing {
			lost[h.row.DeployableUUID] = true
		}
	}

	for _, p := range v.Deployables {
		row := &p.row
		fence := row.FenceReason
		switch {
		case !v.merged[row.UUID]: // the report does not describe it completely
		case lost[row.UUID] && fence == nil:
			reason := FenceVanished
			row.FenceReason = &reason
		case !lost[row.UUID] && fence != nil && *fence == FenceVanished:
			row.FenceReason = nil
		}
	}
}
