package postgrestest_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// ask runs a query that returns one value.
func ask[T any](t *testing.T, url, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var value T
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

// run runs one statement.
func run(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func TestEachTestHasItsOwnDatabase(t *testing.T) { //nolint:tparallel // it looks at what the inner test leaves
	t.Parallel()
	outer := postgrestest.New(t)
	require.NoError(t, run(t.Context(), outer, "CREATE TABLE mine ()"))

	var name string
	t.Run("inner", func(t *testing.T) {
		inner := postgrestest.New(t)
		name = ask[string](t, inner, "SELECT current_database()::text")
		require.Zero(t, ask[int](t, inner, "SELECT count(*) FROM pg_tables WHERE tablename = 'mine'"))

		held, err := pgx.Connect(t.Context(), inner)
		require.NoError(t, err)
		t.Cleanup(func() { _ = held.Close(context.WithoutCancel(t.Context())) }) // runs before the drop
	})

	require.NotEmpty(t, name)
	require.Zero(t, ask[int](t, outer, "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"), "dropped with its test")
}

// TestTemplateIsMadeOnce: each database is a copy of its own of the template,
// which is built once.
func TestTemplateIsMadeOnce(t *testing.T) {
	t.Parallel()
	key := rand.Text() // with -count, each run needs a template of its own
	var made atomic.Int32
	build := func(ctx context.Context, url string) error {
		made.Add(1)
		return run(ctx, url, "CREATE TABLE kept AS SELECT 42 AS answer")
	}

	t.Run("copies", func(t *testing.T) {
		t.Parallel()
		t.Cleanup(func() { require.Equal(t, int32(1), made.Load()) })
		for i := range 4 {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				url := postgrestest.NewFrom(t, key, build)
				require.Equal(t, 42, ask[int](t, url, "UPDATE kept SET answer = answer + 1 RETURNING answer - 1"))
			})
		}
	})

	other := postgrestest.NewFrom(t, "other", func(ctx context.Context, url string) error {
		return run(ctx, url, "CREATE TABLE different ()")
	})
	require.Equal(t, "different", ask[string](t, other, "SELECT string_agg(tablename, ',') FROM pg_tables WHERE schemaname = 'public'"))
}

// helperEnv makes TestHelper the process of another test.
const helperEnv = "POSTGRESTEST_TEST_HELPER"

// TestHelper is no test of its own, but the process that other tests start, and
// kill.
func TestHelper(t *testing.T) {
	t.Parallel()
	if os.Getenv(helperEnv) == "" {
		t.Skip("only runs as a process of another test")
	}

	url := postgrestest.New(t)
	fmt.Println("server", ask[string](t, url, "SHOW data_directory"),
		ask[int](t, url, `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`))

	_, err := io.Copy(io.Discard, os.Stdin) // until the other test closes it, or kills us
	require.NoError(t, err)
}

// helper starts such a process. It returns the process, the data directory and
// the process id of its server, and a function that ends it in order.
func helper(t *testing.T) (cmd *exec.Cmd, data string, pid int, end func()) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHelper$")
	cmd.Env = append(os.Environ(), helperEnv+"=1", postgrestest.URLEnv+"=")
	cmd.Stderr = os.Stderr

	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	text, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscanf(text, "server %s %d", &data, &pid)
	require.NoError(t, err, text)

	return cmd, data, pid, func() {
		require.NoError(t, stdin.Close())
		require.NoError(t, cmd.Wait())
	}
}

// TestKilledProcessIsCleanedUp: the server of a test process that was killed
// ends with it, and a later test process removes its directory. One that is in
// use stays.
func TestKilledProcessIsCleanedUp(t *testing.T) {
	t.Parallel()
	killed, data, pid, _ := helper(t)
	require.Contains(t, workingIn(t, data), fmt.Sprintf("/proc/%d/cwd", pid))

	require.NoError(t, killed.Process.Kill())
	_ = killed.Wait()
	require.Eventually(t, func() bool { return len(workingIn(t, data)) == 0 }, 5*time.Minute, 20*time.Millisecond,
		"the server ends with the process, and its children with it")

	dir := filepath.Dir(filepath.Dir(data))
	require.DirExists(t, dir)
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(dir, past, past))

	_, other, _, end := helper(t)
	require.Eventually(t, func() bool { // another test process may be the one that removes it
		_, err := os.Stat(dir)
		return errors.Is(err, fs.ErrNotExist)
	}, 5*time.Minute, 20*time.Millisecond)

	living := filepath.Dir(filepath.Dir(other))
	require.NoError(t, os.Chtimes(living, past, past))
	requireHelper(t)
	require.DirExists(t, living, "it is in use, however old")
	end()
	require.NoDirExists(t, living)
}

// workingIn lists the processes that have this working directory.
func workingIn(t *testing.T, dir string) (links []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	require.NoError(t, err)
	for _, link := range all {
		if cwd, err := os.Readlink(link); err == nil && cwd == dir {
			links = append(links, link)
		}
	}
	return links
}

// requireHelper runs such a process from its start to its end.
func requireHelper(t *testing.T) {
	t.Helper()
	_, _, _, end := helper(t) //nolint:dogsled // only its life matters
	end()
}

// TestExistingServer: tests use the server that the environment names, and
// leave nothing in it.
func TestExistingServer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // t.TempDir is closed to the server's user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o711))

	existing, err := postgres.Start(t.Context(), postgres.Config{
		Dir: filepath.Join(dir, "postgres"), FsyncOff: true, DieWithParent: true,
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, existing.Stop(context.WithoutCancel(t.Context()))) })

	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^(TestEachTest.*|TestTemplate.*|TestHelper)$")
	cmd.Stdin = strings.NewReader("")
	cmd.Env = append(os.Environ(), postgrestest.URLEnv+"="+existing.URL("postgres"), helperEnv+"=1")

	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)

	require.Contains(t, string(output), "server "+filepath.Join(dir, "postgres", "data"), "it was that server")
	require.Equal(t, "postgres,template0,template1",
		ask[string](t, existing.URL("postgres"), "SELECT string_agg(datname, ',' ORDER BY datname) FROM pg_database"),
		"neither databases nor templates stay behind")
}
