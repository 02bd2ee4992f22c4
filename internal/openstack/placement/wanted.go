package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Deployable is the part of a recorded deployable that Placement should know.
type Deployable struct {
	cyborg.Accelerator

	// Untouched is true if nobody has ever taken the deployable into service.
	Untouched bool
	// HeldOutsideNova is how many of its handles are held by somebody who got them
	// without Placement.
	HeldOutsideNova int
	// Stuck is how many of its handles have still to be cleaned, or could not be taken back
	// from somebody who has them no more.
	Stuck int
}

// Wanted returns the providers that a host should have, sorted by name. silent
// is true if the host's agent has not been heard for long; everything is closed
// then. This is the only place that decides it, and every write of a provider
// comes from here: otherwise one writer could undo what another has reserved.
//
// The provider of a deployable that was never taken into service is optional,
// because a host may show many functions that nobody will ever schedule.
func Wanted(deployables []Deployable, silent bool) []Provider {
	out := make([]Provider, 0, len(deployables))
	for i := range deployables {
		d := &deployables[i]

		p := Provider{UUID: d.ProviderUUID, Name: d.ProviderName, Total: max(d.Specs.Num, 0), Traits: []string{Owner}, Optional: d.Untouched}

		for _, attribute := range d.Attributes {
			switch {
			case attribute.Key == "rc":
				p.Class = cmp.Or(p.Class, Class(attribute.Value))
			case strings.HasPrefix(attribute.Key, "trait"):
				if trait := Trait(attribute.Value); trait != "" {
					p.Traits = append(p.Traits, trait)
				}
			}
		}

		p.Class = cmp.Or(p.Class, classOf(d.DeviceType))
		p.Traits = union(p.Traits, nil)

		if p.Total == 0 {
			p.Class = ""
		}

		p.Reserved = reserved(d, p.Total)
		if silent || closed(d) {
			p.Reserved = p.Total
		}

		out = append(out, p)
	}

	slices.SortFunc(out, func(a, b Provider) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// closed reports whether nothing of the deployable may be scheduled. An
// operation that changes the deployable closes it from its beginning on; an
// operation that depends on this waits until Placement has it.
func closed(d *Deployable) bool {
	working := d.Claim != nil && d.Claim.Kind.ClosesPlacement()
	return working || d.Presence == cyborg.PresenceMissing || d.Lifecycle != cyborg.LifecycleReady || d.Admin == cyborg.AdministrationMaintaining ||
		d.Fence != nil || d.Protected != "" || cyborg.Unready(d.Conditions) != nil
}

// reserved returns how many units Placement must not give away, because no free
// handle would be left for them, or only one for somebody who has another
// accelerator that goes to one holder with it, or none at all because somebody has
// one that excludes it. What Nova has given out is not
// reserved as well: Placement would refuse to move that to another consumer, as
// Nova does when it migrates the instance.
func reserved(d *Deployable, total int) int {
	present, held := 0, 0
	for i := range d.Handles {
		if d.Handles[i].Presence == cyborg.PresencePresent {
			present++
		}
		if d.Handles[i].Holder != nil {
			held++
		}
	}

	taken := d.HeldOutsideNova + d.Stuck
	out := min(max(total-max(present-taken, 0), taken, 0), total)
	if len(d.ExcludedBy) > 0 || d.SameHolder != "" && (held > 0 || d.Stuck > 0 || len(d.HeldTogether) > 0) {
		out = max(out, total-max(held-d.HeldOutsideNova, 0))
	}
	return out
}
