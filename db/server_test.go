package db_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// startServer starts a PostgreSQL of the test's own, below dir, for settings
// that concern all databases of a server.
func startServer(t testing.TB, dir string, cfg postgres.Config) *postgres.Server {
	t.Helper()
	cfg.Dir, cfg.DieWithParent = dir, true
	server, err := postgres.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { stopServer(t, server) })
	return server
}

// stopServer stops a server; it may be called again.
func stopServer(t testing.TB, server *postgres.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// serverDir makes a directory for servers, which their user can enter.
func serverDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cyborg-db-") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// recordsOn makes and migrates a database on the server, if it has none yet,
// and opens a store on it.
func recordsOn(t testing.TB, server *postgres.Server) *records {
	t.Helper()
	require.NoError(t, server.CreateDatabase(t.Context(), "cyborg"))
	url := server.URL("cyborg")
	_, err := db.Migrate(t.Context(), url)
	require.NoError(t, err)
	return &records{Store: openStore(t, url, defaults()), url: url, sql: newPool(t, url)}
}
