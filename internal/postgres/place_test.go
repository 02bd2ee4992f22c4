package postgres_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// nobody is the id of the user and of the group of that name.
const nobody = 65534

// TestSuiteAsAnUnprivilegedUser runs all of these tests again as an ordinary
// user.
func TestSuiteAsAnUnprivilegedUser(t *testing.T) {
	t.Parallel()
	needtest.Root(t)
	home := filepath.Dir(place(t))
	require.NoError(t, os.Chown(home, nobody, nobody))

	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.count=1", "-test.timeout=1h")
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home, "XDG_RUNTIME_DIR="+home,
		needtest.Variable+"=") // what needs root runs as root, here
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}

	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Contains(t, string(output), "PASS")
}

// TestRootRunsTheServerAsAnotherUser: PostgreSQL refuses to run as root, so
// root runs it as the configured user or as the owner of the data.
func TestRootRunsTheServerAsAnotherUser(t *testing.T) {
	t.Parallel()
	needtest.Root(t)
	cfg := config(t)
	cfg.User = "nobody"
	server := start(t, cfg)
	requireOwner(t, fmt.Sprintf("/proc/%d", server.PID()), nobody)
	requireOwner(t, cfg.Dir, 0)
	for _, below := range []string{"data", "run"} {
		requireOwner(t, filepath.Join(cfg.Dir, below), nobody)
	}
	stop(t, server)

	cfg.User = "" // the owner of the data takes precedence over the user postgres
	server = start(t, cfg)
	requireOwner(t, fmt.Sprintf("/proc/%d", server.PID()), nobody)
}

// requireOwner asserts that a file belongs to the user.
func requireOwner(t *testing.T, path string, uid int) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	require.True(t, ok)
	require.Equal(t, uid, int(stat.Uid), path)
}

func TestUnusableServerUser(t *testing.T) {
	t.Parallel()
	needtest.Root(t)
	for user, want := range map[string]string{
		"root":     "PostgreSQL refuses to run as root",
		"nosuchus": "user nosuchus has no entry in /etc/passwd",
	} {
		cfg := config(t)
		cfg.User = user
		requireRefusal(t, cfg, cyborg.ErrInvalid, want)
	}
}

// TestUnreachableDirectory: where the server's user cannot reach the directory,
// the error names the command that lets it pass.
func TestUnreachableDirectory(t *testing.T) {
	t.Parallel()
	needtest.Root(t)
	cfg := config(t)
	closed := filepath.Join(filepath.Dir(cfg.Dir), "closed")
	require.NoError(t, os.MkdirAll(filepath.Join(closed, "in"), 0o755))
	require.NoError(t, os.Chmod(closed, 0o700))
	cfg.Dir = filepath.Join(closed, "in", "postgres")

	requireRefusal(t, cfg, cyborg.ErrInvalid,
		"cannot pass "+closed+" on its way to "+cfg.Dir+": run `chmod o+x "+closed+"`")
	require.NoDirExists(t, filepath.Join(cfg.Dir, "data"))

	require.NoError(t, os.Chmod(closed, 0o711))
	start(t, cfg)
}

func TestDirectoryOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may enter anything; TestSuiteAsAnUnprivilegedUser runs it")
	}
	cfg := config(t)
	require.NoError(t, os.Chmod(filepath.Dir(cfg.Dir), 0o500))
	requireRefusal(t, cfg, cyborg.ErrInvalid, "PostgreSQL's directory cannot be used as user")
	require.NoError(t, os.Chmod(filepath.Dir(cfg.Dir), 0o700))
}

// TestDirectoryWithAnOddName: a directory may contain characters that have a
// meaning in URLs, shells or PostgreSQL's files.
func TestDirectoryWithAnOddName(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Dir = filepath.Join(filepath.Dir(cfg.Dir), `it's a "50%+1" & ? = # dir`)
	server := start(t, cfg)
	require.Equal(t, "cyborg", ask[string](t, server.URL("postgres"), "SHOW cluster_name"))

	stop(t, server)
	orphan(t, cfg)
	require.True(t, start(t, cfg).TookOver())
}

// TestDirectoryWithALongName: the name of a socket has at most 107 bytes, so
// the socket of a directory with a long name is in another place.
func TestDirectoryWithALongName(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Dir = filepath.Join(filepath.Dir(cfg.Dir), strings.Repeat("long", 25))
	server := start(t, cfg)
	parsed, err := pgx.ParseConfig(server.URL("postgres"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(parsed.Host), 80)
	require.Equal(t, "cyborg", ask[string](t, server.URL("postgres"), "SHOW cluster_name"))

	info, err := os.Stat(parsed.Host)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	stop(t, server)
	require.NoDirExists(t, parsed.Host)

	// Everybody can create directories there, so it may be somebody else's.
	require.NoError(t, os.Mkdir(parsed.Host, 0o700))
	t.Cleanup(func() { require.NoError(t, os.Remove(parsed.Host)) })
	require.NoError(t, os.Chmod(parsed.Host, 0o777))
	requireRefusal(t, cfg, cyborg.ErrInvalid, parsed.Host+" should be a directory of user")
}

// TestFullDisk: a full disk is named as the reason of a failed start. The
// server starts again when there is space, and its data is intact.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	needtest.Root(t)
	cfg := config(t)
	disk := filepath.Dir(cfg.Dir)
	mount := func(options string, flags uintptr) error {
		return syscall.Mount("tmpfs", disk, "tmpfs", flags, "mode=0711,size="+options)
	}

	err := mount("20m", 0)
	needtest.That(t, !errors.Is(err, syscall.EPERM), "this user may not mount a small disk")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })

	requireRefusal(t, cfg, cyborg.ErrUnavailable, "no space is left on the disk that holds "+cfg.Dir)
	require.NoDirExists(t, filepath.Join(cfg.Dir, "data"))

	require.NoError(t, mount("200m", syscall.MS_REMOUNT))
	server := start(t, cfg)
	exec1(t, server.URL("postgres"), "CREATE TABLE kept AS SELECT 42 AS answer")
	stop(t, server)

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	requireRefusal(t, cfg, cyborg.ErrUnavailable, "no space is left on the disk that holds "+cfg.Dir)

	require.NoError(t, os.Remove(filler))
	server = start(t, cfg)
	require.Equal(t, 42, ask[int](t, server.URL("postgres"), "SELECT answer FROM kept"), "nothing is damaged")
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	require.NoError(t, err)

	block := make([]byte, 4096)
	for err == nil {
		_, err = file.Write(block)
	}

	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, file.Close())
}

func TestFailedStartQuotesTheLog(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Settings = map[string]string{"shared_buffers": "plenty"}
	requireRefusal(t, cfg, cyborg.ErrUnavailable, `FATAL: configuration file`)
}

// requireRefusal asserts that a server does not start, says why in one line,
// and leaves nothing running.
func requireRefusal(t *testing.T, cfg postgres.Config, kind cyborg.ErrorKind, want string) {
	t.Helper()
	_, err := postgres.Start(t.Context(), cfg, testLog(t))
	require.Equal(t, kind, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, want)
	require.NotContains(t, err.Error(), "\n")
	require.NoFileExists(t, filepath.Join(cfg.Dir, "data", "postmaster.pid"))
}
