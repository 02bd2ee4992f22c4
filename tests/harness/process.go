package harness

import (
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/clock"
)

// stopLimit is how long a process may take for an orderly stop. It is generous
// for a busy machine: it ends what hangs, and measures nothing.
const stopLimit = 10 * time.Minute

// process is a program that a test runs, kills and runs again. Its methods fail
// the test on an error, and are for the goroutine of the test only.
type process struct {
	name   string // name of the binary
	cmd    *exec.Cmd
	exited chan struct{}  // closed when the current run has ended; nil before the first
	output *output        // of all runs
	offset *time.Duration // of its clock; nil for the machine's clock
}

// newProcess returns a process of this binary, which does not run yet.
func newProcess(name string) process { return process{name: name, output: &output{}} }

// start runs the program and returns at once. The first call registers the
// check for defects, so that it happens once, over the output of all runs.
func (p *process) start(t testing.TB, env []string, args ...string) {
	t.Helper()
	if p.cmd == nil {
		t.Cleanup(func() { p.requireNoDefect(t) })
	}

	p.cmd = exec.Command(Binary(t, p.name), args...) //nolint:noctx // it outlives any context but the test
	p.cmd.Env = env
	require.NoError(t, p.output.open())
	p.cmd.Stdout, p.cmd.Stderr = p.output.file, p.output.file

	exited, err := startChild(p.cmd, syscall.SIGTERM, p.offset) // not SIGKILL: a standalone has to stop its PostgreSQL
	require.NoError(t, err)
	p.exited = exited
}

// startChild starts a program in a process group of its own, so that Ctrl-C at
// the terminal does not reach it. The program gets the signal when this process
// dies, however it dies. The channel is closed when the program has ended; then
// cmd.ProcessState says how. Where there is an offset, the program has a clock
// that is off by it, and that can jump.
func startChild(cmd *exec.Cmd, orphaned syscall.Signal, offset *time.Duration) (exited chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned}
	exited = make(chan struct{})
	started := make(chan error)

	go func() {
		// To the kernel the parent is this thread, not the process (prctl(2),
		// PR_SET_PDEATHSIG), so it stays as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := startClocked(cmd, offset)
		started <- err
		if err == nil {
			_ = cmd.Wait() // callers read ProcessState
			close(exited)
		}
	}()

	return exited, <-started
}

// startClocked starts the program, with a clock of its own where there is an
// offset.
func startClocked(cmd *exec.Cmd, offset *time.Duration) error {
	if offset == nil {
		return cmd.Start()
	}
	return clock.Start(cmd, *offset)
}

// SetClock makes the clock of the process wrong by this much: ahead where the
// offset is positive. It lasts over restarts. The clock of a process that runs
// jumps, if SetClock was called before its start.
func (p *process) SetClock(t testing.TB, offset time.Duration) {
	t.Helper()
	p.offset = &offset
	if p.Running() {
		require.NoError(t, shiftFamily(p.PID(), offset))
	}
}

// shiftRounds are how many times shiftFamily looks for new children at most: for
// three seconds or more, and a fork is not under way that long.
const shiftRounds = 300

// shiftFamily makes the clock of a process jump, and then those of its children,
// which are copies. A child that it forks meanwhile may be a copy of before and
// appear only after the list was made, so the list is made again until nobody
// is new. Any of them may have ended. Where new ones never cease to appear, the
// latest are copies of after, so shiftRounds lists are enough.
func shiftFamily(pid int, offset time.Duration) error {
	shift := func(pid int) error {
		err := clock.Shift(pid, offset)
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return err
	}

	err := shift(pid)
	shifted := map[int]bool{}
	for round, quiet := 0, 0; quiet < 3 && round < shiftRounds; round, quiet = round+1, quiet+1 {
		for _, child := range family(pid) {
			if !shifted[child] {
				shifted[child], quiet = true, 0
				err = errors.Join(err, shift(child))
			}
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // nothing tells that a fork is under way
	}
	return err
}

// requireNoDefect fails the test where the output of the process shows a
// defect: an answer with status 500, a panic, or an error of kind internal.
// Nothing that a test does to a process may cause one, not even a kill.
func (p *process) requireNoDefect(t testing.TB) {
	t.Helper()
	for line := range strings.Lines(p.Output()) {
		if defectPattern.MatchString(line) {
			t.Errorf("%s has a defect: %s", p.name, line)
		}
	}
}

// defectPattern matches the log lines of a defect, as text and as JSON.
var defectPattern = regexp.MustCompile(`\bstatus=500\b|\bkind=internal\b|"status":500\b|"kind":"internal"|^panic: |^fatal error: `)

// Kill ends the process like a power cut (SIGKILL), and returns when it is
// gone.
func (p *process) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	<-p.exited
}

// Stop ends the process like Ctrl-C (SIGINT) and returns its exit code. The
// test fails where that takes longer than stopLimit.
func (p *process) Stop(t testing.TB) int {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))

	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it prints the stacks of its goroutines
		<-p.exited
		t.Fatalf("%s did not stop:\n%s", p.name, p.output)
	}

	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal to the process.
func (p *process) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
}

// WaitExit waits until the process has ended by itself, at most stopLimit, and
// returns its exit code.
func (p *process) WaitExit(t testing.TB) int {
	t.Helper()

	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		t.Fatalf("%s did not end:\n%s", p.name, p.output)
	}

	return p.cmd.ProcessState.ExitCode()
}

// Freeze suspends the process: its connections stay open, and it does not
// answer until Thaw. Its children are not suspended.
func (p *process) Freeze(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
}

// Thaw resumes a process that Freeze has suspended.
func (p *process) Thaw(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// PID returns the process id of the current or last run.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process runs. A frozen one does.
func (p *process) Running() bool {
	if p.exited == nil {
		return false
	}

	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Output returns everything that the process has printed so far, in all its
// runs.
func (p *process) Output() string { return p.output.String() }

// output keeps what a process prints, in a file without a name. Unlike a pipe,
// a file does not block or fail the writer when this process has died, so that
// an orderly stop can complete.
type output struct{ file *os.File }

// open creates the file at the first call. The file loses its name at once, so
// that nothing is left where this process is killed.
func (o *output) open() error {
	if o.file != nil {
		return nil
	}

	file, err := os.CreateTemp("", "cyborg-output-")
	if err != nil {
		return err
	}

	o.file = file
	return os.Remove(file.Name())
}

// String returns the content; where it cannot be read, the error instead,
// because it goes into the message of a test that fails anyway.
func (o *output) String() string {
	if o.file == nil {
		return ""
	}

	text, err := io.ReadAll(io.NewSectionReader(o.file, 0, math.MaxInt64))
	if err != nil {
		return err.Error()
	}

	return string(text)
}
