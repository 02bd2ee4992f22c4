package agent

import "sync"

// verdict is what the conductor thinks of this agent.
type verdict int

const (
	unheard verdict = iota // nothing yet
	granted                // it is its host's agent
	refused                // the host has another one
)

// standing is what the conductor thought of this agent last. It takes steps only where it is granted: those of a host that
// has another agent are for that one.
type approval struct {
	mu    sync.Mutex
	last  verdict
	moved chan struct{} // closed when last is no longer what it was
}

func newApproval() *approval { return &approval{moved: make(chan struct{})} }

// set notes a verdict, and returns the one before.
func (s *approval) set(now verdict) (before verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.last
	if before != now {
		s.last = now
		close(s.moved)
		s.moved = make(chan struct{})
	}
	return before
}

// get returns the last verdict, and what is closed with the next one.
func (s *approval) get() (last verdict, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.moved
}
