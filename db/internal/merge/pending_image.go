package merge

import "github.com/cyborg-project/cyborg"

// noPendingImage is that of a deployable whose last image is in effect.
const noPendingImage Document = "null"

// pendingImage returns the image of a deployable that does not take effect yet, as that is
// recorded; "" where the deployable cannot be recorded. What has to be done before it
// takes effect is recorded also where only a newer release knows it: people read it.
func (v *Inventory) pendingImage(p reported, r *cyborg.DeployableReport) (Document, error) {
	switch pending := r.PendingImage; {
	case pending == nil:
		return noPendingImage, nil
	case v.tooLarge(p, pending.BitstreamID, string(pending.Until)):
		return "", nil
	case pending.BitstreamID == "":
		v.complain(p.backend, "the pending image of %s %s is left out: it has no id", p.what, p.name)
		return noPendingImage, nil
	case pending.BitstreamID == r.BitstreamID: // it is in effect
		return noPendingImage, nil
	}
	return DocumentOf(r.PendingImage, "{}")
}
