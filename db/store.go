// Package db is the store: the only way into the records. It holds the schema, the queries, and every change, each one
// guarded by the state it expects and written in one transaction with its events and claims.
//
// It imports the root package, pgx and goose. It must never import a driver, Temporal or HTTP, and nothing that runs on
// an agent may import it.
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

// Options are the choices of a store; the zero value works.
type Options struct {
	// MaxConns bounds the connections; one more listens for events. 0 means 16.
	MaxConns int32
	// SilentAfter is for how long a host or a service may be unheard before it counts as silent. 0 means 25 s.
	SilentAfter time.Duration
	// DeployableName makes the name of a new deployable, which is also its resource provider's; nil means
	// <host>_<local name>. It must give different names for different hosts.
	DeployableName func(host, local string) string
	// Tracer, where given, is told of every statement.
	Tracer pgx.QueryTracer
}

// Store keeps the records in PostgreSQL. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	opts     Options
	log      *slog.Logger
	notifier *notifier
}

// Open connects to a database that Migrate has prepared. The error is of kind ErrUnavailable where the database does not
// answer, and of kind ErrInvalid where its schema is older or newer than this binary's.
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
	listener := config.ConnConfig.Copy() // before the tracer: what it does is no work of a caller
	config.ConnConfig.Tracer = opts.Tracer

	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the database URL cannot be used: %w", err)
	}
	s := &Store{pool: pool, opts: opts, log: log, notifier: newNotifier(listener, log)}
	if err := s.check(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// session sets what our statements rely on, unless the URL says otherwise.
func session(config *pgx.ConnConfig) {
	for name, value := range map[string]string{
		"application_name": "cyborg",
		"timezone":         "UTC",
		// A statement or a transaction that hangs would hold its host, and the feed's readers, for ever.
		"statement_timeout":                   "60s",
		"idle_in_transaction_session_timeout": "30s",
	} {
		if _, ok := config.RuntimeParams[name]; !ok {
			config.RuntimeParams[name] = value
		}
	}
}

func scanTimesAsUTC(_ context.Context, conn *pgx.Conn) error {
	conn.TypeMap().RegisterType(&pgtype.Type{
		Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
	})
	return nil
}

// check refuses a database that this binary cannot work with.
func (s *Store) check(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Release()
	return checkSchema(ctx, conn.Conn())
}

// Ping asks the database for a sign of life. The error is of kind ErrUnavailable or ErrTimeout.
func (s *Store) Ping(ctx context.Context) error { return s.failure(ctx, s.pool.Ping(ctx)) }

// Now is the time by the database's clock, by which everything that is recorded has its time.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, s.failure(ctx, err)
}

// Close ends all connections and the channels of Wake; calls in progress fail.
func (s *Store) Close() {
	s.notifier.close()
	s.pool.Close()
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}
