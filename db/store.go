// Package db is the store: the only way into the records. It has the schema,
// the queries and all changes. Each change checks the state that it expects,
// and is written in one transaction with its events and claims.
//
// The package imports the root package, pgx and goose. It must never import a
// driver, Temporal or HTTP, and nothing that runs on an agent may import it.
package db

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cyborg-project/cyborg"
)

// Options are the settings of a store; the zero value works.
type Options struct {
	// MaxConns bounds the connections of the pool. One more connection listens for
	// events. 0 means 16.
	MaxConns int32
	// SilentAfter is how long a host or a service may be unheard before it counts
	// as silent. 0 means 25 s.
	SilentAfter time.Duration
	// DeployableName makes the name of a new deployable, which is also the name of
	// its resource provider; nil means <host>_<local name>. It must return
	// different names for different hosts.
	DeployableName func(host, local string) string
	// Tracer traces every statement of the pool; nil for none.
	Tracer pgx.QueryTracer
}

// Store keeps the records in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool     pool
	opts     Options
	log      *slog.Logger
	notifier *notifier
}

// Open connects to a database that Migrate has prepared. The error is of kind
// ErrUnavailable where the database does not answer, and of kind ErrInvalid
// where the URL cannot be used, or the schema is older or newer than this
// binary's or lacks a kind of operations.
func Open(ctx context.Context, url string, opts Options, log *slog.Logger) (*Store, error) {
	opts.MaxConns = cmp.Or(opts.MaxConns, 16)
	opts.SilentAfter = cmp.Or(opts.SilentAfter, 25*time.Second)
	if opts.DeployableName == nil {
		opts.DeployableName = func(host, local string) string { return host + "_" + local }
	}

	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the database URL cannot be used: %w", err)
	}

	config.MaxConns = opts.MaxConns
	session(config.ConnConfig)
	config.AfterConnect = scanTimesAsUTC

	// The listener's configuration is copied before the tracer is set: no caller
	// has asked for what the listener does.
	listener := config.ConnConfig.Copy()
	config.ConnConfig.Tracer = opts.Tracer

	connections, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the database URL cannot be used: %w", err)
	}

	s := &Store{pool: pool{connections}, opts: opts, log: log, notifier: newNotifier(listener, log)}

	// A wrong schema is refused here, before any statement fails on it.
	if err := s.check(ctx); err != nil {
		connections.Close()
		return nil, err
	}

	return s, nil
}

// session sets the parameters that the statements of this package rely on,
// unless the URL sets them.
func session(config *pgx.ConnConfig) {
	for name, value := range map[string]string{
		"application_name": "cyborg",
		"timezone":         "UTC",
		// A statement or a transaction that hangs would keep its host locked, and delay
		// the readers of the feed, for ever.
		"statement_timeout":                   "60s",
		"idle_in_transaction_session_timeout": "30s",
	} {
		if _, ok := config.RuntimeParams[name]; !ok {
			config.RuntimeParams[name] = value
		}
	}
}

// scanTimesAsUTC makes a connection return times in UTC, not in the local zone.
func scanTimesAsUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}

// check refuses a database that this binary cannot work with.
func (s *Store) check(ctx context.Context) error {
	conn, err := s.pool.connections.Acquire(ctx)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Release()
	return checkSchema(ctx, conn.Conn())
}

// Ping checks that the database answers. The error is of kind ErrUnavailable or
// ErrTimeout.
func (s *Store) Ping(ctx context.Context) error { return s.failure(ctx, s.pool.connections.Ping(ctx)) }

// Now returns the time of the database's clock, which sets all recorded times.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, s.failure(ctx, err)
}

// Close closes all connections and ends the notifications of Notify; calls in
// progress fail.
func (s *Store) Close() {
	s.notifier.close()
	s.pool.connections.Close()
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}
