package postgres_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

func TestServerKeepsItsDataOverARestart(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	server := start(t, cfg)
	require.False(t, server.TookOver())
	require.NoError(t, server.CreateDatabase(t.Context(), `odd "name"`))
	require.NoError(t, server.CreateDatabase(t.Context(), `odd "name"`), "an existing one is no error")
	exec1(t, server.URL(`odd "name"`), "CREATE TABLE kept AS SELECT 42 AS answer")
	require.Equal(t, "UTF8", ask[string](t, server.URL("postgres"), "SHOW server_encoding"))

	stop(t, server)
	<-server.Done()
	require.NoError(t, server.Err(), "asked to end")
	stop(t, server) // twice is no error

	server = start(t, cfg)
	require.False(t, server.TookOver())
	require.Equal(t, 42, ask[int](t, server.URL(`odd "name"`), "SELECT answer FROM kept"))
}

// TestCreateDatabaseAtOnce: several callers may create the same database at the
// same time.
func TestCreateDatabaseAtOnce(t *testing.T) {
	t.Parallel()
	server := start(t, config(t))
	var group errgroup.Group
	for range 4 {
		group.Go(func() error { return server.CreateDatabase(t.Context(), "same") })
	}
	require.NoError(t, group.Wait())
}

// TestServerListensOnAClosedSocketOnly: by default there is no TCP, and only
// the server's user can reach its socket.
func TestServerListensOnAClosedSocketOnly(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	server := start(t, cfg)
	require.Empty(t, ask[string](t, server.URL("postgres"), "SHOW listen_addresses"))
	require.Empty(t, server.TCPURL("postgres"))

	info, err := os.Stat(filepath.Join(cfg.Dir, "run"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

// TestServerHasASessionOfItsOwn: the server must survive Ctrl-C, which a shell
// sends to the process group in its foreground, and the end of a terminal,
// which hangs up on its session.
func TestServerHasASessionOfItsOwn(t *testing.T) {
	t.Parallel()
	server := start(t, config(t))
	session, err := unix.Getsid(server.PID())
	require.NoError(t, err)
	require.Equal(t, server.PID(), session)
}

// TestDataIsSafeByDefault: without settings that say otherwise, data that was
// written survives a power failure.
func TestDataIsSafeByDefault(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.FsyncOff = false
	cfg.Settings = map[string]string{"work_mem": "5MB", "application_name": "it's"}

	server := start(t, cfg)
	for name, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "data_checksums": "on",
		"work_mem": "5MB", "application_name": "it's",
	} {
		require.Equal(t, want, ask[string](t, server.URL("postgres"), "SHOW "+name), name)
	}
}

func TestServerOnTCPRequiresThePassword(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.TCP, cfg.Port = true, porttest.Ports(t, 1)[0]
	server := start(t, cfg)
	url := server.TCPURL("postgres")
	require.True(t, ask[bool](t, url, "SELECT inet_server_addr() IS NOT NULL"))

	parsed, err := pgx.ParseConfig(url)
	require.NoError(t, err)

	info, err := os.Stat(filepath.Join(cfg.Dir, "password"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	parsed.Password = "guess"
	_, err = pgx.ConnectConfig(t.Context(), parsed)
	require.ErrorContains(t, err, "password authentication failed")

	stop(t, server)
	cfg.Port = 0
	require.Equal(t, url, start(t, cfg).TCPURL("postgres"), "a restart changes neither port nor password")
}

// TestServerOnABusyPort: a port that was asked for and is in use is an error.
// One that the server had chosen itself is replaced.
func TestServerOnABusyPort(t *testing.T) {
	t.Parallel()
	first := config(t)
	first.TCP, first.Port = true, porttest.Ports(t, 1)[0]
	server := start(t, first)
	parsed, err := pgx.ParseConfig(server.TCPURL("postgres"))
	require.NoError(t, err)

	second := config(t)
	second.TCP, second.Port = true, int(parsed.Port)
	_, err = postgres.Start(t.Context(), second, testLog(t))
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "is in use")

	// A port that the server has chosen itself is replaced where it is in use.
	second.Port = 0
	other := start(t, second)
	stop(t, other)
	require.NoError(t, os.WriteFile(filepath.Join(second.Dir, "port"), []byte(portOf(t, server)), 0o600))
	other = start(t, second)
	require.NotEqual(t, portOf(t, server), portOf(t, other))
}

// portOf returns the port that a server uses.
func portOf(t *testing.T, server *postgres.Server) string {
	t.Helper()
	return ask[string](t, server.URL("postgres"), "SHOW port")
}

// TestUnexpectedExitIsReported: a server that is killed is an error, and the
// next start works all the same.
func TestUnexpectedExitIsReported(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	server := start(t, cfg)
	require.NoError(t, server.Err())
	require.NoError(t, syscall.Kill(server.PID(), syscall.SIGKILL))
	<-server.Done()
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(server.Err()))
	require.ErrorContains(t, server.Err(), "ended (signal: killed)")
	stop(t, server)

	// Children of the killed server may still use the data, which PostgreSQL
	// refuses to share. The start succeeds all the same.
	again := start(t, cfg)
	require.False(t, again.TookOver())
}

func TestInterruptedStartLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	stop(t, start(t, cfg))

	err := interruptStart(t, cfg)
	for try := 0; err == nil; try++ {
		require.Less(t, try, 20, "it is never seen in the middle")
		err = interruptStart(t, cfg)
	}
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, filepath.Join(cfg.Dir, "data", "postmaster.pid"))
}

// interruptStart cancels a start in the middle and returns its error, or nil
// where the start was faster.
func interruptStart(t *testing.T, cfg postgres.Config) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(cfg.Dir, "data", "postmaster.pid")); err == nil {
				cancel()
			}
		}
	}()

	server, err := postgres.Start(ctx, cfg, testLog(t))
	if err == nil {
		stop(t, server)
	}
	return err
}

func TestServerDiesWithItsParent(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.DieWithParent = true
	pid := orphan(t, cfg)
	require.Eventually(t, func() bool { return !ours(pid, cfg.Dir) }, waitLimit, waitStep)
}
