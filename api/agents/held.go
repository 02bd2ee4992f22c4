package agents

import (
	"net/http"
	"sync"

	"github.com/cyborg-project/cyborg"
)

// held bounds the memory of the reports that have arrived and are not recorded
// yet: however many hosts report at once, and however long the database takes,
// what waits for it fits into the memory. A part of them is the most that one
// peer may have, so that it cannot have the reports of all others refused.
type held struct {
	limit int64
	each  int64 // of one peer

	mu     sync.Mutex
	bytes  int64
	byPeer map[string]int64
}

// newHeld returns the bound for all, with that for each peer.
func newHeld(limit, each int64) *held {
	return &held{limit: limit, each: each, byPeer: map[string]int64{}}
}

// take counts a report that takes about that many bytes, and refuses it if there
// would be too many. A single one is never too many. shared says that the peer may
// be many agents, which nothing tells apart at this point, so it has no part of
// its own. The caller gives the bytes back with release, when nothing of the
// report is kept any more.
func (h *held) take(w http.ResponseWriter, peer string, shared bool, bytes int64) (release func(), err error) {
	most := h.each
	if shared {
		most = h.limit
	}
	bytes = min(bytes, most)

	h.mu.Lock()
	defer h.mu.Unlock()

	switch {
	case !shared && h.byPeer[peer]+bytes > h.each:
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "reports of this agent of %d bytes wait to be recorded; with this one they would be more than %d",
			h.byPeer[peer], h.each))
	case h.bytes+bytes > h.limit:
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "reports of %d bytes wait to be recorded; with this one they would be more than %d",
			h.bytes, h.limit))
	}

	h.bytes += bytes
	h.byPeer[peer] += bytes

	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()

		h.bytes -= bytes
		if h.byPeer[peer] -= bytes; h.byPeer[peer] == 0 {
			delete(h.byPeer, peer)
		}
	}, nil
}
