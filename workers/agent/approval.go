package agent

import "sync"

// verdict says whether the conductor takes this agent for its host's agent.
type verdict int

const (
	undecided verdict = iota // the conductor has not answered yet
	granted                  // this agent is its host's agent
	refused                  // the host has another agent
)

// approval holds the conductor's last verdict. The agent takes steps only while
// it is granted: the steps of a host that has another agent belong to that one.
type approval struct {
	mu   sync.Mutex
	last verdict
	// changed is closed, and replaced, when last changes.
	changed chan struct{}
}

// newApproval returns an approval on which the conductor has not decided yet.
func newApproval() *approval { return &approval{changed: make(chan struct{})} }

// set records a verdict and returns the one before.
func (a *approval) set(now verdict) (before verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()

	before = a.last
	if before != now {
		a.last = now
		close(a.changed)
		a.changed = make(chan struct{})
	}

	return before
}

// get returns the last verdict, and a channel that is closed when it changes.
func (a *approval) get() (last verdict, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last, a.changed
}
