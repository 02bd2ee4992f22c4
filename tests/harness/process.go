package harness

import (
	"bytes"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stopLimit is how long a process may take to stop in order.
const stopLimit = time.Minute

// process is a program that a test runs, kills and runs again. Its methods fail the test where something goes wrong.
type process struct {
	name   string // of the binary
	cmd    *exec.Cmd
	exited chan struct{}
	output *output
}

func newProcess(name string) process { return process{name: name, output: &output{}} }

// start runs the program and returns at once.
func (p *process) start(t testing.TB, env []string, args ...string) {
	t.Helper()
	p.cmd = exec.Command(Binary(t, p.name), args...) //nolint:noctx // it outlives any context but the test
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.cmd.Start())
	p.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait() // whoever cares reads ProcessState
		close(exited)
	}(p.cmd, p.exited)
}

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

// Freeze stops it in its tracks, connections and all; Thaw lets it go on as if nothing had happened.
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

// output keeps what a process says.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
