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

// QueueAgentOf reads into the work of an operation the agent that a host has, and
// since when the host is silent: the zero time where it is not. See
// records.Queue.
func QueueAgentOf(tx pgx.Tx, silentAfter time.Duration, host string, work *cyborg.Work) {
	records.Queue(tx, `
		SELECT instance, journal_opening, journal_writes, CASE WHEN NOT `+records.Within("last_seen", "$2::interval")+` THEN last_seen END
		FROM hosts WHERE name = $1`, host, silentAfter).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&work.Instance, (*zeronull.UUID)(&work.Journal.Opening), &work.Journal.Writes, (*zeronull.Timestamptz)(&work.HostSilentSince))
		if errors.Is(err, pgx.ErrNoRows) {
			return records.NoHost(host)
		}
		return err
	})
}

// LastSeen says when an agent was last heard, and whether it could take more
// work.
type LastSeen struct {
	At time.Time // time of its last message; zero where there was none
	// Busy is set where the agent is not silent and had no free slot for another
	// step when it was last heard.
	Busy bool
}

// LastSeen returns when a host's agent was last heard. The error is of kind
// ErrNotFound where there is no such host.
func (s *Store) LastSeen(ctx context.Context, host string) (LastSeen, error) {
	var h LastSeen
	err := s.db.Pool.QueryRow(ctx, `
		SELECT nullif(last_seen, 'epoch'), busy AND `+records.Within("last_seen", "$2::interval")+` FROM hosts WHERE name = $1`,
		host, s.db.Options.SilentAfter).Scan((*zeronull.Timestamptz)(&h.At), &h.Busy)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, records.NoHost(host)
	}

	return h, s.db.Failure(ctx, err)
}
