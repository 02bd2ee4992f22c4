package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Deployable is what is recorded of one, as far as Placement should know.
type Deployable struct {
	cyborg.Accelerator
	// Untouched says that nobody ever took it into service.
	Untouched bool
	// Outside is how many of its handles somebody has who got them without Placement.
	Outside int
}

// Wanted is how the providers of a host should be, sorted by name. Silent says that its agent has not been heard for long.
// This is the only place that decides it: every write of a provider comes from here, so that none forgets what another one
// had reserved.
//
// What was never taken into service needs no provider: a host shows many functions that nobody will ever schedule.
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

// closed says that nothing of it may be scheduled. An operation that changes it closes it from its beginning on: those that
// must be sure of that wait for Placement.
func closed(d *Deployable) bool {
	working := d.Claim != nil && (d.Claim.Kind == cyborg.OperationProgram || d.Claim.Kind == cyborg.OperationRetire)
	return working || d.Presence == cyborg.PresenceMissing || d.Lifecycle != cyborg.LifecycleReady || d.Admin == cyborg.AdministrationMaintaining ||
		d.Fence != nil || d.Protected != ""
}

// reserved is how many Placement must not give away because no handle would be left for them.
func reserved(d *Deployable, total int) int {
	present := 0
	for i := range d.Handles {
		if d.Handles[i].Presence == cyborg.PresencePresent {
			present++
		}
	}
	left := max(present-d.Outside, 0)
	return min(max(total-left, d.Outside, 0), total)
}
