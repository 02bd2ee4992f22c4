package agents

import (
	"net/http"
	"sync"

	"github.com/cyborg-project/cyborg"
)

// transfers bounds how many images each host fetches at once. Each needs memory
// and a connection to the image's source for as long as the host likes.
type transfers struct {
	limit int // of one host

	mu     sync.Mutex
	byHost map[string]int
}

// begin counts a transfer to the host, and refuses it if there would be too
// many. The caller calls end exactly once.
func (t *transfers) begin(w http.ResponseWriter, host string) (end func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.byHost[host] >= t.limit {
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "host %q fetches %d images here already", host, t.limit))
	}
	t.byHost[host]++

	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		if t.byHost[host]--; t.byHost[host] == 0 {
			delete(t.byHost, host)
		}
	}, nil
}
