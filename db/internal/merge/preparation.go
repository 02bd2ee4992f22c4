package merge

import (
	"slices"

	"github.com/cyborg-project/cyborg"
)

const (
	// noPreparation is that of a deployable whose handles are given out as they are.
	noPreparation Document = "null"
	// mostValues is how many values a parameter has at most.
	mostValues = 256
	// mostCompanions is how many functions go with one handle at most.
	mostCompanions = 64
)

// preparation returns how a deployable is prepared as that is recorded. A parameter that
// nobody could check is left out with a complaint: the deployable can be given out
// without it.
func (v *Inventory) preparation(p reported, r *cyborg.Preparation) (Document, error) {
	if r == nil {
		return noPreparation, nil
	}

	var known []cyborg.Parameter
	for i := range r.Parameters {
		one := &r.Parameters[i]
		why := parameterFault(one)
		switch {
		case slices.ContainsFunc(known, func(k cyborg.Parameter) bool { return k.Name == one.Name }):
			why = "another one has this name"
		case why == "" && len(known) == cyborg.MaxParameters:
			why = "there are too many"
		}
		if why != "" {
			v.complain(p.backend, "parameter %.80q of %s %s is left out: %s", one.Name, p.what, p.name, why)
			continue
		}
		known = append(known, *one)
	}
	return DocumentOf(cyborg.Preparation{Parameters: known}, "{}")
}

// parameterFault says why a parameter cannot be recorded; empty where it can.
func parameterFault(p *cyborg.Parameter) string {
	switch {
	case !cyborg.IsParameterName(p.Name):
		return "that is no name"
	case !slices.Contains(cyborg.ParameterTypes(), p.Type):
		return "its type is not known"
	case p.Help != cyborg.Sanitize(p.Help, longestText):
		return "its help is too long, or no text"
	case p.Type == cyborg.ParameterInteger && p.Min > p.Max:
		return "it takes no number"
	case p.Type == cyborg.ParameterChoice && (len(p.Values) == 0 || len(p.Values) > mostValues || slices.ContainsFunc(p.Values, notAValue)):
		return "its values cannot be chosen"
	}
	return ""
}

// notAValue says that a parameter cannot have this value.
func notAValue(text string) bool {
	return text == "" || len(text) > cyborg.LongestParameter || text != cyborg.Sanitize(text, cyborg.LongestParameter)
}

// companions returns the functions that go with a handle as they are recorded.
func (v *Inventory) companions(w wantedHandle) []string {
	with := w.report.With
	if len(with) > mostCompanions {
		v.complain(w.backend, "%d functions that go with handle %s are left out: there are more than %d", len(with)-mostCompanions, w.report.Identity, mostCompanions)
		with = with[:mostCompanions]
	}

	addresses := make([]string, len(with))
	for i, address := range with {
		addresses[i] = address.String()
	}
	return addresses
}
