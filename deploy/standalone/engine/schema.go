package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	"github.com/jackc/pgx/v5"
	temporallog "go.temporal.io/server/common/log"
	v12 "go.temporal.io/server/schema/postgresql/v12"
	"go.temporal.io/server/tools/common/schema"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
)

// updateSchemas brings the tables of both databases to the version of the
// Temporal that is linked into this program, from nothing or from an older
// version. Each database is updated in one transaction. Temporal's own tool
// commits every statement by itself, and cannot always continue after an
// interruption, because some statements fail when they are repeated.
func updateSchemas(ctx context.Context, urlOf func(string) string, log *slog.Logger) error {
	began := time.Now()
	quiet := newLogger(log) // Temporal logs every statement, and warns if there is nothing to do

	group, ctx := errgroup.WithContext(ctx)
	for _, s := range []schemaOf{
		{database: mainDatabase, name: "postgresql/v12/temporal", version: v12.Version},
		{database: visibilityDatabase, name: "postgresql/v12/visibility", version: v12.VisibilityVersion},
	} {
		group.Go(func() error { return s.update(ctx, urlOf(s.database), quiet) })
	}

	if err := group.Wait(); err != nil {
		return err
	}

	log.DebugContext(ctx, "Temporal's schema is current", slog.Duration("took", time.Since(began)))
	return nil
}

// schemaOf is the schema of one database: its name among Temporal's embedded
// schemas, and the version that this program needs.
type schemaOf struct {
	database, name, version string
}

// update brings the schema to its version, in one transaction.
func (s schemaOf) update(ctx context.Context, databaseURL string, log temporallog.Logger) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot connect to PostgreSQL's database %s: %w", s.database, err)
	}

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		t := newTables(ctx, tx, s.database)
		version, err := t.current()
		if err != nil {
			return err
		}

		if version == "" {
			err = schema.NewSetupSchemaTask(t, &schema.SetupConfig{InitialVersion: "0.0"}, log).Run()
		} else {
			err = s.refuseNewer(version)
		}
		if err != nil {
			return err
		}

		return schema.NewUpdateSchemaTask(t, &schema.UpdateConfig{SchemaName: s.name, TargetVersion: s.version}, log).Run()
	})

	// Errors of refuseNewer are sentences already.
	err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
	if _, ours := errors.AsType[*cyborg.Error](err); err == nil || ours {
		return err
	}

	if strings.Contains(err.Error(), "btree_gin") {
		return cyborg.Errorf(cyborg.ErrUnavailable,
			"PostgreSQL lacks the extension btree_gin, which Temporal needs: install PostgreSQL's additional modules, the package postgresql-contrib in most systems (%w)", err)
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "cannot make Temporal's tables in PostgreSQL's database %s: %w", s.database, err)
}

// refuseNewer rejects a database whose schema a newer Temporal has made: this
// version may not understand it.
func (s schemaOf) refuseNewer(version string) error {
	has, errHas := semver.ParseTolerant(version)
	knows, errKnows := semver.ParseTolerant(s.version)
	if err := errors.Join(errHas, errKnows); err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "PostgreSQL's database %s has Temporal's schema in version %q, which cannot be read: %w", s.database, version, err)
	}

	if has.GT(knows) {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"PostgreSQL's database %s has Temporal's schema %s, and this release knows %s: use the newer release that made it", s.database, version, s.version)
	}
	return nil
}

// tables is a database in a transaction, in the form that Temporal's schema
// tasks work on. After a failure every statement returns the same error,
// because PostgreSQL has aborted the transaction.
type tables struct {
	exec    func(sql string, args ...any) error
	ask     func(value any, sql string, args ...any) error
	failure error
	name    string
}

var _ schema.DB = (*tables)(nil)

// newTables returns the tables in the transaction. The name is that of the
// database in schema_version.
func newTables(ctx context.Context, tx pgx.Tx, name string) *tables {
	return &tables{
		name: name,
		exec: func(sql string, args ...any) error {
			// CREATE INDEX CONCURRENTLY cannot run in a transaction. It would only help
			// other users of the table, and the engine's lock keeps them away.
			sql = strings.Replace(sql, "CREATE INDEX CONCURRENTLY", "CREATE INDEX", 1)
			_, err := tx.Exec(ctx, sql, args...)
			return err
		},
		ask: func(value any, sql string, args ...any) error { return tx.QueryRow(ctx, sql, args...).Scan(value) },
	}
}

// current returns the version of the schema, or "" if there is none yet.
func (t *tables) current() (string, error) {
	var exists bool
	if err := t.ask(&exists, "SELECT to_regclass('schema_version') IS NOT NULL"); err != nil || !exists {
		return "", err
	}
	version, err := t.ReadSchemaVersion()
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return version, err
}

// Exec executes a statement.
func (t *tables) Exec(sql string, args ...any) error {
	if t.failure == nil {
		t.failure = t.exec(sql, args...)
	}
	return t.failure
}

// The statements below are those of Temporal's own tool
// (common/persistence/sql/sqlplugin/postgresql/admin.go), so each can continue
// with a database that the other has made.

// CreateSchemaVersionTables makes the tables that hold the version of the
// schema and its history.
func (t *tables) CreateSchemaVersionTables() error {
	return errors.Join(
		t.Exec(`CREATE TABLE IF NOT EXISTS schema_version (version_partition INT NOT NULL, db_name VARCHAR(255) NOT NULL,
			creation_time TIMESTAMP, curr_version VARCHAR(64), min_compatible_version VARCHAR(64),
			PRIMARY KEY (version_partition, db_name))`),
		t.Exec(`CREATE TABLE IF NOT EXISTS schema_update_history (version_partition INT NOT NULL, year INT NOT NULL, month INT NOT NULL,
			update_time TIMESTAMP NOT NULL, description VARCHAR(255), manifest_md5 VARCHAR(64), new_version VARCHAR(64), old_version VARCHAR(64),
			PRIMARY KEY (version_partition, year, month, update_time))`),
	)
}

// ReadSchemaVersion returns the version of the schema.
func (t *tables) ReadSchemaVersion() (version string, err error) {
	err = t.ask(&version, "SELECT curr_version FROM schema_version WHERE version_partition = 0 AND db_name = $1", t.name)
	return version, err
}

// UpdateSchemaVersion records the version of the schema.
func (t *tables) UpdateSchemaVersion(newVersion, minCompatibleVersion string) error {
	return t.Exec(`INSERT INTO schema_version (version_partition, db_name, creation_time, curr_version, min_compatible_version)
		VALUES (0, $1, $2, $3, $4) ON CONFLICT (version_partition, db_name) DO UPDATE SET creation_time = excluded.creation_time,
		curr_version = excluded.curr_version, min_compatible_version = excluded.min_compatible_version`,
		t.name, time.Now().UTC(), newVersion, minCompatibleVersion)
}

// WriteSchemaUpdateLog records an update from one version to the next.
func (t *tables) WriteSchemaUpdateLog(oldVersion, newVersion, manifestMD5, desc string) error {
	now := time.Now().UTC()
	return t.Exec(`INSERT INTO schema_update_history
		(version_partition, year, month, update_time, old_version, new_version, manifest_md5, description) VALUES (0, $1, $2, $3, $4, $5, $6, $7)`,
		now.Year(), int(now.Month()), now, oldVersion, newVersion, manifestMD5, desc)
}

// DropAllTables is not supported. Temporal calls it only to make a schema anew,
// which is never asked for here.
func (t *tables) DropAllTables() error { return errors.ErrUnsupported }

// Close does nothing: whoever opened the transaction ends it.
func (t *tables) Close() {}

// Type returns the kind of database.
func (t *tables) Type() string { return "sql" }
