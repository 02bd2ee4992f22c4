package journey_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// moving is an OpenStack Cyborg's database with content, and a database of ours
// that adopts it.
type moving struct {
	from, to string    // URLs of the two databases
	cloud    *pgx.Conn // to the database of OpenStack Cyborg
	ours     *pgx.Conn
}

// newMoving starts a PostgreSQL with both databases: the one has the content of
// internal/adopt's tests, the other our empty schema.
func newMoving(t *testing.T) *moving {
	t.Helper()
	server, err := postgres.Start(t.Context(), postgres.Config{
		Dir: filepath.Join(harness.Place(t), "postgres"), TCP: true, Port: porttest.Ports(t, 1)[0], FsyncOff: true, DieWithParent: true,
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })

	for _, name := range []string{"cloud", "ours"} {
		require.NoError(t, server.CreateDatabase(t.Context(), name))
	}

	m := &moving{from: server.TCPURL("cloud"), to: server.TCPURL("ours")}
	m.cloud, m.ours = connect(t, m.from), connect(t, m.to)

	for _, file := range []string{"postgresql.sql", "cloud.sql"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "internal", "adopt", "testdata", file))
		require.NoError(t, err)

		_, err = m.cloud.Exec(t.Context(), string(text))
		require.NoError(t, err)
	}

	text, err := m.command(t, "migrate").CombinedOutput()
	require.NoError(t, err, "%s", text)

	return m
}

// connect opens a connection that is closed with the test.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)

	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // only reads and locks
	return conn
}

// command returns a command of the cyborg binary on our database.
func (m *moving) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(harness.Binary(t, "cyborg"), args...)

	cmd.Env = append(harness.Environ(t.TempDir()), "CYBORG_DATABASE_URL="+m.to)
	return cmd
}

// adopt returns the command that adopts everything.
func (m *moving) adopt(t *testing.T) *exec.Cmd {
	t.Helper()
	return m.command(t, "adopt", "--from", m.from, "--apply")
}

// counts returns how many rows our records have, as text.
func (m *moving) counts(t *testing.T) (text string) {
	t.Helper()

	require.NoError(t, m.ours.QueryRow(t.Context(), `
		SELECT format('%s profiles, %s devices, %s deployables, %s handles, %s held, %s requests, %s bound, %s remembered',
		    (SELECT count(*) FROM device_profiles), (SELECT count(*) FROM devices), (SELECT count(*) FROM deployables),
		    (SELECT count(*) FROM attach_handles), (SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL),
		    (SELECT count(*) FROM arqs), (SELECT count(*) FROM arqs WHERE handle_uuid IS NOT NULL), (SELECT count(*) FROM adopted_rows))`).Scan(&text))

	return text
}

// The counts before the adoption and after it.
const (
	nothingMoved = "0 profiles, 0 devices, 0 deployables, 0 handles, 0 held, 0 requests, 0 bound, 0 remembered"
	allMoved     = "2 profiles, 2 devices, 2 deployables, 4 handles, 1 held, 4 requests, 1 bound, 14 remembered"
)

// TestKillDuringAdopt kills "cyborg adopt" while it reads, before each table
// that it writes, and at other moments. Either all rows are there or none, and
// another run of the command leaves each row there once.
func TestKillDuringAdopt(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	for _, held := range []struct {
		in   *pgx.Conn
		url  string
		lock string
	}{
		{m.cloud, m.from, "LOCK TABLE devices IN ACCESS EXCLUSIVE MODE"},
		{m.cloud, m.from, "LOCK TABLE extended_accelerator_requests IN ACCESS EXCLUSIVE MODE"},
		{m.ours, m.to, "LOCK TABLE adopted_rows IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE arqs IN ACCESS EXCLUSIVE MODE"},
		{m.ours, m.to, "LOCK TABLE hosts IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE device_profiles IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE devices IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE deployables IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE attach_handles IN SHARE MODE"},
		{m.ours, m.to, "LOCK TABLE arqs IN SHARE MODE"},
	} {

		// A lock stops the command at a known place.
		blocker := connect(t, held.url)
		tx, err := blocker.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), held.lock)
		require.NoError(t, err)

		cmd := m.adopt(t)
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool {
			var waits bool
			err := held.in.QueryRow(t.Context(), `
				SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
				WHERE NOT l.granted AND d.datname = current_database())`).Scan(&waits)
			return err == nil && waits
		}, 3*time.Minute, 5*time.Millisecond, held.lock)

		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, blocker.Close(t.Context()))

		require.Eventually(t, func() bool { return m.noOtherClient(t) }, 3*time.Minute, 5*time.Millisecond, held.lock)
		require.Equal(t, nothingMoved, m.counts(t), held.lock)
	}

	// Kills at later and later moments, until the command ends before its kill. The
	// steps grow, because a busy machine takes many times as long.
	killed := 0
	for after := time.Millisecond; ; after += max(3*time.Millisecond, after/10) {
		cmd := m.adopt(t)

		require.NoError(t, cmd.Start())
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) // it may just have ended

		err := cmd.Wait()
		timer.Stop()
		if err == nil {
			break
		}

		killed++
		require.Eventually(t, func() bool { return m.noOtherClient(t) }, 3*time.Minute, 5*time.Millisecond)
		require.Contains(t, []string{nothingMoved, allMoved}, m.counts(t), "after %s", after)
	}

	t.Logf("killed the command %d times before it ended by itself", killed)
	require.Equal(t, allMoved, m.counts(t))

	text, err := m.adopt(t).CombinedOutput()
	require.NoError(t, err, "%s", text)
	require.Contains(t, string(text), "0 new, 4 adopted before")
	require.Equal(t, allMoved, m.counts(t))
}

// noOtherClient reports whether PostgreSQL has noticed the death of the killed
// command, whose transaction ends only then.
func (m *moving) noOtherClient(t *testing.T) bool {
	t.Helper()
	others := -1

	err := m.ours.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&others)
	require.NoError(t, err)

	return others == 0
}
