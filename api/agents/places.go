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

// maxDoorsOfOne is how many requests for certificates one address may have here at
// once. Two are worked on, and the others wait: all hosts of a rack may have the
// same address, but somebody without a certificate must not fill the memory.
const maxDoorsOfOne = 64

// places are what reports, and requests for certificates, wait for. Nobody may
// have more than its share of them, so that nobody can take all.
type places struct {
	what string // what waits, in the plural
	all  *semaphore.Weighted
	wait time.Duration
	// most is how many of one identity may be here, with those that wait because it
	// already has its share. Any more are refused at once.
	most int

	mu     sync.Mutex
	shares map[string]*share // by identity
}

// share is what one identity has of the places.
type share struct {
	places *semaphore.Weighted
	users  int // those that wait count as well
}

// newPlaces makes places for which nobody waits longer than the given time.
func newPlaces(what string, count int, wait time.Duration) *places {
	return &places{what: what, all: semaphore.NewWeighted(int64(count)), wait: wait, most: sharePerIdentity, shares: map[string]*share{}}
}

// newDoors makes the places for requests for certificates.
func newDoors(wait time.Duration) *places {
	p := newPlaces("requests for certificates", maxDoors, wait)
	p.most = maxDoorsOfOne
	return p
}

// acquire waits for a place. If none is free in time, the agent is sent away
// before it gives up by itself: a report that is recorded after the agent has
// gone would be acknowledged to nobody. The caller gives the place back with
// release.
func (p *places) acquire(ctx context.Context, w http.ResponseWriter, identity string) (release func(), err error) {
	own := p.enter(identity)
	if own == nil {
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "%d %s of this agent are being taken already", p.most, p.what))
	}

	waiting, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()

	err = own.places.Acquire(waiting, 1)
	if err == nil {
		if err = p.all.Acquire(waiting, 1); err != nil {
			own.places.Release(1)
		}
	}

	if err != nil {
		p.leave(identity)
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, later(w, cyborg.Errorf(cyborg.ErrOverloaded, "too many %s at once", p.what))
	}

	return func() {
		p.all.Release(1)
		own.places.Release(1)
		p.leave(identity)
	}, nil
}

// enter counts a user of the identity's share, and returns the share; nil if
// that has all its users.
func (p *places) enter(identity string) *share {
	p.mu.Lock()
	defer p.mu.Unlock()

	own, ok := p.shares[identity]
	if !ok {
		own = &share{places: semaphore.NewWeighted(sharePerIdentity)}
		p.shares[identity] = own
	}

	if own.users >= p.most {
		return nil
	}

	own.users++
	return own
}

// leave undoes enter.
func (p *places) leave(identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	own := p.shares[identity]
	if own.users--; own.users == 0 {
		delete(p.shares, identity)
	}
}

// later refuses a request for now. The agents are asked to come back at
// different times.
func later(w http.ResponseWriter, err *cyborg.Error) error {
	const spread = 5
	w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(spread))) //nolint:gosec // it spreads load, it protects nothing
	return err.WithHint("Send it again in a moment.")
}
