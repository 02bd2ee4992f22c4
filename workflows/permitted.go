package workflows

import (
	"github.com/cyborg-project/cyborg"
)

// Permitted is an activity that the run of an operation may use, with the input
// that it is given, without its Addressee.
type Permitted struct {
	Activity string
	Input    any
}

// PermittedBy lists all that the run of an operation may have its host's agent
// do, undos included, and which images it may look for. It follows from the work
// alone: the conductor signs it before it gives the work to the run, and so to
// Temporal. Each kind lists what its workflow uses, made by the same functions.
func PermittedBy(work cyborg.Work) []Permitted {
	for _, w := range workflowTable {
		if w.Kind == work.Kind && w.permitted != nil {
			return w.permitted(work)
		}
	}
	return nil
}
