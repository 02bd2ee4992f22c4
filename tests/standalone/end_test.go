package standalone_test

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// limit is how long something may take that takes a moment on a machine at rest.
const limit = time.Minute

// Ctrl-C, a service manager's stop and a closed terminal all end it in order, and each next start goes on.
func TestSignalsStopInOrder(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	keep(t, s)
	ways := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup, which the standalone heeds too
		ways = append(ways, syscall.SIGHUP)
	}
	for _, way := range ways {
		s.Signal(t, way)
		require.Equal(t, 0, s.WaitExit(t), way)
		require.Empty(t, processes(t, s.StateDir), way)
		s.Restart(t)
		requireKept(t, s)
	}
	require.Equal(t, len(ways), strings.Count(s.Output(), "\nStopping; what is in flight goes on at the next start.\n"))
	require.NotContains(t, s.Output(), "level=ERROR")
}

// It can be told to stop at any moment of its start.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{})
	for _, line := range []string{"State is in", "PostgreSQL is ready", "The schema went", "PostgreSQL is ready", "Temporal is ready"} {
		seen := strings.Count(s.Output(), line)
		s.Launch(t)
		waitFor(t, s, line, seen+1)
		s.Signal(t, syscall.SIGTERM)
		require.Equal(t, 0, s.WaitExit(t), "told to stop after %q", line)
		require.Empty(t, processes(t, s.StateDir), "told to stop after %q", line)
	}
	require.NotContains(t, s.Output(), "cyborg-standalone: ", "a stop is no failure")
	s.Restart(t)
	keep(t, s)
	requireKept(t, s)
}

func waitFor(t *testing.T, s *harness.Standalone, text string, times int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(s.Output(), text) >= times || !s.Running() },
		limit, 5*time.Millisecond, "it never said %q", text)
	require.GreaterOrEqual(t, strings.Count(s.Output(), text), times, "it ended before it said %q:\n%s", text, s.Output())
}

// After a kill -9 PostgreSQL goes on alone, and the next start takes it over.
func TestTakesOverItsOrphan(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	keep(t, s)
	pid := postmaster(t, s)
	s.Kill(t)
	require.NoError(t, syscall.Kill(pid, 0), "PostgreSQL lives on")
	s.Restart(t)
	require.Contains(t, s.Output(), "taken over from a process that was killed")
	require.Equal(t, pid, postmaster(t, s))
	requireKept(t, s)
	require.Equal(t, 0, s.Stop(t))
	require.Empty(t, processes(t, s.StateDir), "what was taken over is stopped, too")
}

func postmaster(t *testing.T, s *harness.Standalone) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.StateDir, "postgres", "data", "postmaster.pid"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	require.NoError(t, err)
	return pid
}

// Without its PostgreSQL it ends, and says why.
func TestPostgresDies(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	keep(t, s)
	require.NoError(t, syscall.Kill(postmaster(t, s), syscall.SIGKILL))
	require.Equal(t, 1, s.WaitExit(t))
	said := s.Output()
	require.Equal(t, 1, strings.Count(said, "\ncyborg-standalone: "), said)
	require.Contains(t, said, "cyborg-standalone: PostgreSQL: ")
	s.Restart(t)
	requireKept(t, s)
}

// Of two starts at once one wins; the other says so, and disturbs nothing.
func TestTwoStartsAtOnce(t *testing.T) {
	t.Parallel()
	const starts = 2
	dir := harness.Place(t)
	rivals := make([]*harness.Standalone, starts)
	for i := range rivals { // each with ports of its own
		rivals[i] = harness.New(t, harness.Options{Dir: dir})
	}
	for _, rival := range rivals {
		rival.Launch(t)
	}
	var winner, loser *harness.Standalone
	require.Eventually(t, func() bool {
		for i, rival := range rivals {
			if !rival.Running() {
				winner, loser = rivals[1-i], rival
			}
		}
		return loser != nil
	}, limit, 5*time.Millisecond)
	require.Equal(t, 1, loser.WaitExit(t))
	requireSentence(t, loser.Output(), fmt.Sprintf("%s is used by process %d", loser.StateDir, winner.PID()))
	winner.WaitReady(t)
	keep(t, winner)
	requireKept(t, winner)
}

// A disk that is full at the first start, at a later one, or while everything runs.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := harness.Place(t)
	mount := func(size string, flags uintptr) error {
		return syscall.Mount("tmpfs", dir, "tmpfs", flags, "mode=0755,size="+size)
	}
	if err := mount("20m", 0); err != nil {
		t.Skipf("this user may not mount a small disk: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	s := harness.New(t, harness.Options{Dir: dir})
	requireRefusal(t, s, []string{"no space is left on the disk that holds " + s.StateDir})

	require.NoError(t, mount("200m", syscall.MS_REMOUNT))
	s.Restart(t)
	keep(t, s)
	require.Equal(t, 0, s.Stop(t))
	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	requireRefusal(t, s, []string{"no space is left on the disk that holds " + s.StateDir})

	require.NoError(t, os.Remove(filler))
	s.Restart(t)
	requireKept(t, s)

	// While the disk is full, something may be refused and something may wait. Nothing that was done is lost.
	fill(t, filler)
	for _, a := range s.Accelerators(t) {
		if a.Name != keptName {
			_, err := s.API.MakeReady(t.Context(), a.UUID)
			t.Logf("on a full disk: %v", err)
		}
	}
	require.NoError(t, os.Remove(filler))
	if !s.Running() {
		s.Restart(t)
	}
	requireKept(t, s)
}

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
