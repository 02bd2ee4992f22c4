package engine

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// timeline is the course of commits in PostgreSQL that one start of Temporal
// belongs to. Temporal does not do again what it remembers to have done. A
// standby that has taken the place of PostgreSQL may lack that, and its timeline
// is another one. So none of Temporal's connections may lead to another timeline,
// and Temporal starts over where one would. A connection never changes its
// timeline: it ends with its server, and a standby is refused until it is
// promoted. A restart of PostgreSQL begins no timeline, because it loses nothing.
type timeline struct {
	id   string
	left chan struct{} // closed when a connection was refused
	once sync.Once
}

// currentTimeline returns the timeline that a connection leads to.
func currentTimeline(ctx context.Context, conn *pgx.Conn) (*timeline, error) {
	id, err := timelineID(ctx, conn)
	if err != nil {
		return nil, err
	}
	return &timeline{id: id, left: make(chan struct{})}, nil
}

// check returns an error if a connection leads to another timeline.
func (t *timeline) check(ctx context.Context, conn *pgx.Conn) error {
	id, err := timelineID(ctx, conn)
	if err != nil {
		return err
	}

	if id != t.id {
		t.once.Do(func() { close(t.left) })
		return cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL is now on the timeline %s, and this Temporal began on %s", id, t.id)
	}
	return nil
}

// timelineID returns the identifier of PostgreSQL's cluster with the number of
// the timeline. Where PostgreSQL does not tell them, as some that are run by
// others, each of its starts counts as a timeline.
func timelineID(ctx context.Context, conn *pgx.Conn) (id string, err error) {
	err = conn.QueryRow(ctx, "SELECT system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()").Scan(&id)
	switch sqlState(err) {
	case "42501", "0A000": // insufficient_privilege, feature_not_supported
		err = conn.QueryRow(ctx, "SELECT 'of the start at ' || extract(epoch FROM pg_postmaster_start_time()) WHERE NOT pg_is_in_recovery()").Scan(&id)
	}

	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "cannot ask PostgreSQL for its timeline: %w", err)
	}
	return id, nil
}
