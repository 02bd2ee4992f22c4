package agents

import (
	"context"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// grants tells agents whether steps must be signed, and by whom. The answer is in
// every reply, so that an agent that has just started knows it before it takes a
// step.
type grants struct {
	valid time.Duration // for how long a grant is; 0 where none is needed
	read  func(ctx context.Context, within time.Duration) ([]cyborg.GrantKey, error)

	mu   sync.Mutex
	keys []cyborg.GrantKey
	at   time.Time // when keys were read
}

// keptKeys is for how long the keys are not read again: many agents send their
// heartbeats in the same second.
const keptKeys = time.Second

// signingMargin is for how long after it was seen last a process may still sign.
const signingMargin = 5 * time.Minute

// tell returns the answer.
func (g *grants) tell(ctx context.Context) (*agentapi.Grants, error) {
	if g.valid == 0 {
		return &agentapi.Grants{}, nil
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() || time.Since(g.at) > keptKeys {
		// The keys of processes that have ended are kept longer than agents need them.
		keys, err := g.read(ctx, g.valid+signingMargin)
		if err != nil {
			return nil, err
		}
		g.keys, g.at = keys, time.Now()
	}
	return &agentapi.Grants{Required: true, Keys: g.keys}, nil
}
