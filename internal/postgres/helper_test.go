package postgres_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/environtest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// helperEnv makes the test binary a process that starts a server with the
// Config that the variable holds, writes the process id of the server, and
// waits to be killed.
const helperEnv = "POSTGRES_TEST_HELPER"

func TestMain(m *testing.M) {
	if config := os.Getenv(helperEnv); config != "" {
		os.Exit(help(config))
	}
	environtest.Main(m)
}

// help is that process. It returns its exit status.
func help(config string) int {
	var cfg postgres.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Println(err)
		return 1
	}

	fmt.Println("starting")
	server, err := postgres.Start(context.Background(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return 1
	}

	fmt.Println("ready", server.PID())
	<-server.Done()
	return 0
}

// helper runs such a process and returns it, with its output after the line
// "starting".
func helper(t *testing.T, cfg postgres.Config) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	config, err := json.Marshal(cfg)
	require.NoError(t, err)

	cmd := exec.CommandContext(context.Background(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+string(config))
	cmd.Stderr = os.Stderr

	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})

	lines := bufio.NewReader(output)
	require.Equal(t, "starting\n", line(t, lines))
	return cmd, lines
}

// line reads one line.
func line(t *testing.T, lines *bufio.Reader) string {
	t.Helper()
	text, err := lines.ReadString('\n')
	require.NoError(t, err)
	return text
}

// orphan leaves a running server behind whose parent was killed, and returns
// its process id.
func orphan(t *testing.T, cfg postgres.Config) int {
	t.Helper()
	cmd, lines := helper(t, cfg)

	var pid int
	text := line(t, lines)
	_, err := fmt.Sscanf(text, "ready %d", &pid)
	require.NoError(t, err, text)

	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	t.Cleanup(func() {
		if ours(pid, cfg.Dir) {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	})
	return pid
}

// ours says whether a process is a server on the data of that directory.
func ours(pid int, dir string) bool {
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	return err == nil && cwd == filepath.Join(dir, "data")
}

// place returns a directory that does not exist yet and that the server's user
// can reach.
func place(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "pg") //nolint:usetesting // t.TempDir is closed to other users
	require.NoError(t, err)
	require.NoError(t, os.Chmod(parent, 0o711))
	t.Cleanup(func() {
		// A server that was killed may still be writing.
		require.Eventually(t, func() bool { return os.RemoveAll(parent) == nil }, 5*time.Minute, 50*time.Millisecond)
	})
	return filepath.Join(parent, "postgres")
}

// config returns the configuration of a server for tests.
func config(t *testing.T) postgres.Config {
	t.Helper()
	return postgres.Config{Dir: place(t), FsyncOff: true}
}

// start starts a server that ends with the test.
func start(t *testing.T, cfg postgres.Config) *postgres.Server {
	t.Helper()
	server, err := postgres.Start(t.Context(), cfg, testLog(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	return server
}

// stop stops a server.
func stop(t *testing.T, server *postgres.Server) {
	t.Helper()
	require.NoError(t, server.Stop(t.Context()))
}

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

// exec1 runs one statement.
func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

// testLog writes to the test's output.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// testWriter writes whole lines to the test's output.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.t.Output(), strings.TrimRight(string(p), "\n")+"\n")
	return len(p), err
}
