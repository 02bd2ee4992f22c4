package temporalauth

import (
	"sync"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// counts says how many of something each identity has open. All certificates of an
// identity count together, and so do all callers without one.
type counts struct {
	mu sync.Mutex
	of map[identity.Identity]int // without those that have none
}

// begin counts one more, and reports whether the identity may have that many. The
// caller then calls end once.
func (c *counts) begin(who identity.Identity, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[who] >= most {
		return false
	}
	if c.of == nil {
		c.of = map[identity.Identity]int{}
	}
	c.of[who]++
	return true
}

// end counts one less.
func (c *counts) end(who identity.Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[who]--; c.of[who] == 0 {
		delete(c.of, who)
	}
}
