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

// Migrate brings the schema to the version that this binary knows, records the
// kinds of operations that this binary knows, and returns the versions before
// and after. Of several processes that call it at the same time one migrates,
// and the others wait. A newer schema is an error of kind ErrInvalid and is
// left alone.
func Migrate(ctx context.Context, url string) (from, to int64, err error) {
	provider, err := migrator(url)
	if err != nil {
		return 0, 0, err
	}
	defer provider.Close() //nolint:errcheck // what was migrated is committed

	status, err := MigrationStatus(ctx, url)
	if err != nil {
		return 0, 0, err
	}

	if status.Current > status.Latest {
		return status.Current, status.Current, tooNew(status)
	}

	// Up takes a lock and reads the version again under it.
	results, err := provider.Up(ctx)
	if err != nil {
		return status.Current, status.Current, cyborg.Errorf(cyborg.ErrInternal, "migrating the database failed: %w", err)
	}

	if err := recordKinds(ctx, url); err != nil {
		return status.Current, status.Latest, cyborg.Errorf(cyborg.ErrInternal, "the kinds of operations cannot be recorded: %w", err)
	}

	if len(results) == 0 { // another process has migrated meanwhile
		return status.Latest, status.Latest, nil
	}

	return status.Current, status.Latest, nil
}

// recordKinds adds the kinds that this binary knows to operation_kinds, which
// operations refer to. A newer binary may have added others; they stay. The
// rows are in one order, so that processes that add the same kinds at the same
// time cannot wait for each other.
func recordKinds(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // what was recorded is committed

	_, err = conn.Exec(ctx, "INSERT INTO operation_kinds SELECT kind FROM unnest($1::text[]) AS kind ORDER BY kind ON CONFLICT DO NOTHING",
		records.Texts(cyborg.OperationKinds()))
	return err
}

// MigrationStatus reads the state of the schema, and changes nothing. The error
// is of kind ErrUnavailable where the database does not answer, and of kind
// ErrInvalid where PostgreSQL is too old.
func MigrationStatus(ctx context.Context, url string) (SchemaStatus, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return SchemaStatus{}, cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // it was only read from
	return schemaStatus(ctx, conn)
}

// schemaStatus is MigrationStatus on an open connection.
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

// checkSchema refuses a schema that is older or newer than this binary's, or
// that lacks a kind of operations.
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

	missing, err := missingKinds(ctx, conn)
	if err == nil && len(missing) > 0 {
		err = cyborg.Errorf(cyborg.ErrInvalid, "the database does not know operations of kind %s, which this binary needs",
			strings.Join(missing, ", ")).WithHint("Run `cyborg migrate`.")
	}
	return err
}

// missingKinds lists the kinds of operations that this binary knows and the
// database does not. A new kind comes without a migration, so the version alone
// does not show whether Migrate has run since.
func missingKinds(ctx context.Context, conn *pgx.Conn) (missing []string, err error) {
	err = conn.QueryRow(ctx, "SELECT array(SELECT unnest($1::text[]) EXCEPT SELECT kind FROM operation_kinds ORDER BY 1)",
		records.Texts(cyborg.OperationKinds())).Scan(&missing)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the recorded kinds of operations cannot be read: %w", err)
	}
	return missing, nil
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
