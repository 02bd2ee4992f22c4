package db

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

//go:embed migrations/*.sql
var migrations embed.FS

// oldestPostgres is the oldest PostgreSQL that the schema works with, as
// server_version_num.
const oldestPostgres = 150000

// SchemaStatus is the state of a database's schema.
type SchemaStatus struct {
	Current int64    // version of the database; 0 where nothing was migrated
	Latest  int64    // version that this binary knows
	Pending []string // files of the migrations that are still to be applied
}

// Migration is what Migrate has done.
type Migration struct {
	From, To int64    // versions of the schema, before and after
	Kinds    []string // kinds of operations that were recorded, in order
}

// Migrate brings the schema to the version that this binary knows, and records
// the kinds of operations that this binary knows. Of several processes that
// call it at the same time one migrates, and the others wait. The kinds come
// after the schema, in a transaction of their own: a server that starts in
// between is told to migrate, as before the migration.
//
// A schema of a newer release is an error of kind ErrInvalid, and nothing is
// changed. Kinds of a newer release are the same error; they are compared after
// the schema is current, because an older one may have no table for them. The
// error is of kind ErrUnavailable where the database does not answer.
func Migrate(ctx context.Context, url string) (Migration, error) {
	provider, err := migrator(url)
	if err != nil {
		return Migration{}, err
	}
	defer provider.Close() //nolint:errcheck // what was migrated is committed

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return Migration{}, cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // what was recorded is committed

	status, err := schemaStatus(ctx, conn)
	if err != nil {
		return Migration{}, err
	}

	done := Migration{From: status.Current, To: status.Current}
	if status.Current > status.Latest {
		return done, tooNew(status)
	}

	// Up takes a lock and reads the version again under it.
	results, err := provider.Up(ctx)
	if err != nil {
		return done, cyborg.Errorf(cyborg.ErrInternal, "migrating the database failed: %w", err)
	}

	done.To = status.Latest
	if len(results) == 0 { // another process has migrated meanwhile
		done.From = status.Latest
	}

	done.Kinds, err = recordKinds(ctx, conn)
	return done, err
}

// recordKinds adds the kinds that this binary knows to operation_kinds, which
// operations refer to, and returns those that were not there, or said otherwise
// what Placement may give away. It writes only where there is such a kind, so
// that a database that needs nothing may be read-only. The rows are in one
// order, so that processes that add the same kinds at the same time cannot wait
// for each other in a circle.
func recordKinds(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	missing, newer, err := compareKinds(ctx, conn)
	switch {
	case err != nil:
		return nil, err
	case len(newer) > 0:
		return nil, newerKinds(newer)
	case len(missing) == 0:
		return nil, nil
	}

	closes := make([]bool, len(missing))
	for i, kind := range missing {
		closes[i] = cyborg.OperationKind(kind).ClosesPlacement()
	}

	_, err = conn.Exec(ctx, `
		INSERT INTO operation_kinds (kind, closes_placement) SELECT * FROM unnest($1::text[], $2::boolean[]) AS k (kind, closes) ORDER BY kind
		ON CONFLICT (kind) DO UPDATE SET closes_placement = excluded.closes_placement`, missing, closes)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the kinds of operations cannot be recorded: %w", err)
	}
	return missing, nil
}

// schemaStatus reads the state of the schema, and changes nothing. The error is
// of kind ErrUnavailable where the database does not answer, and of kind
// ErrInvalid where PostgreSQL is too old.
func schemaStatus(ctx context.Context, conn *pgx.Conn) (SchemaStatus, error) {
	var (
		status SchemaStatus
		server int
	)
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&server); err != nil {
		return status, cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}

	if server < oldestPostgres {
		return status, cyborg.Errorf(cyborg.ErrInvalid, "the database is PostgreSQL %d; Cyborg needs %d or newer",
			server/10000, oldestPostgres/10000)
	}

	err := conn.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&status.Current)
	// Without goose's table nothing was ever migrated: version 0.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		err = nil
	}
	if err != nil {
		return status, cyborg.Errorf(cyborg.ErrUnavailable, "the schema's version cannot be read: %w", err)
	}

	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return status, err
	}

	for _, file := range files {
		name := path.Base(file)
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return status, fmt.Errorf("migration %s has no version: %w", name, err)
		}

		status.Latest = max(status.Latest, version)
		if version > status.Current {
			status.Pending = append(status.Pending, name)
		}
	}

	return status, nil
}

// checkSchema refuses a schema that is older or newer than this binary's, and
// kinds of operations that are not this binary's.
func checkSchema(ctx context.Context, conn *pgx.Conn) error {
	status, err := schemaStatus(ctx, conn)
	switch {
	case err != nil:
		return err
	case status.Current > status.Latest:
		return tooNew(status)
	case status.Current < status.Latest:
		return cyborg.Errorf(cyborg.ErrInvalid, "the database's schema has version %d and this binary needs %d",
			status.Current, status.Latest).WithHint("Run `cyborg migrate`.")
	}

	missing, newer, err := compareKinds(ctx, conn)
	switch {
	case err != nil:
		return err
	case len(newer) > 0:
		return newerKinds(newer)
	case len(missing) > 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "the database does not know operations of kind %s, which this binary needs",
			strings.Join(missing, ", ")).WithHint("Run `cyborg migrate`.")
	}

	return nil
}

// compareKinds lists the kinds of operations that this binary knows and that
// the database does not have or describes otherwise (missing), and those that
// only the database has (newer). A new kind comes without a migration, so the
// version alone does not show whether Migrate has run since.
func compareKinds(ctx context.Context, conn *pgx.Conn) (missing, newer []string, err error) {
	known := cyborg.OperationKinds()
	closes := make([]bool, len(known))
	for i, kind := range known {
		closes[i] = kind.ClosesPlacement()
	}

	err = conn.QueryRow(ctx, `
		SELECT array(SELECT kind FROM (SELECT * FROM unnest($1::text[], $2::boolean[]) EXCEPT SELECT kind, closes_placement FROM operation_kinds) AS k (kind, closes) ORDER BY 1),
		       array(SELECT kind FROM operation_kinds EXCEPT SELECT unnest($1::text[]) ORDER BY 1)`, records.Texts(known), closes).
		Scan(&missing, &newer)
	if err != nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrUnavailable, "the recorded kinds of operations cannot be read: %w", err)
	}
	return missing, newer, nil
}

// newerKinds is the error for kinds of operations that a newer release has
// recorded. This binary could not carry out, end or undo such an operation.
func newerKinds(kinds []string) error {
	return cyborg.Errorf(cyborg.ErrInvalid, "the database has operations of kind %s, which this binary does not know",
		strings.Join(kinds, ", ")).WithHint("Run the newer release that migrated it.")
}

// tooNew is the error for a schema that a newer release has migrated.
func tooNew(status SchemaStatus) error {
	return cyborg.Errorf(cyborg.ErrInvalid, "the database's schema has version %d, and this binary knows only %d",
		status.Current, status.Latest).WithHint("Run the newer release that migrated it.")
}

// migrator returns goose's provider for the embedded migrations. Closing it
// closes its connections.
func migrator(url string) (*goose.Provider, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the database URL cannot be used: %w", err)
	}

	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}

	// The lock is tried every second for ten minutes: another process may be
	// migrating a large database.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
	if err != nil {
		return nil, err
	}

	return goose.NewProvider(goose.DialectPostgres, openSQL(config), files,
		goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}

// openSQL opens the database for goose, which works on database/sql.
func openSQL(config *pgx.ConnConfig) *sql.DB { return stdlib.OpenDB(*config) }

const undefinedTable = "42P01"
