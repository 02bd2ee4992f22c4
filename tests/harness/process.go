package harness

import (
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
)

// stopLimit is how long a process may take to stop in order.
const stopLimit = 10 * time.Minute

// process is a program that a test runs, kills and runs again. Its methods fail
// the test where something goes wrong.
type process struct {
	name   string // of the binary
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	output *output
}

func newProcess(name string) process { return process{name: name, output: &output{}} }

// start runs the program and returns at once.
func (p *process) start(t testing.TB, env []string, args ...string) {
	t.Helper()
	if p.cmd == nil {
		t.Cleanup(func() { p.requireNoDefect(t) })
	}
	p.cmd = exec.Command(Binary(t, p.name), args...) //nolint:noctx // it outlives any context but the test
	p.cmd.Env = env
	require.NoError(t, p.output.open())
	p.cmd.Stdout, p.cmd.Stderr = p.output.file, p.output.file
	exited, err := startChild(p.cmd, syscall.SIGTERM) // in order: a standalone has a PostgreSQL to stop
	require.NoError(t, err)
	p.exited = exited
}

// startChild starts a program in a process group of its own, which gets the
// signal when this process dies, however it dies. The channel is closed when it
// has ended; its state says how.
func startChild(cmd *exec.Cmd, orphaned syscall.Signal) (exited chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned}
	exited = make(chan struct{})
	started := make(chan error)
	go func() {
		// To the kernel the parent is this thread, not the process (prctl(2),
		// PR_SET_PDEATHSIG), so it stays as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // whoever cares reads ProcessState
			close(exited)
		}
	}()
	return exited, <-started
}

// requireNoDefect fails the test where the process has told of a defect of
// ours: an answer with status 500, a panic, or anything else of kind internal.
// Nothing that a test does to it, kills included, may bring one about.
func (p *process) requireNoDefect(t testing.TB) {
	t.Helper()
	for line := range strings.Lines(p.Output()) {
		if defectPattern.MatchString(line) {
			t.Errorf("%s has a defect: %s", p.name, line)
		}
	}
}

var defectPattern = regexp.MustCompile(`\bstatus=500\b|\bkind=internal\b|"status":500\b|"kind":"internal"|^panic: |^fatal error: `)

// Kill ends it as a power cut would: kill -9.
func (p *process) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	<-p.exited
}

// Stop ends it as Ctrl-C does and returns its exit code.
func (p *process) Stop(t testing.TB) int {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // for its stacks
		<-p.exited
		t.Fatalf("%s did not stop:\n%s", p.name, p.output)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends it a signal.
func (p *process) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(signal))
}

// WaitExit waits until it has ended by itself and returns its exit code.
func (p *process) WaitExit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(stopLimit):
		t.Fatalf("%s did not end:\n%s", p.name, p.output)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Freeze stops it in its tracks, connections and all; Thaw lets it go on as if
// nothing had happened.
func (p *process) Freeze(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
}

// Thaw undoes Freeze.
func (p *process) Thaw(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// PID is its process id.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Running says whether it lives.
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

// Output is what it has said so far, over all its runs.
func (p *process) Output() string { return p.output.String() }

// output keeps what a process says, in a file without a name: unlike a pipe it
// lets the process go on when this one has died.
type output struct{ file *os.File }

// open makes the file, once.
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
