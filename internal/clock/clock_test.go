package clock_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/clock"
)

func TestClockIsTheMachines(t *testing.T) {
	t.Setenv(clock.FileVariable, "")
	earlier := time.Now()
	require.WithinRange(t, clock.System()(), earlier, time.Now())
}

func TestClockJumps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "off")
	t.Setenv(clock.FileVariable, path)
	now := clock.System()
	for text, off := range map[string]time.Duration{"-3h\n": -3 * time.Hour, "90m": 90 * time.Minute, "": 0, "nonsense": 0} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		earlier := time.Now().Round(0)
		require.WithinRange(t, now(), earlier.Add(off), time.Now().Add(off), text)
	}
}
