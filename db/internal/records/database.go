package records

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
	// MaxConns bounds the connections of the pool. Two more connections are for the
	// readers of events: one wakes them, the other listens. 0 means 16.
	MaxConns int32
	// SilentAfter is how long a host or a service may be unheard before it counts
	// as silent. 0 means 25 s.
	SilentAfter time.Duration
	// DeployableName makes the name of a new deployable, which is also the name of
	// its resource provider; nil means <host>_<local name>. It must return
	// different names for different hosts.
	DeployableName func(host, local string) string
	// MaxUnboundARQs is how many accelerator requests that are not bound a project
	// may have; 0 means any number.
	MaxUnboundARQs int
	// ToSettle is told of hosts that, since a commit, have still to take something back
	// that they had prepared for somebody. It must not block. Reconcile finds the hosts as
	// well; nil leaves them to it.
	ToSettle func(hosts []string)
	// Tracer traces every statement of the pool; nil for none.
	Tracer pgx.QueryTracer
}

// DB is the connection of a store to PostgreSQL, with what every part of the
// store needs to work on it.
type DB struct {
	Pool     Pool
	Listener *pgx.ConnConfig // of a connection that is not of the pool
	Options  Options
	Log      *slog.Logger

	// Committed receives a value when a transaction has been committed. Values that
	// nobody has received yet merge into one, so there is always one after the last
	// commit.
	Committed chan struct{}
}

// Open fills in the defaults of the options and makes the pool; it connects to
// nothing yet. The error is of kind ErrInvalid where the URL cannot be used.
func Open(ctx context.Context, url string, opts Options, log *slog.Logger) (*DB, error) {
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

	return &DB{
		Pool: Pool{connections}, Listener: listener, Options: opts, Log: log, Committed: make(chan struct{}, 1),
	}, nil
}

// TellToSettle tells Options.ToSettle of these hosts. The transaction that left something
// there has been committed.
func (d *DB) TellToSettle(hosts []string) {
	if len(hosts) > 0 && d.Options.ToSettle != nil {
		d.Options.ToSettle(hosts)
	}
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

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}
