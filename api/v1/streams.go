package v1

import (
	"sync"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
)

const (
	// streamFraction is the part of all places for event streams that one caller
	// may have, and the part that is kept for admins: a tenth.
	streamFraction = 10
	// fewestStreams is how many one caller may have at least: a caller looks at
	// several things at once, and reconnects before the server has noticed the end
	// of a stream.
	fewestStreams = 4
)

// streams has the places of event streams. A stream keeps its place for as long
// as its caller likes, so callers have shares, and only admins may take the
// last places.
type streams struct {
	limit   int // of all
	others  int // of all callers who are not admins
	forEach int // of each caller

	mu       sync.Mutex
	open     int
	byCaller map[string]int // by the caller's id
	taken    int            // by callers who are not admins
}

// newStreams divides the places.
func newStreams(limit int) *streams {
	reserve := max(1, limit/streamFraction)
	return &streams{
		limit: limit, others: max(1, limit-reserve), forEach: max(fewestStreams, limit/streamFraction), byCaller: map[string]int{},
	}
}

// take takes a place for the caller. The caller of take must call release
// exactly once. The error is of kind ErrOverloaded and says which limit is
// reached.
func (s *streams) take(caller auth.Caller) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	admin := caller.Role == auth.Admin

	switch {
	case s.byCaller[caller.ID] >= s.forEach:
		return nil, cyborg.Errorf(cyborg.ErrOverloaded, "%s has %d event streams open here already, as many as one caller may", caller.Name, s.forEach).
			WithHint("Close one of them, or try another replica.")
	case s.open >= s.limit, !admin && s.taken >= s.others:
		return nil, cyborg.Errorf(cyborg.ErrOverloaded, "%d event streams are open here already", s.open).
			WithHint("Try again later, or at another replica.")
	}

	s.open++
	s.byCaller[caller.ID]++
	if !admin {
		s.taken++
	}

	return func() { s.release(caller.ID, admin) }, nil
}

// release gives a place back.
func (s *streams) release(id string, admin bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.open--
	if !admin {
		s.taken--
	}
	if s.byCaller[id]--; s.byCaller[id] == 0 {
		delete(s.byCaller, id)
	}
}
