package standalone_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// limit is how long something may take on a busy machine that takes a moment on
// an idle one.
const limit = 10 * time.Minute

// TestSignalsStopInOrder stops a standalone with each of the signals: Ctrl-C,
// the stop of a service manager, a closed terminal. Each stop is in order, and
// the next start continues.
func TestSignalsStopInOrder(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	keep(t, s)

	ways := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // it is ignored under nohup, and then also by the standalone
		ways = append(ways, syscall.SIGHUP)
	}

	for _, way := range ways {
		s.Signal(t, way)

		// Supervisors may send a signal several times. Only a second Ctrl-C has a
		// meaning of its own.
		for range 20 {
			if way != syscall.SIGINT {
				s.Signal(t, way)
			}
		}

		require.Equal(t, 0, s.WaitExit(t), way)
		require.Empty(t, processes(t, s.StateDir), way)

		s.Restart(t)
		requireKept(t, s)
	}

	require.Equal(t, len(ways), strings.Count(s.Output(), "\nStopping; what is in flight goes on at the next start.\n"))
	for line := range strings.Lines(s.Output()) {
		if !strings.Contains(line, "component=temporal") { // on a busy machine Temporal complains of what takes it long
			require.NotContains(t, line, "level=ERROR")
		}
	}
	require.NotContains(t, s.Output(), "keeps the options")
}

// TestOperationsOutliveAStop stops a standalone while a step runs, which it
// names. The next start says that a backend keeps the options that were set
// meanwhile, in place of those of --hosts, and prints the command that resets
// them.
func TestOperationsOutliveAStop(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Env: []string{"CYBORG_AGENT_STOP_TIMEOUT=1s"}})

	created, err := s.API.Provision(t.Context(), apiclient.Provisioning{Name: "slow"})
	require.NoError(t, err)
	id, err := created.Created()
	require.NoError(t, err)

	_, stderr, code := s.CLI(t, "driver", "update", "fake", "fake", "--option", "park=2xfpga,1xgpu", "--option", "attach_latency=10m") // it must still run after the restart
	require.Zero(t, code, stderr)

	answer, err := s.API.Attach(t.Context(), id, cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"}, apiclient.Async())
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		operation, err := s.API.Operation(t.Context(), answer.Operation.ID)
		return err == nil && operation.State == cyborg.OperationRunning
	}, limit, 5*time.Millisecond)

	// Each stop asks the database for some seconds, which a machine that stalls may
	// take. Then it says so, and another one is told.
	starts, told := 1, false
	for ; !told; starts++ {
		require.Less(t, starts, 5, s.Output())
		before := len(s.Output())
		require.Equal(t, 0, s.Stop(t))

		said := s.Output()[before:]
		told = strings.Contains(said, "A step that runs has 1s to end; a second Ctrl-C does not wait for it.\n  attach of local on fake, admitted ")
		require.True(t, told || strings.Contains(said, "cannot tell what is in flight"), said)
		s.Restart(t)
	}

	waitFor(t, s, "Try, in another terminal", starts)
	require.Contains(t, s.Output(), "Backend fake of host fake keeps the options that it was given since. For those of --hosts:\n")
	reset := regexp.MustCompile(`(?m)^  \S*cyborg driver (update fake fake --option park=\S+)$`).FindStringSubmatch(s.Output())
	require.NotNil(t, reset, s.Output())

	_, stderr, code = s.CLI(t, "operation", "cancel", answer.Operation.ID.String(), "--yes")
	require.Zero(t, code, stderr)

	_, stderr, code = s.CLI(t, append([]string{"driver"}, strings.Fields(reset[1])...)...)
	require.Zero(t, code, stderr)

	require.Equal(t, 0, s.Stop(t))

	before := len(s.Output())
	s.Restart(t)
	waitFor(t, s, "Try, in another terminal", starts+1)
	require.NotContains(t, s.Output()[before:], "keeps the options")
}

// killedTest is the environment variable that makes
// TestKilledTestLeavesNoProcesses the test to be killed. It holds the directory
// for the test's state.
const killedTest = "KILLED_TEST_IN"

// TestKilledTestLeavesNoProcesses kills a test that runs a standalone. All
// processes of the standalone end.
func TestKilledTestLeavesNoProcesses(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(killedTest); dir != "" {
		harness.Start(t, harness.Options{Dir: dir})
		require.NoError(t, os.WriteFile(filepath.Join(dir, "running"), nil, 0o600))
		<-t.Context().Done() // it ends only with the kill
	}

	dir := harness.Place(t)

	test := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	test.Env = append(os.Environ(), killedTest+"="+dir)
	require.NoError(t, test.Start())

	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "running"))
		return err == nil
	}, limit, 20*time.Millisecond)

	require.NotEmpty(t, processes(t, dir))
	require.NoError(t, test.Process.Kill())
	require.Error(t, test.Wait())

	// The standalone stops in order: Temporal and PostgreSQL may take half a minute
	// each, and running steps have their time before. The kernel may send it the
	// signal several times, once for each thread of the test that becomes the
	// parent.
	require.Eventually(t, func() bool { return len(processes(t, dir)) == 0 }, limit, 20*time.Millisecond)
}

// TestStopWhileStarting stops a standalone at different moments of its start.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()

	s := harness.New(t, harness.Options{})
	const schema = "The schema went" // printed by the first start only

	for _, line := range []string{"State is in", "PostgreSQL is ready", schema, "PostgreSQL is ready", "Temporal is ready"} {
		seen := strings.Count(s.Output(), line)
		if line == schema && seen > 0 {
			continue // the stop before came after the migration
		}

		s.Launch(t)
		waitFor(t, s, line, seen+1)
		s.Signal(t, syscall.SIGTERM)

		require.Equal(t, 0, s.WaitExit(t), "stopped after %q", line)
		require.Empty(t, processes(t, s.StateDir), "stopped after %q", line)
	}

	require.NotRegexp(t, `(?m)^Error: `, s.Output(), "a stop is not an error")

	s.Restart(t)
	keep(t, s)
	requireKept(t, s)
}

// waitFor waits until the standalone has printed a text this many times.
func waitFor(t *testing.T, s *harness.Standalone, text string, times int) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(s.Output(), text) >= times || !s.Running() },
		limit, 5*time.Millisecond, "the standalone has not printed %q", text)
	require.GreaterOrEqual(t, strings.Count(s.Output(), text), times, "the standalone ended before it printed %q:\n%s", text, s.Output())
}

// TestOrphanedPostgresIsTakenOver kills a standalone. Its PostgreSQL continues
// alone, and the next start takes it over.
func TestOrphanedPostgresIsTakenOver(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})

	keep(t, s)
	pid := postmaster(t, s)

	s.Kill(t)
	require.NoError(t, syscall.Kill(pid, 0), "PostgreSQL must survive the kill")

	s.Restart(t)
	require.Contains(t, s.Output(), "taken over from a process that was killed")
	require.Equal(t, pid, postmaster(t, s))
	requireKept(t, s)

	require.Equal(t, 0, s.Stop(t))
	require.Empty(t, processes(t, s.StateDir), "processes after the stop, which also stops the PostgreSQL that was taken over")
}

// postmaster returns the process id of the standalone's PostgreSQL.
func postmaster(t *testing.T, s *harness.Standalone) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.StateDir, "postgres", "data", "postmaster.pid"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "\n")

	pid, err := strconv.Atoi(first)
	require.NoError(t, err)
	return pid
}

// TestPostgresDies kills the PostgreSQL of a standalone, which then ends with
// an error.
func TestPostgresDies(t *testing.T) {
	t.Parallel()

	s := harness.Start(t, harness.Options{})
	keep(t, s)
	require.NoError(t, syscall.Kill(postmaster(t, s), syscall.SIGKILL))
	require.Equal(t, commandline.ExitUnavailable, s.WaitExit(t))

	said := s.Output()
	require.Equal(t, 1, strings.Count(said, "\nError: "), said)
	require.Contains(t, said, "Error: PostgreSQL: ")

	s.Restart(t)
	requireKept(t, s)
}

// TestConcurrentStarts starts two standalones on one state directory. One wins,
// and the other ends with an error that names the winner.
func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	const starts = 2
	dir := harness.Place(t)

	both := make([]*harness.Standalone, starts)
	for i := range both { // each with ports of its own
		both[i] = harness.New(t, harness.Options{Dir: dir})
	}

	for _, one := range both {
		one.Launch(t)
	}

	var winner, loser *harness.Standalone
	require.Eventually(t, func() bool {
		for i, one := range both {
			if !one.Running() {
				winner, loser = both[1-i], one
			}
		}
		return loser != nil
	}, limit, 5*time.Millisecond)

	require.Equal(t, commandline.ExitConflict, loser.WaitExit(t))
	requireSentence(t, loser.Output(), fmt.Sprintf("%s is used by process %d", loser.StateDir, winner.PID()))

	winner.WaitReady(t)
	keep(t, winner)
	requireKept(t, winner)
}

// TestFullDisk fills the disk before the first start, before a later start, and
// while everything runs.
func TestFullDisk(t *testing.T) {
	t.Parallel()

	dir := harness.Place(t)
	mount := func(size string, flags uintptr) error {
		return syscall.Mount("tmpfs", dir, "tmpfs", flags, "mode=0755,size="+size)
	}

	err := mount("20m", 0)
	needtest.That(t, err == nil, fmt.Sprintf("this user may not mount a small disk: %v", err))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })

	s := harness.New(t, harness.Options{Dir: dir})
	requireRefusal(t, s, commandline.ExitUnavailable, []string{"no space is left on the disk that holds " + s.StateDir})

	require.NoError(t, mount("200m", syscall.MS_REMOUNT))
	s.Restart(t)

	keep(t, s)
	require.Equal(t, 0, s.Stop(t))

	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	requireRefusal(t, s, commandline.ExitUnavailable, []string{"no space is left on the disk that holds " + s.StateDir})

	require.NoError(t, os.Remove(filler))
	s.Restart(t)
	requireKept(t, s)

	// While the disk is full, requests may be refused or wait. Nothing that has
	// succeeded is lost.
	fill(t, filler)
	for _, a := range s.Accelerators(t) {
		if a.Name != keptName {
			_, err := s.API.MakeReady(t.Context(), a.UUID)
			t.Logf("a provision on a full disk: %v", err)
		}
	}
	require.NoError(t, os.Remove(filler))
	if !s.Running() {
		s.Restart(t)
	}
	requireKept(t, s)
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
