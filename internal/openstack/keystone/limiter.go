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
	// maxRequests is the number of concurrent requests to Keystone: as many for
	// tokens in the cache, and as many for others.
	maxRequests = 32
	// maxRequestsOfClient is how many of the requests for other tokens one client
	// may cause at once.
	maxRequestsOfClient = maxRequests / 4
	// maxWaitingOfClient is how many requests of one client may be waiting or in
	// flight; the next is rejected.
	maxWaitingOfClient = 256
	// acquireTimeout is how long a request waits for its turn.
	acquireTimeout = 5 * time.Second
)

// limiter limits the requests to Keystone about unknown tokens, of each client
// and of all together. A client that makes up tokens waits for its own requests
// and hardly delays other clients.
type limiter struct {
	all *semaphore.Weighted

	mu      sync.Mutex
	clients map[string]*clientLimit // only of clients with a request that waits or is in flight
}

// clientLimit is the limit of one client.
type clientLimit struct {
	semaphore *semaphore.Weighted
	users     int // requests that wait or are in flight; guarded by limiter.mu
}

// newLimiter returns a limiter that no client uses yet.
func newLimiter() *limiter {
	return &limiter{all: semaphore.NewWeighted(maxRequests), clients: map[string]*clientLimit{}}
}

// acquire waits for a place of the client's, and returns the function that
// gives it back. The client's own limit comes first, so that a client that has
// reached it holds none of the common places. The error is of kind
// ErrUnavailable.
func (p *limiter) acquire(ctx context.Context, client string) (func(), error) {
	own, ok := p.enter(client)
	if !ok {
		return nil, overloaded()
	}

	if own.semaphore.Acquire(ctx, 1) != nil {
		p.release(client, own)
		return nil, overloaded()
	}

	if p.all.Acquire(ctx, 1) != nil {
		own.semaphore.Release(1)
		p.release(client, own)
		return nil, overloaded()
	}

	return func() {
		p.all.Release(1)
		own.semaphore.Release(1)
		p.release(client, own)
	}, nil
}

// enter counts a request of the client, and returns the client's limit. It
// returns false if too many are waiting.
func (p *limiter) enter(client string) (*clientLimit, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	own := p.clients[client]
	if own == nil {
		own = &clientLimit{semaphore: semaphore.NewWeighted(maxRequestsOfClient)}
		p.clients[client] = own
	}

	if own.users == maxWaitingOfClient {
		return nil, false
	}

	own.users++
	return own, true
}

// release ends a request of the client. A client without requests is forgotten,
// so that the map does not grow forever.
func (p *limiter) release(client string, own *clientLimit) {
	p.mu.Lock()
	defer p.mu.Unlock()

	own.users--
	if own.users == 0 {
		delete(p.clients, client)
	}
}

// errOverloaded tells an overloaded limiter from a Keystone that is away.
var errOverloaded = errors.New("too many tokens are being checked with Keystone to check this one, too")

// overloaded is the error for a request that got no place.
func overloaded() error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", errOverloaded).
		WithHint("Try again after the time in Retry-After.")
}
