package engine

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"time"

	"github.com/iancoleman/strcase"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"

	"github.com/cyborg-project/cyborg"
)

const (
	// mainDatabase holds Temporal's histories and queues, and visibilityDatabase
	// what its searches use. The names are Temporal's usual ones.
	mainDatabase       = "temporal"
	visibilityDatabase = "temporal_visibility"
	// maintenanceDatabase exists on every PostgreSQL server.
	maintenanceDatabase = "postgres"

	// connectLimit is how long the first connection of one of Temporal's services
	// may take.
	connectLimit = 10 * time.Second
)

// prepareDatabases makes the databases, locks them for this engine, and brings
// their schemas up to date. The lock comes before the schemas: another engine
// that runs must not see them change. The caller releases the lock.
func prepareDatabases(ctx context.Context, urlOf func(string) string, log *slog.Logger) (*lock, error) {
	for _, database := range []string{mainDatabase, visibilityDatabase} {
		if err := ensureDatabase(ctx, urlOf, database); err != nil {
			return nil, err
		}
	}

	held, err := acquire(ctx, urlOf(mainDatabase))
	if err != nil {
		return nil, err
	}

	if err := updateSchemas(ctx, urlOf, log); err != nil {
		held.release(ctx)
		return nil, err
	}

	return held, nil
}

// ensureDatabase makes a database, unless a connection to it works. So the role
// needs no permission to create databases if somebody else has created them.
func ensureDatabase(ctx context.Context, urlOf func(string) string, database string) error {
	conn, err := pgx.Connect(ctx, urlOf(database))
	if err == nil {
		return conn.Close(ctx)
	}

	if sqlState(err) != "3D000" { // invalid_catalog_name
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot connect to PostgreSQL's database %s, where Temporal keeps its state: %w", database, err)
	}

	conn, err = pgx.Connect(ctx, urlOf(maintenanceDatabase))
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot connect to PostgreSQL to create the database %s: %w", database, err)
	}

	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{database}.Sanitize())
	err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))

	if sqlState(err) == "42P04" { // duplicate_database
		return nil
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "cannot create PostgreSQL's database %s for Temporal: let the role create databases, or create %s and %s for it (%w)",
			database, mainDatabase, visibilityDatabase, err)
	}
	return nil
}

// sqlState returns PostgreSQL's code of the error, or "" if the error has none.
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// sqlConfig returns the configuration of one of Temporal's stores. By itself
// Temporal would build a URL from parts, which cannot hold a Unix socket or
// every password. So it is given a function that connects, and only to this
// timeline.
func sqlConfig(urlOf func(string) string, database string, maxConns int, on timeline) *config.SQL {
	return &config.SQL{
		PluginName: postgresql.PluginNamePGX, DatabaseName: database,
		ConnectProtocol: "tcp", ConnectAddr: "localhost", // Temporal requires both and uses neither
		Connect: func(*config.SQL) (*sqlx.DB, error) { return connect(urlOf(database), maxConns, on) },
	}
}

// connect opens a pool of connections for Temporal. Its settings are those of
// Temporal's own plugin (common/persistence/sql/sqlplugin/postgresql, session
// and driver). Temporal calls it without a context.
func connect(databaseURL string, maxConns int, on timeline) (*sqlx.DB, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}

	cfg.RuntimeParams["application_name"] = "temporal"
	prepare := func(ctx context.Context, conn *pgx.Conn) error {
		// Temporal's columns have durations as numbers.
		conn.TypeMap().RegisterDefaultPgType(time.Duration(0), "int8")
		conn.TypeMap().RegisterDefaultPgType((*time.Duration)(nil), "int8")
		return on.check(ctx, conn)
	}

	db := sqlx.NewDb(sql.OpenDB(stdlib.GetConnector(*cfg, stdlib.OptionAfterConnect(prepare))), "pgx")
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	db.SetConnMaxLifetime(time.Hour)
	db.MapperFunc(strcase.ToSnake)

	ctx, cancel := context.WithTimeout(context.Background(), connectLimit)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}

	return db, nil
}
