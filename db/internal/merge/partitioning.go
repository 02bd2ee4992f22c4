package merge

import (
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg"
)

// noPartitioning is that of a device that cannot be divided.
const noPartitioning Document = "null"

// partitioning returns how a device can be divided, and is, as that is recorded. A kind of
// parts that nobody could ask for is left out with a complaint. Where it cannot be said how
// the device is divided now, it counts as one that cannot be divided: a layout that lacked
// something would be another one.
func (v *Inventory) partitioning(p reported, r *cyborg.Partitioning) (Document, error) {
	if r == nil {
		return noPartitioning, nil
	}

	known := cyborg.Partitioning{Parts: []cyborg.PartKind{}, Layout: r.Layout.Normal()}
	for _, one := range r.Parts {
		why := partKindFault(one)
		switch {
		case slices.ContainsFunc(known.Parts, func(k cyborg.PartKind) bool { return k.Name == one.Name }):
			why = "another one has this name"
		case why == "" && len(known.Parts) == cyborg.MaxPartKinds:
			why = "there are too many"
		}
		if why != "" {
			v.complain(p.backend, "kind of parts %.80q of %s %s is left out: %s", one.Name, p.what, p.name, why)
			continue
		}
		one.Most = min(one.Most, cyborg.MaxParts) // no layout has more
		known.Parts = append(known.Parts, one)
	}

	for _, kind := range slices.Sorted(maps.Keys(known.Layout)) {
		if count := known.Layout[kind]; !cyborg.IsPartKind(kind) || count < 0 || len(known.Layout) > cyborg.MaxPartKinds {
			v.complain(p.backend, "%s %s counts as one that cannot be divided: it has %d parts of kind %.80q, among %d kinds",
				p.what, p.name, count, kind, len(known.Layout))
			return noPartitioning, nil
		}
	}
	return DocumentOf(known, "{}")
}

// partKindFault says why a kind of parts cannot be recorded; empty where it can.
func partKindFault(k cyborg.PartKind) string {
	switch {
	case !cyborg.IsPartKind(k.Name):
		return "that is no name"
	case k.Most < 1:
		return "the device can have none of it"
	case k.Description != cyborg.Sanitize(k.Description, longestText):
		return "its description is too long, or no text"
	}
	return ""
}
