package server

import (
	"context"
	"log/slog"
	"time"

	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/grant"
)

const (
	// grantMargin is for how long a grant is valid beyond the longest wait of a step
	// for its agent: what passes between the signature and that wait.
	grantMargin = time.Minute
	// keyInterval is how often a process records that its key is in use.
	keyInterval = time.Minute
	// keyKept is for how long the key of a process that has ended is kept beyond the
	// validity of its grants. A run whose grant was signed by a key that nobody knows
	// any more gets one for what its operation had to do at the beginning.
	keyKept = 24 * time.Hour
)

// drawGrantKey draws the key with which this process signs what operations may
// have hosts do, and records it: agents learn it with the answers to their
// heartbeats, and must know it when the first step comes.
//
// It does so also where grants are off. Another server may have told an agent that
// they are required: servers are restarted one by one.
func (s *server) drawGrantKey(ctx context.Context) error {
	if s.config.Conductor.Grants == config.GrantsOff {
		s.Log.WarnContext(ctx, "agents take whatever Temporal gives them, signed or not; who can write to Temporal can have any host do anything",
			slog.String("hint", "Set conductor.grants to required."))
	}

	valid := s.limits.Undo + s.limits.AgentWait + grantMargin
	s.grants = activities.Grants{Signer: grant.NewSigner(), Valid: valid, Kept: valid + keyKept}
	return s.recordGrantKey(ctx)
}

// grantsTold is for how long a grant is valid, as agents are told; 0 where they need
// none.
func (s *server) grantsTold() time.Duration {
	if s.config.Conductor.Grants == config.GrantsOff {
		return 0
	}
	return s.grants.Valid
}

func (s *server) recordGrantKey(ctx context.Context) error {
	return s.store.RecordGrantKey(ctx, s.grants.Signer.Key(), s.grants.Kept)
}

// grantKey returns the part that keeps the key of this process recorded.
func (s *server) grantKey() Part {
	return Part{Name: "grant key", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(keyInterval)
		defer ticker.Stop()

		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}

			if err := s.recordGrantKey(ctx); err != nil && ctx.Err() == nil {
				s.Log.WarnContext(ctx, "the key of this process is not recorded as in use", slog.String("error", err.Error()))
			}
		}
	}}
}
