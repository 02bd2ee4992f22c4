package statedir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/fuzztest"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// FuzzOpen opens a directory whose marker and lock hold anything. It is taken
// for ours only where the marker says so, and a directory that is refused stays
// as it is.
func FuzzOpen(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "cyborg-state 1\n", "cyborg-state 2\n", "cyborg-state 0", "cyborg-state -1", "cyborg-state 99999999999999999999") {
		f.Add([]byte(text), []byte("4711\n"))
		f.Add([]byte("cyborg-state 1\n"), []byte(text))
	}

	f.Fuzz(func(t *testing.T, marker, lock []byte) {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o700))
		path := filepath.Join(dir, "cyborg-state")
		require.NoError(t, os.WriteFile(path, marker, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), lock, 0o600))

		opened, err := statedir.Open(dir)
		if err == nil {
			require.NoError(t, opened.Close())
			return
		}

		fuzztest.RequireRefusal(t, err)
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(marker), string(kept))
	})
}
