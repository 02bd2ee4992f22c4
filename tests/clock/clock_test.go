package clock_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/tests/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// tell is the variable that makes this program tell the time and end.
const tell = "TELL_THE_TIME"

// TestMain is the small Go program whose clock the tests change: at each line of
// its input it writes the time of day, and what the monotonic clock says passed
// since the start.
func TestMain(m *testing.M) {
	if os.Getenv(tell) == "" {
		os.Exit(m.Run())
	}

	began := time.Now()
	var line string
	for {
		if _, err := fmt.Scanln(&line); err != nil {
			return
		}
		fmt.Println(time.Now().Unix(), int64(time.Since(began)/time.Second))
	}
}

// program starts this program with a clock that is off, and returns what it says
// of the time whenever it is asked.
func program(t *testing.T, offset time.Duration) (cmd *exec.Cmd, ask func() (now time.Time, passed time.Duration)) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), tell+"=1")

	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, clock.Start(cmd, offset))

	t.Cleanup(func() {
		require.NoError(t, input.Close())
		require.NoError(t, cmd.Wait())
	})

	return cmd, func() (time.Time, time.Duration) {
		_, err := fmt.Fprintln(input, "now")
		require.NoError(t, err)
		var now, passed int64
		_, err = fmt.Fscanln(output, &now, &passed)
		require.NoError(t, err)
		return time.Unix(now, 0), time.Duration(passed) * time.Second
	}
}

// requireOff asks for the time, and fails the test where the answer is not off
// by the offset. Answers are whole seconds, of a clock that may be a tick late.
func requireOff(t *testing.T, offset time.Duration, ask func() time.Time) {
	t.Helper()
	before := time.Now().Add(offset).Truncate(time.Second).Add(-time.Second)
	now := ask()
	require.WithinRange(t, now, before, time.Now().Add(offset))
}

// TestNeed is how make test asks whether clocks of processes can be changed here:
// it fails where they cannot, and CYBORG_TEST_CLOCKS=required.
func TestNeed(t *testing.T) {
	t.Parallel()
	clock.Need(t)
}

// TestGoProgram: the clock of a static Go program is off from its first
// instruction, and jumps while it runs. What it measures does not.
func TestGoProgram(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	began := time.Now()
	cmd, ask := program(t, -time.Hour)

	now := func() time.Time {
		now, passed := ask()
		require.LessOrEqual(t, passed, time.Since(began), "the monotonic clock has jumped")
		return now
	}
	requireOff(t, -time.Hour, now)

	for _, offset := range []time.Duration{time.Hour, 36 * time.Hour, 0, -time.Minute} {
		require.NoError(t, clock.Shift(cmd.Process.Pid, offset))
		requireOff(t, offset, now)
	}
}

// TestLibcProgram: so is the clock of a program that asks the C library.
func TestLibcProgram(t *testing.T) {
	t.Parallel()
	clock.Need(t)

	for _, offset := range []time.Duration{0, time.Hour, -time.Hour} {
		requireOff(t, offset, func() time.Time {
			cmd := exec.Command("date", "+%s")
			var output strings.Builder
			cmd.Stdout = &output
			require.NoError(t, clock.Start(cmd, offset))
			require.NoError(t, cmd.Wait())
			seconds, err := strconv.ParseInt(strings.TrimSpace(output.String()), 10, 64)
			require.NoError(t, err)
			return time.Unix(seconds, 0)
		})
	}
}

// TestForkInheritsTheClock: a fork has the clock of its parent, and one of its
// own from then on. $EPOCHSECONDS of bash is the C library's time().
func TestForkInheritsTheClock(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	needtest.Program(t, "bash")

	cmd := exec.Command("bash", "-c", `(while read -r line; do echo "$BASHPID $EPOCHSECONDS"; done)`)
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, clock.Start(cmd, time.Hour))

	var fork int
	ask := func() time.Time {
		_, err := fmt.Fprintln(input, "now")
		require.NoError(t, err)
		var now int64
		_, err = fmt.Fscanln(output, &fork, &now)
		require.NoError(t, err)
		return time.Unix(now, 0)
	}

	requireOff(t, time.Hour, ask)
	require.NotEqual(t, cmd.Process.Pid, fork)

	require.NoError(t, clock.Shift(fork, -time.Hour))
	requireOff(t, -time.Hour, ask)

	require.NoError(t, input.Close())
	require.NoError(t, cmd.Wait())
}

// TestPostgreSQL: so is the clock of a server that works in forks.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	clock.Need(t)

	server, err := postgres.Start(t.Context(), postgres.Config{
		Dir: filepath.Join(harness.Place(t), "postgres"), FsyncOff: true, DieWithParent: true,
		Run: func(cmd *exec.Cmd) error { return clock.Start(cmd, time.Hour) },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })

	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })

	now := func() (now time.Time) {
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now))
		return now
	}
	requireOff(t, time.Hour, now)

	require.NoError(t, clock.Shift(int(conn.PgConn().PID()), -time.Hour))
	requireOff(t, -time.Hour, now)
}

// TestShiftRefuses: the clock of a process that another way started cannot jump,
// and neither can that of one that has ended.
func TestShiftRefuses(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	require.ErrorContains(t, clock.Shift(os.Getpid(), time.Hour), "was started with the machine's clock")

	cmd := exec.Command("true")
	require.NoError(t, clock.Start(cmd, 0))
	require.NoError(t, cmd.Wait())
	require.ErrorIs(t, clock.Shift(cmd.Process.Pid, 0), os.ErrProcessDone)
}

// TestEndMeanwhile: a process that ends while its clock is looked for has ended,
// and is not without one.
func TestEndMeanwhile(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	for range 100 {
		cmd := exec.Command("sleep", "3600")
		require.NoError(t, clock.Start(cmd, time.Hour))

		ended := make(chan error)
		go func() {
			for {
				if err := clock.Shift(cmd.Process.Pid, time.Hour); err != nil {
					ended <- err
					return
				}
			}
		}()

		require.NoError(t, cmd.Process.Kill())
		require.ErrorIs(t, <-ended, os.ErrProcessDone)
		require.Error(t, cmd.Wait(), "it was killed")
	}
}

// TestStartReportsAFailure: a program that does not exist is reported as
// exec.Cmd does.
func TestStartReportsAFailure(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	require.ErrorIs(t, clock.Start(exec.Command("/nowhere/program"), 0), os.ErrNotExist)
}
