package chaos_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// checkJournals returns an error where an agent has told that its journal was lost,
// or is an old copy, and nothing explains that. What a journal has told is on the
// disk, so neither a kill nor lost power explains it. The faults of the last two
// rounds count, because a report may come when the round is already at rest.
func (k *checker) checkJournals(events []event, injected []injection) error {
	recent := injected[k.before:]
	k.before, k.last = k.last, len(injected)

	if k.judged == nil {
		k.judged = map[cyborg.Cursor]bool{}
	}
	return lostJournal(events, k.judged, recent)
}

// lostJournal judges the events that were not judged yet.
func lostJournal(events []event, judged map[cyborg.Cursor]bool, injected []injection) error {
	for _, e := range events {
		if e.axis != cyborg.AxisJournal || judged[e.cursor] {
			continue
		}
		judged[e.cursor] = true

		host := strings.TrimPrefix(e.subject, "host ")
		if !slices.ContainsFunc(injected, func(i injection) bool { return i.replacesJournal(host) }) {
			return fmt.Errorf("the agent of %s has lost its journal, or what it had told of it (event %s), and nobody has put another one in its place", host, e.cursor)
		}
	}
	return nil
}

// replacesJournal reports whether the fault puts another journal in the place of
// that of a host: an older one, or that of a second agent.
func (f fault) replacesJournal(host string) bool {
	return f.target == host && slices.Contains([]faultKind{old, second}, f.faultKind)
}
