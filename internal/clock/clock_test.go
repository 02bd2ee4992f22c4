package clock_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/clock"
)

func TestClockIsTheSystemClock(t *testing.T) {
	t.Setenv(clock.FileVariable, "")
	earlier := time.Now()
	require.WithinRange(t, clock.System()(), earlier, time.Now())
}

// TestClockJumps: the offset is read each time, and a file that cannot be read
// as one means none.
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

// TestSleep: it lasts as long as it is told, unless its context ends, whose
// cause it returns.
func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, clock.Sleep(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(began))

		over := errors.New("over")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(over) })
		require.ErrorIs(t, clock.Sleep(ctx, time.Hour), over)
		require.Equal(t, time.Hour+time.Minute, time.Since(began))
	})
}
