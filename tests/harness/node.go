package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg/internal/clock"
)

// NodeKind is the kind of a process of a cluster.
type NodeKind string

// The kinds of processes.
const (
	NodePostgres  NodeKind = "postgres"
	NodeTemporal  NodeKind = "temporal"
	NodeConductor NodeKind = "conductor"
	NodeAPI       NodeKind = "api"
	NodeAgent     NodeKind = "agent"
)

// againAfter is the pause before a process that has ended is started again. It
// keeps a process that fails at its start from filling its log.
const againAfter = 300 * time.Millisecond

// Node is a process of a cluster. Whenever the process ends it is started
// again, as a service manager would, unless it is held down. Its methods may be
// called from any goroutine.
//
// The goroutine of supervise is the only one that starts processes. The other
// methods say what should be, and send signals.
type Node struct {
	Name string
	Kind NodeKind
	// Log is the file with everything that the process has printed.
	Log string

	launch func(ctx context.Context) (*instance, error) // starts the process

	// power is held during a power cut, so that cuts come one after the other. It
	// is taken before mu.
	power sync.Mutex

	// mu guards the fields below.
	mu       sync.Mutex
	now      *instance // the current run; nil while it does not run
	starting bool      // supervise has decided to launch it, and now is not set yet
	down     bool      // it is held down, until Up
	dark     bool      // a power cut is under way; it does not run even after Up
	closing  bool      // it is never to run again
	// changed is closed, and replaced, whenever one of the fields above changes.
	changed chan struct{}
	exits   []Exit
	// offset is how much its clock is off; nil where it has the machine's clock.
	offset *time.Duration
	// frozen are the processes that Freeze has suspended. Children are listed too,
	// because those of PostgreSQL outlive their parent.
	frozen []int
	// over is closed when supervise has returned.
	over chan struct{}
}

// Exit is one end of a process.
type Exit struct {
	At    time.Time
	How   string // for people, such as "signal: killed"
	Code  int    // exit code; -1 where a signal ended it
	Asked bool   // it was to end, by Kill, Stop, PowerCut, Stacks or the end of the test
}

// instance is one run of a node.
type instance struct {
	pid  int
	done <-chan struct{} // closed when the process has ended
	// end asks the process to stop in order.
	end func() error
	// exit returns how the process ended. It may be called once done is closed.
	exit func() (code int, how string)

	asked bool // its end is asked for; guarded by the node's mu
}

// newNode returns a node that is held down and not supervised yet. Its log lies
// in dir.
func newNode(name string, kind NodeKind, dir string) *Node {
	return &Node{
		Name: name, Kind: kind,
		Log:     filepath.Join(dir, name+".log"),
		changed: make(chan struct{}), over: make(chan struct{}), down: true,
	}
}

// notify wakes the goroutines that wait for a change. The caller holds mu.
func (n *Node) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// supervise starts the process again whenever it has ended and is wanted, until
// close.
func (n *Node) supervise(ctx context.Context) {
	defer close(n.over)

	for n.awaitWanted() {
		run, err := n.launch(ctx)
		if err != nil {
			n.noteExit(Exit{At: time.Now(), How: "did not start: " + err.Error(), Code: 1})
			_ = clock.Sleep(ctx, againAfter) // the loop looks at ctx again
			continue
		}

		n.mu.Lock()
		n.now, n.starting = run, false
		if n.offset != nil {
			_ = shiftFamily(run.pid, *n.offset) // SetClock may have been called since the launch; a process that refuses was refused its start
		}
		// Kill and close see no process while it is being launched, so they leave it to
		// this check to kill it.
		if n.down || n.dark || n.closing {
			_ = syscall.Kill(run.pid, syscall.SIGKILL)
		}
		n.notify()
		n.mu.Unlock()

		<-run.done
		code, how := run.exit()
		n.noteExit(Exit{At: time.Now(), How: how, Code: code})
		_ = clock.Sleep(ctx, againAfter) // the loop looks at ctx again
	}
}

// awaitWanted waits until the process is to run. It returns false where it is
// never to run again. It sets starting under the same lock as it decides, so
// that awaitGone does not miss a launch.
func (n *Node) awaitWanted() bool {
	for {
		n.mu.Lock()
		closing, wanted, changed := n.closing, !n.down && !n.dark, n.changed
		n.starting = wanted && !closing
		n.mu.Unlock()

		switch {
		case closing:
			return false
		case wanted:
			return true
		}

		<-changed
	}
}

// noteExit records how the process ended, or why it did not start.
func (n *Node) noteExit(exit Exit) {
	n.mu.Lock()
	defer n.mu.Unlock()

	exit.Asked = n.down || n.dark || n.closing || n.now != nil && n.now.asked
	n.exits = append(n.exits, exit)
	n.now, n.starting = nil, false
	n.notify()
}

// ask returns the current run, nil where there is none, and remembers that its end is
// asked for: when noteExit comes to it, Up may have been called again. The caller
// holds mu.
func (n *Node) ask() *instance {
	if n.now != nil {
		n.now.asked = true
	}
	return n.now
}

// Up lets the node run. It undoes Kill, PowerCut and Stop, and returns at once.
func (n *Node) Up() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
	n.notify()
}

// Kill ends the process without warning (SIGKILL), and holds the node down. It
// returns when the process is gone, and false where it did not run.
func (n *Node) Kill() bool {
	n.mu.Lock()
	n.down = true
	run := n.ask()
	n.notify()
	n.mu.Unlock()

	if run == nil {
		return false
	}

	killed := syscall.Kill(run.pid, syscall.SIGKILL) == nil
	n.Thaw() // frozen children could not notice the death of their parent, and would stay
	<-run.done
	return killed
}

// PowerCut kills the process, calls change while the node does not run, and
// then holds the node down. ran is false where it did not run. Nothing can
// start the process before change has returned, not even Up, and several power
// cuts come one after the other.
func (n *Node) PowerCut(change func() error) (ran bool, err error) {
	return n.powerCut(nil, change)
}

// powerCut is PowerCut, and calls cut, if there is one, before it kills the process,
// which stands still then: it sees nothing of what cut does.
func (n *Node) powerCut(cut, change func() error) (ran bool, err error) {
	n.power.Lock()
	defer n.power.Unlock()
	n.setDark(true)
	defer n.setDark(false)

	if cut != nil {
		n.Freeze()
		err = cut()
	}
	ran = n.Kill()
	n.awaitGone()
	return ran, errors.Join(err, change())
}

// Hold stops the process in order, and keeps it from running, whatever Up says,
// until release is called, and Up once more. code is its exit code; negative
// where it was killed meanwhile.
func (n *Node) Hold() (release func(), code int, err error) {
	n.power.Lock()
	n.setDark(true)
	n.Thaw() // who stands still stops as late as he likes

	code, err = n.Stop()
	n.awaitGone()
	return func() {
		n.setDark(false)
		n.power.Unlock()
	}, code, err
}

// setDark begins or ends the time without power.
func (n *Node) setDark(dark bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dark = dark
	n.notify()
}

// awaitGone returns when the process does not run, and supervise is not about
// to launch it.
func (n *Node) awaitGone() {
	for {
		n.mu.Lock()
		gone, changed := n.now == nil && !n.starting, n.changed
		n.mu.Unlock()

		if gone {
			return
		}

		<-changed
	}
}

// Stop asks the process to stop, holds the node down, waits until the process
// has ended, and returns its exit code. It returns an error where that takes
// longer than stopLimit.
func (n *Node) Stop() (int, error) {
	n.mu.Lock()
	n.down = true
	run := n.ask()
	n.notify()
	n.mu.Unlock()

	if run == nil {
		return 0, nil
	}
	if err := run.end(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return -1, err
	}

	select {
	case <-run.done:
	case <-time.After(stopLimit):
		_ = syscall.Kill(run.pid, syscall.SIGQUIT) // it prints the stacks of its goroutines
		<-run.done
		return -1, fmt.Errorf("%s did not stop within %s; its stacks are in %s", n.Name, stopLimit, n.Log)
	}

	code, _ := run.exit()
	return code, nil
}

// Freeze suspends the process and its children: their connections stay open,
// and they do not answer until Thaw. It returns false where the process does
// not run.
func (n *Node) Freeze() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		return false
	}

	all := append([]int{n.now.pid}, family(n.now.pid)...)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // the process may just have ended
	}

	n.frozen = append(n.frozen, all...)
	return true
}

// Thaw resumes the processes that Freeze has suspended.
func (n *Node) Thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()

	for _, pid := range n.frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT) // the process may have ended
	}
	n.frozen = nil
}

// Stacks ends the process with SIGQUIT, so that Go prints the stacks of all
// goroutines to its log, and returns how many goroutines there were. The
// process is started again.
func (n *Node) Stacks() (goroutines int, err error) {
	n.mu.Lock()
	run := n.ask()
	n.mu.Unlock()

	if run == nil {
		return 0, fmt.Errorf("%s does not run", n.Name)
	}

	// The log may hold stacks of earlier runs: only what is added counts.
	before, err := os.Stat(n.Log)
	if err != nil {
		return 0, err
	}

	if err := syscall.Kill(run.pid, syscall.SIGQUIT); err != nil {
		return 0, err
	}
	<-run.done

	text, err := os.ReadFile(n.Log)
	if err != nil {
		return 0, err
	}

	return bytes.Count(text[before.Size():], []byte("\ngoroutine ")), nil
}

// PID returns the process id; 0 while the process does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		return 0
	}
	return n.now.pid
}

// Exits returns how the process has ended so far, oldest first.
func (n *Node) Exits() []Exit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Exit(nil), n.exits...)
}

// Crashes returns the ends of the process that nobody had asked for and that no
// signal has caused, oldest first. A signal comes from outside, for example from a
// kernel that has no memory left, and is no defect of the process.
func (n *Node) Crashes() []Exit {
	return slices.DeleteFunc(n.Exits(), func(e Exit) bool { return e.Asked || e.Code < 0 })
}

// SetClock makes the clock of the process wrong by this much, from now on:
// ahead where the offset is positive. It lasts over restarts. The cluster must
// have been started with ClusterOptions.Clocks.
func (n *Node) SetClock(offset time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.offset == nil {
		return fmt.Errorf("%s has the clock of the machine", n.Name)
	}

	n.offset = &offset
	if n.now == nil {
		return nil
	}
	return shiftFamily(n.now.pid, offset)
}

// clock returns how much the clock of the process is off; nil where it has the
// machine's clock.
func (n *Node) clock() *time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.offset
}

// Said returns the end of what the process has printed, at most so many bytes;
// where the log cannot be read, the error instead.
func (n *Node) Said(most int) string {
	text, err := os.ReadFile(n.Log)
	if err != nil {
		return err.Error()
	}

	return string(text[max(0, len(text)-most):])
}

// close kills the process for good, and returns when supervise has ended.
func (n *Node) close() {
	n.mu.Lock()
	n.closing = true
	run := n.now
	n.notify()
	n.mu.Unlock()

	if run != nil {
		_ = syscall.Kill(run.pid, syscall.SIGKILL) // the process may just have ended
	}

	<-n.over
}

// runProgram starts a binary that prints to the end of the log. The binary dies
// with this process, however this process dies. Where there is an offset, its
// clock is off by it.
func runProgram(path, log string, offset *time.Duration, env []string, args ...string) (*instance, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}

	cmd := exec.Command(path, args...) //nolint:noctx // the node ends it, not a context
	cmd.Env, cmd.Stdout, cmd.Stderr = env, output, output
	done, err := startChild(cmd, syscall.SIGKILL, offset)
	if err := errors.Join(err, output.Close()); err != nil {
		return nil, err
	}

	return &instance{
		pid: cmd.Process.Pid, done: done,
		end:  func() error { return cmd.Process.Signal(syscall.SIGTERM) },
		exit: func() (int, string) { return cmd.ProcessState.ExitCode(), cmd.ProcessState.String() },
	}, nil
}

// family returns the process ids of the children of a process; none for 0, which
// is that of a node that does not run, and in /proc the parent of the first
// processes of a machine or a container. It does not return their children.
func family(parent int) []int {
	if parent == 0 {
		return nil
	}

	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}

	var children []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}

		// proc_pid_stat(5): the state and the parent come after the name. The name is
		// in parentheses and may itself hold spaces and parentheses.
		text, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue
		}

		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}

	return children
}
