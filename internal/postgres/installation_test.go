package postgres_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/postgres"
)

// fakeBinaries makes a directory of binaries that claim to be of this version
// and can do nothing.
func fakeBinaries(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(filepath.Dir(place(t)), "bin")
	require.NoError(t, os.Mkdir(dir, 0o755))
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)

	// A process that another test forks meanwhile has the file open for writing until
	// it executes, and nobody can execute a file that is.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	for _, name := range []string{"postgres", "pg_ctl", "initdb"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return dir
}

// TestUnusableBinaries: binaries that cannot serve the data are refused with
// the reason, and the data is left alone.
func TestUnusableBinaries(t *testing.T) {
	t.Parallel()
	old := fakeBinaries(t, "14.9 (Debian 14.9-1)")
	future := fakeBinaries(t, "99beta1")
	empty := filepath.Dir(place(t))

	t.Run("too old", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		cfg.BinDir = old
		requireRefusal(t, cfg, cyborg.ErrUnavailable, "PostgreSQL 15 or newer is needed, and there is only 14.9 in "+old+": install it (on Debian")
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		cfg.BinDir = empty
		requireRefusal(t, cfg, cyborg.ErrInvalid, empty+" holds no usable PostgreSQL server: initdb is missing")
	})
	t.Run("other than the data's", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		server := start(t, cfg)
		exec1(t, server.URL("postgres"), "CREATE TABLE kept AS SELECT 42 AS answer")
		stop(t, server)

		other := cfg
		other.BinDir = future
		requireRefusal(t, other, cyborg.ErrUnavailable, "and there is only 99beta1 in "+future+": install that version")

		server = start(t, cfg)
		require.Equal(t, 42, ask[int](t, server.URL("postgres"), "SELECT answer FROM kept"), "nothing is damaged")
	})
	t.Run("data of a version that is not there", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		data := filepath.Join(cfg.Dir, "data")
		require.NoError(t, os.MkdirAll(data, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("9\n"), 0o600))
		if os.Geteuid() == 0 {
			require.NoError(t, os.Chown(data, nobody, nobody))
		}

		requireRefusal(t, cfg, cyborg.ErrUnavailable, "was made by PostgreSQL 9, and there is only")
	})
	t.Run("data that is none", func(t *testing.T) {
		t.Parallel()
		cfg := config(t)
		require.NoError(t, os.MkdirAll(filepath.Join(cfg.Dir, "data"), 0o700))
		requireRefusal(t, cfg, cyborg.ErrInvalid, "PostgreSQL's directory cannot be used: open "+filepath.Join(cfg.Dir, "data", "PG_VERSION"))
	})
}

// TestBinariesAreFound: binaries from PATH are used where they are new enough
// and fit the data, and otherwise those that are installed elsewhere.
func TestBinariesAreFound(t *testing.T) {
	cfg := config(t)
	stop(t, start(t, cfg))

	// What PATH offers is taken first where it is new enough.
	future := fakeBinaries(t, "99.1")
	t.Setenv("PATH", future+":"+os.Getenv("PATH"))
	_, err := postgres.Start(t.Context(), config(t), testLog(t))
	require.ErrorContains(t, err, "PostgreSQL (process", "the fake was taken, which ends at once")

	// It does not fit this data, so what is installed elsewhere is taken.
	stop(t, start(t, cfg))

	t.Setenv("PATH", fakeBinaries(t, "13.1")+":/usr/bin:/bin")
	stop(t, start(t, config(t)))

	t.Setenv("PATH", "/nonexistent")
	stop(t, start(t, config(t)))
}
