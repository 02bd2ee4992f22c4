package inventory

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

// OnHost is an SQL condition on a handle h, the same as cyborg.WorkHandle.OnHost: its host
// has to attach it before its holder can use it, because the holder is the host, or because
// it prepares the handle. Only then has the journal of the host an entry. It is NULL for a
// handle that nobody holds.
const OnHost = "(h.holder_kind = 'host' OR h.prepared AND h.holder_kind IS NOT NULL)"

// Prepares says that the host of the accelerator attaches its handles for this holder,
// which is not the host itself.
func (a *Accelerator) Prepares(holder cyborg.Holder) bool {
	return holder.Kind != cyborg.HolderHost && a.Preparation != nil
}

// ConfirmedOrFree is Confirmed for who needs one handle only: what its host has prepared,
// and has still to take back, keeps nobody from a free one.
func (a *Accelerator) ConfirmedOrFree() error {
	doubted := slices.ContainsFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Unconfirmed != nil && !h.Prepared })
	if !doubted && a.FreeHandle() != nil {
		return nil
	}
	return a.Confirmed()
}

// Unsettled says that its host has still to take a handle of the accelerator back that it
// had prepared for somebody who does not have it any more.
func (a *Accelerator) Unsettled() bool {
	return slices.ContainsFunc(a.Handles, func(h cyborg.AttachHandle) bool { return h.Prepared && h.Unconfirmed != nil })
}
