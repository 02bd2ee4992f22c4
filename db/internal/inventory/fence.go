package inventory

import "github.com/cyborg-project/cyborg/db/internal/merge"

// FenceUnconfirmed is the reason of the fence around an accelerator with a doubted
// handle. The fence belongs to the operation that used force, if one did.
const FenceUnconfirmed = "its host may still have it attached, and has not settled that yet"

// Doubted is an SQL condition on a handle: it is unconfirmed, and its host has not prepared
// it. Nobody knows then what else of the accelerator is in use. What its host has prepared,
// and has still to take back, is no reason to keep the other handles from anybody.
const Doubted = "unconfirmed_kind IS NOT NULL AND NOT prepared"

// RemainingFence is an SQL expression: the reason for which the deployable d
// stays fenced once the fence of a Program, or of a Bind that loaded an image,
// is lifted, or NULL. While an image was being loaded, a host may have come
// back with an attachment, or a device may have gone missing under its holder, or
// an attachment was undone on its host. Of these, the first counts.
const RemainingFence = "CASE WHEN EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND " + Doubted + ") THEN '" +
	FenceUnconfirmed + "' WHEN " + GoneUnderHolder + " THEN '" + merge.FenceVanished +
	"' ELSE (SELECT min(undone_reason) FROM attach_handles WHERE deployable_uuid = d.uuid) END"

// GoneUnderHolder is an SQL condition: somebody holds a missing handle of the
// deployable d.
const GoneUnderHolder = `EXISTS (
	SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND holder_kind IS NOT NULL AND presence = 'missing')`
