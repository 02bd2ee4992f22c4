package merge

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

// noCleaning is that of a deployable whose handles cannot be cleaned.
const noCleaning Document = "null"

// cleaning returns how the handles of a deployable can be cleaned as that is recorded. A
// method that this release does not know is left out with a complaint. What is demanded
// after every holder stays as it is, also where no method covers it: nobody gets a handle
// then before an operator has seen to it.
func (v *Inventory) cleaning(p reported, r *cyborg.Cleaning) (Document, error) {
	if r == nil {
		return noCleaning, nil
	}

	known := cyborg.Cleaning{After: r.After, Methods: []cyborg.CleanMethod{}}
	if r.After != "" && !slices.Contains(cyborg.CleanMethods(), r.After) {
		v.complain(p.backend, "%s %s demands to be cleaned by %.80q after every holder, which is not known: it takes the strongest way", p.what, p.name, r.After)
		known.After = cyborg.CleanScrub
	}
	for _, method := range cyborg.CleanMethods() {
		if slices.Contains(r.Methods, method) {
			known.Methods = append(known.Methods, method)
		}
	}
	for _, method := range r.Methods {
		if !slices.Contains(cyborg.CleanMethods(), method) {
			v.complain(p.backend, "the way %.80q to clean %s %s is left out: it is not known", method, p.what, p.name)
		}
	}
	return DocumentOf(known, "{}")
}
