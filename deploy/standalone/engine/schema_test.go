package engine

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	v12 "go.temporal.io/server/schema/postgresql/v12"

	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestSchemaIsUpdatedFromOlderVersions: a schema of any older version ends with
// the columns of a new one.
func TestSchemaIsUpdatedFromOlderVersions(t *testing.T) {
	t.Parallel()
	for _, test := range []schemaOf{
		{database: mainDatabase, name: "postgresql/v12/temporal", version: "1.0"},
		{database: mainDatabase, name: "postgresql/v12/temporal", version: "1.12"},
		{database: mainDatabase, name: "postgresql/v12/temporal", version: "1.18"},
		{database: visibilityDatabase, name: "postgresql/v12/visibility", version: "1.1"},
		{database: visibilityDatabase, name: "postgresql/v12/visibility", version: "1.9"},
	} {
		t.Run(fmt.Sprintf("%s from %s", test.database, test.version), func(t *testing.T) {
			t.Parallel()
			log := newLogger(slog.New(slog.DiscardHandler))
			updated, fresh := postgrestest.New(t), postgrestest.New(t)

			require.NoError(t, test.update(t.Context(), updated, log))
			require.Equal(t, test.version, schemaVersion(t, updated))

			current := test
			current.version = map[string]string{mainDatabase: v12.Version, visibilityDatabase: v12.VisibilityVersion}[test.database]
			for range 2 { // the second finds nothing to do
				require.NoError(t, current.update(t.Context(), updated, log))
			}

			require.NoError(t, current.update(t.Context(), fresh, log))
			require.Equal(t, columns(t, fresh), columns(t, updated))
			require.Equal(t, current.version, schemaVersion(t, updated))
		})
	}
}

// schemaVersion returns the version that a database records for its schema.
func schemaVersion(t *testing.T, databaseURL string) string {
	t.Helper()
	versions := query(t, databaseURL, "SELECT curr_version FROM schema_version")
	require.Len(t, versions, 1)
	return versions[0]
}

// columns lists the columns of a database with their types.
func columns(t *testing.T, databaseURL string) []string {
	t.Helper()
	found := query(t, databaseURL, `SELECT table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns
		WHERE table_schema = 'public' ORDER BY 1`)
	require.Greater(t, len(found), 50)
	return found
}

// query returns the texts that a query finds.
func query(t *testing.T, databaseURL, sql string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))

	rows, err := conn.Query(t.Context(), sql)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return found
}
