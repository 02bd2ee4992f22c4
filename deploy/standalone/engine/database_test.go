package engine_test

import (
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
)

// run runs one statement.
func run(t *testing.T, databaseURL, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

// ask runs a query that returns one value.
func ask[T any](t *testing.T, databaseURL, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	require.NoError(t, conn.Close(t.Context()))
	return value
}

// TestEngineOnAnExistingServer: the engine works on a database server of the
// user's own, over TCP, with a role that is no superuser and a password that
// has to be escaped.
func TestEngineOnAnExistingServer(t *testing.T) {
	t.Parallel()
	place, server := database(t)
	require.NoError(t, server.Stop(t.Context()))
	place.TCP, place.FsyncOff = true, true
	server = startDatabase(t, place)

	const password = `p@ss w/rd:%+&?'`
	run(t, server.URL("postgres"), `CREATE ROLE "some user" LOGIN CREATEDB PASSWORD 'p@ss w/rd:%+&?'''`)

	cfg := config(t, server)
	cfg.PostgresURL = func(name string) string {
		u, err := url.Parse(server.TCPURL(name))
		require.NoError(t, err)
		u.User = url.UserPassword("some user", password)
		return u.String()
	}

	e := start(t, cfg, t.Output())
	runGreeting(t, e, "first")
	requireFound(t, e, "TestHost = 'there'", 1)
	require.Positive(t, ask[int](t, server.URL("postgres"),
		"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'temporal' AND usename = 'some user' AND client_addr IS NOT NULL"))
	stop(t, e)

	// A role that may not create databases is enough where they exist.
	run(t, server.URL("postgres"), `ALTER ROLE "some user" NOCREATEDB`)
	stop(t, start(t, cfg, t.Output()))

	run(t, server.URL("postgres"), "DROP DATABASE temporal_visibility")
	_, err := engine.Start(t.Context(), cfg, slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "cannot create PostgreSQL's database temporal_visibility for Temporal: let the role create databases")
}

// TestDatabaseLockIsReacquired: the lock that keeps a second engine away ends
// with its session, so the engine takes it again.
func TestDatabaseLockIsReacquired(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	e := start(t, config(t, server), t.Output())
	const holder = "SELECT coalesce((SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = " +
		"(SELECT oid FROM pg_database WHERE datname = 'temporal')), 0)"

	first := ask[int](t, server.URL("postgres"), holder)
	require.NotZero(t, first)
	run(t, server.URL("postgres"), fmt.Sprintf("SELECT pg_terminate_backend(%d)", first))

	require.Eventually(t, func() bool {
		now := ask[int](t, server.URL("postgres"), holder)
		return now != 0 && now != first
	}, 5*time.Minute, 100*time.Millisecond)

	require.NoError(t, e.Err())
	stop(t, e)
}

// TestSchemaIsCreatedInOneTransaction: a schema that cannot be completed leaves
// nothing behind, so that the next start can create it.
func TestSchemaIsCreatedInOneTransaction(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	require.NoError(t, server.CreateDatabase(t.Context(), "temporal"))
	run(t, server.URL("temporal"), "CREATE TABLE nexus_endpoints ()") // one of the last versions creates it

	_, err := engine.Start(t.Context(), config(t, server), slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `relation "nexus_endpoints" already exists`)
	require.Equal(t, 1, ask[int](t, server.URL("temporal"), "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"))

	run(t, server.URL("temporal"), "DROP TABLE nexus_endpoints")
	stop(t, start(t, config(t, server), t.Output()))
}

func TestSchemaOfANewerReleaseIsRefused(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	stop(t, start(t, config(t, server), t.Output()))
	run(t, server.URL("temporal_visibility"), "UPDATE schema_version SET curr_version = '99.0'")
	_, err := engine.Start(t.Context(), config(t, server), slog.New(slog.DiscardHandler))
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "PostgreSQL's database temporal_visibility has Temporal's schema 99.0, and this release knows")
}
