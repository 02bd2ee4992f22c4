package inventory

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// A host is silent when its agent was last heard longer ago than
// Options.SilentAfter, by the clock of the database. That is computed where it
// is asked, with the condition of QueueAgentOf, and stored nowhere: a host falls
// silent without anybody writing it. Placement alone records it, see
// RecordSilentHosts, because a host that falls silent must change its providers.

// SilentHosts lists the hosts that are silent, the longest silent first.
func (s *Store) SilentHosts(ctx context.Context, limit int) ([]cyborg.Host, error) {
	found, err := s.readHosts(ctx, " WHERE NOT "+records.Within("h.last_seen", "$1::interval")+" ORDER BY h.last_seen, h.name LIMIT $2", records.Limit(limit))
	return found, s.db.Failure(ctx, err)
}

// LastSeen says when an agent was last heard, and whether it could take more
// work.
type LastSeen struct {
	At time.Time // time of its last message; zero where there was none
	// Busy is set where the agent is not silent and had no free slot for another
	// step when it was last heard.
	Busy    bool
	Revoked bool // its host's certificates were revoked
}

// LastSeen returns when a host's agent was last heard. The error is of kind
// ErrNotFound where there is no such host.
func (s *Store) LastSeen(ctx context.Context, host string) (LastSeen, error) {
	var h LastSeen
	err := s.db.Pool.QueryRow(ctx, `
		SELECT nullif(last_seen, 'epoch'), busy AND `+records.Within("last_seen", "$2::interval")+", "+RevokedSQL("h")+` FROM hosts h WHERE name = $1`,
		host, s.db.Options.SilentAfter).Scan((*zeronull.Timestamptz)(&h.At), &h.Busy, &h.Revoked)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, records.NoHost(host)
	}

	return h, s.db.Failure(ctx, err)
}
