package keystone

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cyborg-project/cyborg"
)

const (
	// atOnce is how many tokens Keystone is asked about at once: so many that were good lately, and so many others.
	atOnce = 32
	// atOnceOfOne is how many of these others one client may have sent.
	atOnceOfOne = atOnce / 4
	// mostOfOne is how many of one client may wait, with those that Keystone is asked about.
	mostOfOne = 256
	// placeLimit is how long one waits.
	placeLimit = 5 * time.Second
)

// places bound how many tokens Keystone is asked about at once of which nobody knows anything, of all clients together and of
// each: whoever makes up tokens waits for itself, and others hardly for it.
type places struct {
	all *semaphore.Weighted

	mu      sync.Mutex
	clients map[string]*share
}

// share is a client's part.
type share struct {
	places *semaphore.Weighted
	users  int
}

func newPlaces() *places {
	return &places{all: semaphore.NewWeighted(atOnce), clients: map[string]*share{}}
}

// take waits for a place of the client's, and returns what gives it back. The error is of kind ErrUnavailable.
func (p *places) take(ctx context.Context, client string) (func(), error) {
	own, ok := p.enter(client)
	if !ok {
		return nil, crowded()
	}
	if own.places.Acquire(ctx, 1) != nil {
		p.leave(client, own)
		return nil, crowded()
	}
	if p.all.Acquire(ctx, 1) != nil {
		own.places.Release(1)
		p.leave(client, own)
		return nil, crowded()
	}
	return func() {
		p.all.Release(1)
		own.places.Release(1)
		p.leave(client, own)
	}, nil
}

func (p *places) enter(client string) (*share, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.clients[client]
	if own == nil {
		own = &share{places: semaphore.NewWeighted(atOnceOfOne)}
		p.clients[client] = own
	}
	if own.users == mostOfOne {
		return nil, false
	}
	own.users++
	return own, true
}

func (p *places) leave(client string, own *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.users--; own.users == 0 {
		delete(p.clients, client)
	}
}

// errCrowded says that it is not Keystone that is away.
var errCrowded = errors.New("too many tokens are asked of Keystone to ask about this one")

func crowded() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", errCrowded).
		WithHint("Try again after the time in Retry-After.")
}
