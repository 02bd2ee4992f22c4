package engine

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// timeline is the course of commits in PostgreSQL that one start of Temporal
// belongs to. Temporal does not do again what it remembers to have done. A
// standby that has taken the place of PostgreSQL may lack that, and its timeline
// is another one. So none of Temporal's connections may lead to another timeline,
// and Temporal ends where one would. A connection never changes its timeline: it
// ends with its server, and a standby is refused until it is promoted. A restart
// of PostgreSQL begins no timeline, because it loses nothing.
type timeline string

// failedOver is the error of a connection that leads to another timeline.
type failedOver struct{ from, to timeline }

func (f failedOver) Error() string {
	return fmt.Sprintf("PostgreSQL has failed over, and may lack what this Temporal remembers: it began on the timeline %s, and this is %s; start again",
		f.from, f.to)
}

// check returns failedOver if a connection leads to another timeline.
func (t timeline) check(ctx context.Context, conn *pgx.Conn) error {
	current, err := currentTimeline(ctx, conn)
	if err == nil && current != t {
		return failedOver{from: t, to: current}
	}
	return err
}

// currentTimeline returns the timeline that a connection leads to: the identifier
// of PostgreSQL's cluster with the number of the timeline. Where PostgreSQL does
// not tell them, as some that are run by others, each of its starts counts as a
// timeline.
func currentTimeline(ctx context.Context, conn *pgx.Conn) (id timeline, err error) {
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
