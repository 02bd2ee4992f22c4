package engine

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	temporallog "go.temporal.io/server/common/log"
	v12 "go.temporal.io/server/schema/postgresql/v12"
	"go.temporal.io/server/tools/common/schema"
	"go.temporal.io/server/tools/sql"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
)

// updateSchemas brings the tables of both databases to the version of the Temporal that is linked in, from nothing or
// from an older version. What was interrupted is finished: Temporal's tool passes over what is already there.
func updateSchemas(ctx context.Context, urlOf func(string) string, log *slog.Logger) error {
	began := time.Now()
	// The tool tells everything, and warns when there is nothing to do.
	quiet := newLogger(log)
	group, _ := errgroup.WithContext(ctx)
	for _, s := range []schemaOf{
		{database: mainDatabase, name: "postgresql/v12/temporal", version: v12.Version},
		{database: visibilityDatabase, name: "postgresql/v12/visibility", version: v12.VisibilityVersion},
	} {
		group.Go(func() error { return s.update(urlOf, quiet) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	log.Debug("Temporal's schema is current", slog.Duration("took", time.Since(began)))
	return ctx.Err()
}

type schemaOf struct {
	database, name, version string
}

func (s schemaOf) update(urlOf func(string) string, log temporallog.Logger) error {
	cfg := sqlConfig(urlOf, s.database, 1)
	// Many small statements that can be repeated: waiting for the disk after each would only cost time. PostgreSQL writes
	// in order, so the first commit of the server makes all of this durable, too.
	cfg.ConnectAttributes["synchronous_commit"] = "off"
	conn, err := sql.NewConnection(cfg, log)
	if err != nil {
		return cyborg.Errorf(cyborg.Unavailable, "cannot connect to PostgreSQL's database %s: %w", s.database, err)
	}
	defer conn.Close()
	version, err := conn.ReadSchemaVersion()
	if err != nil { // no version: nothing was made yet, or not to the end
		if err := schema.NewSetupSchemaTask(conn, &schema.SetupConfig{InitialVersion: "0.0"}, log).Run(); err != nil {
			return s.failure(err)
		}
	} else if err := s.refuseNewer(version); err != nil {
		return err
	}
	if err := schema.NewUpdateSchemaTask(conn, &schema.UpdateConfig{SchemaName: s.name, TargetVersion: s.version}, log).Run(); err != nil {
		return s.failure(err)
	}
	return nil
}

// refuseNewer refuses a database that a newer Temporal has changed.
func (s schemaOf) refuseNewer(version string) error {
	has, err := semver.ParseTolerant(version)
	if err != nil {
		return cyborg.Errorf(cyborg.Invalid, "PostgreSQL's database %s has Temporal's schema in a version that cannot be read, %q", s.database, version)
	}
	knows, err := semver.ParseTolerant(s.version)
	if err != nil {
		return cyborg.Errorf(cyborg.Internal, "Temporal's schema version %q cannot be read: %w", s.version, err)
	}
	if has.GT(knows) {
		return cyborg.Errorf(cyborg.Invalid,
			"PostgreSQL's database %s has Temporal's schema %s, and this release knows %s: use the newer release that made it", s.database, version, s.version)
	}
	return nil
}

func (s schemaOf) failure(err error) error {
	if strings.Contains(err.Error(), "btree_gin") {
		return cyborg.Errorf(cyborg.Unavailable,
			"PostgreSQL lacks the extension btree_gin, which Temporal needs: install the package with PostgreSQL's additional modules, postgresql-contrib in most systems (%w)", err)
	}
	return cyborg.Errorf(cyborg.Unavailable, "cannot make Temporal's tables in PostgreSQL's database %s: %w", s.database, err)
}
