package agents

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg"
)

// sharePerIdentity is how many places of one kind each identity may have at
// once: one for a report, and one for its repetition after a connection broke.
const sharePerIdentity = 2

// places are what reports wait for. Nobody may have more than its share of
// them, so that nobody can take all.
type places struct {
	all  *semaphore.Weighted
	wait time.Duration

	mu   sync.Mutex
	held map[string]int // by identity; those that wait count as well
}

// newPlaces makes places for which reports wait no longer than the given time.
func newPlaces(count int, wait time.Duration) *places {
	return &places{all: semaphore.NewWeighted(int64(count)), wait: wait, held: map[string]int{}}
}

// acquire waits for a place. If none is free in time, the agent is sent away
// before it gives up by itself: a report that is recorded after the agent has
// gone would be acknowledged to nobody. The caller gives the place back with
// release.
func (p *places) acquire(w http.ResponseWriter, r *http.Request, identity string) (release func(), err error) {
	if !p.enter(identity) {
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "%d reports of this agent are being taken already", sharePerIdentity))
	}

	ctx, cancel := context.WithTimeout(r.Context(), p.wait)
	defer cancel()

	if err := p.all.Acquire(ctx, 1); err != nil {
		p.leave(identity)
		if r.Context().Err() != nil {
			return nil, err
		}
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "too many hosts report at once"))
	}

	return func() {
		p.all.Release(1)
		p.leave(identity)
	}, nil
}

// enter reports whether the identity has less than its share, and counts it.
func (p *places) enter(identity string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.held[identity] >= sharePerIdentity {
		return false
	}

	p.held[identity]++
	return true
}

// leave undoes enter.
func (p *places) leave(identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.held[identity]--; p.held[identity] == 0 {
		delete(p.held, identity)
	}
}

// later refuses a request for now. The agents are asked to come back at
// different times.
func later(w http.ResponseWriter, err *cyborg.Error) error {
	const spread = 5
	w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(spread))) //nolint:gosec // it spreads load, it protects nothing
	return err.WithHint("Send it again in a moment.")
}
