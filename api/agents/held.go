package agents

import (
	"net/http"
	"sync"

	"github.com/cyborg-project/cyborg"
)

// held bounds the bytes of the reports that have arrived and are not recorded
// yet: however many hosts report at once, and however long the database takes,
// what waits for it fits into the memory.
type held struct {
	limit int64

	mu    sync.Mutex
	bytes int64
}

// take counts a report of that many bytes, and refuses it if there would be too
// many. The caller gives them back with release, when nothing of the report is
// kept any more.
func (h *held) take(w http.ResponseWriter, bytes int64) (release func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.bytes+bytes > h.limit {
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "reports of %d bytes wait to be recorded; with this one they would be more than %d",
			h.bytes, h.limit))
	}

	h.bytes += bytes

	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.bytes -= bytes
	}, nil
}
