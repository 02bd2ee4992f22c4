package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Health is the state of a database, as `cyborg doctor` reports it.
type Health struct {
	// Release is the version of PostgreSQL.
	Release string
	Schema  SchemaStatus
	// ReadOnly is set where nothing can be written: a standby, or a database that
	// was made read-only.
	ReadOnly   bool
	Durability Durability
	// MissingKinds are the kinds of operations that this binary knows and the
	// database does not, NewerKinds those that only the database knows. A server
	// does not start with either.
	MissingKinds, NewerKinds []string
	// Denied lists the tables of the schema that the role may not read or write.
	Denied []string

	// DuplicateAgents are the agents that were refused in the last 30 s because
	// their host has another one.
	DuplicateAgents []RefusedAgent
	// Servers are the server processes that gave a sign of life in the last 30 s,
	// one for each of their roles. These two lists and the kinds are nil where the
	// schema is not this binary's, or a table may not be read.
	Servers []Server

	// Time is the database's clock at a moment between Asked and Answered, which
	// are by the clock of this process.
	Time, Asked, Answered time.Time
}

// Durability is what a server promises of what was committed.
type Durability struct {
	Fsync, FullPageWrites bool
	// SynchronousCommit is the setting of that name, for the role and the URL of
	// Cyborg.
	SynchronousCommit string
	// Standbys is the setting synchronous_standby_names: empty if no commit waits
	// for a standby.
	Standbys string
	// Synchronous is how many connected standbys have every commit, and Quorum how
	// many there are of which some have it. They are negative where the role may not
	// see that.
	Synchronous, Quorum int
}

// RefusedAgent is an agent whose host has another one.
type RefusedAgent struct {
	Host    string
	Address string // where the refused agent was heard from
	Known   string // where the host's agent was heard from
}

// Server is a server process in one of its roles.
type Server struct{ Host, Instance, Version string }

// CheckHealth looks at a database and changes nothing. The error is of kind
// ErrUnavailable where the database does not answer, and of kind ErrInvalid
// where the URL cannot be used or PostgreSQL is too old.
func CheckHealth(ctx context.Context, url string) (Health, error) {
	var h Health
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrInvalid, "the database URL cannot be used: %w", err)
	}

	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		failed := cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == noDatabase {
			failed = failed.WithHint("Make it with `createdb %s`, and then its schema with `cyborg migrate`; or correct database.url.", config.Database)
		}
		return h, failed
	}
	defer conn.Close(ctx) //nolint:errcheck // it was only read from

	if h.Schema, err = schemaStatus(ctx, conn); err != nil {
		return h, err
	}

	// The two clocks are compared by the caller, so the times around the query are
	// kept.
	h.Asked = time.Now()
	err = conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), clock_timestamp(),
			pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool`).Scan(&h.Release, &h.Time, &h.ReadOnly)
	h.Answered = time.Now()
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}

	// Without the right to all statistics, PostgreSQL shows the standbys, but not
	// their states.
	d := &h.Durability
	err = conn.QueryRow(ctx, `
		SELECT current_setting('fsync')::bool, current_setting('full_page_writes')::bool, current_setting('synchronous_commit'),
			current_setting('synchronous_standby_names'),
			CASE WHEN seen THEN (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync') ELSE -1 END,
			CASE WHEN seen THEN (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum') ELSE -1 END
		FROM pg_has_role('pg_read_all_stats', 'USAGE') seen`).
		Scan(&d.Fsync, &d.FullPageWrites, &d.SynchronousCommit, &d.Standbys, &d.Synchronous, &d.Quorum)
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrUnavailable, "the database's settings cannot be read: %w", err)
	}

	// Functions with the rights of their owner write to feed_epochs, so that a
	// server needs no rights that were granted after the migration that made it.
	rows, err := conn.Query(ctx, `
		SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p') AND c.relname <> 'feed_epochs'
			AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
				AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))
		ORDER BY c.relname`)
	if err == nil {
		h.Denied, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrUnavailable, "the database's privileges cannot be read: %w", err)
	}

	// The tables below exist only in this binary's schema.
	if h.Schema.Current != h.Schema.Latest || len(h.Denied) > 0 {
		return h, nil
	}

	if h.MissingKinds, h.NewerKinds, err = compareKinds(ctx, conn); err != nil {
		return h, err
	}

	rows, err = conn.Query(ctx, `
		SELECT r.host, r.address, h.agent_address FROM duplicate_agents r JOIN hosts h ON h.name = r.host
		WHERE `+records.Within("r.last_seen", "interval '30 s'")+` ORDER BY r.host, r.address`)
	if err == nil {
		h.DuplicateAgents, err = pgx.CollectRows(rows, pgx.RowToStructByPos[RefusedAgent])
	}
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrUnavailable, "the hosts' agents cannot be read: %w", err)
	}

	rows, err = conn.Query(ctx, `
		SELECT host, instance, version FROM services WHERE `+records.Within("last_seen", "interval '30 s'")+` ORDER BY host, instance`)
	if err == nil {
		h.Servers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Server])
	}
	if err != nil {
		return h, cyborg.Errorf(cyborg.ErrUnavailable, "the servers' processes cannot be read: %w", err)
	}

	return h, nil
}
