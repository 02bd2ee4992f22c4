package merge

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

// invalidCode is the code of a condition whose own code is none. Its level counts.
const invalidCode = "invalid"

// conditions returns the conditions of a deployable as they are recorded, each at most
// once and the most severe first. It complains about what it leaves out. A level that
// only a newer release has counts as the most severe one, so that nobody gets what is
// not to be given out.
func (v *Inventory) conditions(p reported, reports []cyborg.Condition) (Document, error) {
	var known []cyborg.Condition
	for _, c := range reports {
		if !cyborg.IsConditionCode(c.Code) {
			v.complain(p.backend, "a condition of %s %s counts as %s: %.80q is no code", p.what, p.name, invalidCode, c.Code)
			c.Code = invalidCode
		}
		if !slices.Contains(cyborg.ConditionLevels(), c.Level) {
			v.complain(p.backend, "condition %s of %s %s counts as %s: there is no level %.80q", c.Code, p.what, p.name, cyborg.ConditionUnready, c.Level)
			c.Level = cyborg.ConditionUnready
		}
		known = append(known, cyborg.Condition{Code: c.Code, Level: c.Level, Message: cyborg.Sanitize(c.Message, longestText)})
	}

	known = cyborg.SortConditions(known)
	if most := cyborg.MaxConditions; len(known) > most {
		v.complain(p.backend, "%d conditions of %s %s are left out: it has more than %d", len(known)-most, p.what, p.name, most)
		known = known[:most]
	}
	return DocumentOf(known, "[]")
}
