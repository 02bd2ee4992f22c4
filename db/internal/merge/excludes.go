package merge

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

// mostExcluded is how many names the deployables of one host exclude in all. Each list
// of a host compares them with each other, so more would take seconds.
const mostExcluded = 4096

// excludes returns the names that a deployable excludes as they are recorded. What is
// no name can be nobody's, so it is left out with a complaint. It returns false where
// there are too many: without some of them, both a card and a part of it could be given
// out, so the deployable is treated like one of which something else is too large.
func (v *Inventory) excludes(p reported, reports []string) (names []string, few bool) {
	names = []string{}
	for _, name := range cyborg.SortExcludes(p.name, reports) {
		if !cyborg.IsName(name) {
			v.complain(p.backend, "of what %s %s excludes, %.80q is left out: that is no name", p.what, p.name, name)
			continue
		}
		names = append(names, name)
	}

	if len(names) > cyborg.MaxExcludes {
		v.complain(p.backend, "%s %s %s: it excludes %d others, and more than %d", p.what, p.name, p.fate(), len(names), cyborg.MaxExcludes)
		return nil, false
	}
	if v.excluded += len(names); v.excluded > mostExcluded {
		v.complain(p.backend, "%s %s %s: what its host shows excludes more than %d others in all", p.what, p.name, p.fate(), mostExcluded)
		return nil, false
	}
	return slices.Clip(names), true
}
