package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// NodeKind is what a process of a cluster is.
type NodeKind string

// The kinds of processes.
const (
	NodePostgres  NodeKind = "postgres"
	NodeTemporal  NodeKind = "temporal"
	NodeConductor NodeKind = "conductor"
	NodeAPI       NodeKind = "api"
	NodeAgent     NodeKind = "agent"
)

// againAfter is how long a process that ended stays away before it is started
// again.
const againAfter = 300 * time.Millisecond

// Node is a process of a cluster. Whenever it ends it is started again, as a
// service manager would, unless it is held down. Its methods may be called from
// any goroutine.
type Node struct {
	Name string
	Kind NodeKind
	// Log is the file with everything that it has said.
	Log string

	launch func(ctx context.Context) (*instance, error)
	clock  string // the file with how far its clock is off

	power sync.Mutex // held by whoever cuts its power

	mu       sync.Mutex
	now      *instance // nil while it does not run
	starting bool      // it is about to run
	down     bool      // it is not to run
	dark     bool      // it has no power, and cannot run whoever wants it to
	closing  bool
	changed  chan struct{} // closed, and replaced, whenever one of these changes
	exits    []Exit
	frozen   []int         // processes that were stopped with it: those of PostgreSQL outlive the first
	over     chan struct{} // closed when it is supervised no more
}

// Exit is one end of a process.
type Exit struct {
	At    time.Time
	How   string
	Code  int  // -1 where a signal ended it
	Asked bool // by Kill or Stop
}

// instance is one run of a node.
type instance struct {
	pid  int
	done <-chan struct{}
	// end asks it to stop in order.
	end func() error
	// exit says how it ended.
	exit func() (code int, how string)
}

func newNode(name string, kind NodeKind, dir string) *Node {
	return &Node{
		Name: name, Kind: kind,
		Log: filepath.Join(dir, name+".log"), clock: filepath.Join(dir, name+".clock"),
		changed: make(chan struct{}), over: make(chan struct{}), down: true,
	}
}

// notify wakes whoever waits. The caller holds the lock.
func (n *Node) notify() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// supervise starts it again and again, until close.
func (n *Node) supervise(ctx context.Context) {
	defer close(n.over)
	for n.awaitWanted() {
		run, err := n.launch(ctx)
		if err != nil {
			n.noteExit(Exit{At: time.Now(), How: "did not start: " + err.Error(), Code: 1})
			n.pause(ctx)
			continue
		}
		n.mu.Lock()
		n.now, n.starting = run, false
		if n.down || n.dark || n.closing { // somebody wanted it gone meanwhile
			_ = syscall.Kill(run.pid, syscall.SIGKILL)
		}
		n.notify()
		n.mu.Unlock()
		<-run.done
		code, how := run.exit()
		n.noteExit(Exit{At: time.Now(), How: how, Code: code})
		n.pause(ctx)
	}
}

// awaitWanted returns true when it is to run, and false when it is never to run
// again.
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

func (n *Node) noteExit(exit Exit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	exit.Asked = n.down || n.dark || n.closing
	n.exits = append(n.exits, exit)
	n.now, n.starting = nil, false
	n.notify()
}

func (n *Node) pause(ctx context.Context) {
	timer := time.NewTimer(againAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Up lets it run.
func (n *Node) Up() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = false
	n.notify()
}

// Kill ends it as a power cut would, and holds it down. It returns false where
// it did not run.
func (n *Node) Kill() bool {
	n.mu.Lock()
	n.down = true
	run := n.now
	n.notify()
	n.mu.Unlock()
	if run == nil {
		return false
	}
	killed := syscall.Kill(run.pid, syscall.SIGKILL) == nil
	n.Thaw() // those of its processes that stand still could not notice
	<-run.done
	return killed
}

// PowerCut kills it, has a change made while it does not run, and then holds it
// down. It returns false where it did not run. Nothing else makes it run before
// the change is made, and of several cuts one begins when the one before it is
// over.
func (n *Node) PowerCut(change func() error) (ran bool, err error) {
	n.power.Lock()
	defer n.power.Unlock()
	n.setDark(true)
	defer n.setDark(false)

	ran = n.Kill()
	n.awaitGone()
	return ran, change()
}

func (n *Node) setDark(dark bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dark = dark
	n.notify()
}

// awaitGone returns when it neither runs nor is about to.
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

// Stop asks it to stop, waits until it has, holds it down, and returns its exit
// code.
func (n *Node) Stop() (int, error) {
	n.mu.Lock()
	n.down = true
	run := n.now
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
		_ = syscall.Kill(run.pid, syscall.SIGQUIT) // for its stacks
		<-run.done
		return -1, fmt.Errorf("%s did not stop within %s; its stacks are in %s", n.Name, stopLimit, n.Log)
	}
	code, _ := run.exit()
	return code, nil
}

// Freeze stops it in its tracks, with all that it has started; Thaw lets it go
// on. It returns false where it does not run.
func (n *Node) Freeze() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		return false
	}
	all := append([]int{n.now.pid}, family(n.now.pid)...)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may just have ended
	}
	n.frozen = append(n.frozen, all...)
	return true
}

// Thaw undoes Freeze.
func (n *Node) Thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pid := range n.frozen {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
	}
	n.frozen = nil
}

// Stacks ends it so that it tells what each of its goroutines does, which go to
// its log, and returns how many there were. It is started again.
func (n *Node) Stacks() (goroutines int, err error) {
	n.mu.Lock()
	run := n.now
	n.mu.Unlock()
	if run == nil {
		return 0, fmt.Errorf("%s does not run", n.Name)
	}
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

// PID is its process id; 0 while it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil {
		return 0
	}
	return n.now.pid
}

// Exits is how it has ended so far.
func (n *Node) Exits() []Exit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]Exit(nil), n.exits...)
}

// SetClock puts its clock forward, or back.
func (n *Node) SetClock(offset time.Duration) error {
	return replaceFile(n.clock, offset.String())
}

// Said is the end of what it has said.
func (n *Node) Said(most int) string {
	text, err := os.ReadFile(n.Log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

// close ends it for good.
func (n *Node) close() {
	n.mu.Lock()
	n.closing = true
	run := n.now
	n.notify()
	n.mu.Unlock()
	if run != nil {
		_ = syscall.Kill(run.pid, syscall.SIGKILL) // it may just have ended
	}
	<-n.over
}

// runProgram starts a binary whose words go to a file. It dies with this
// process, however that dies.
func runProgram(path, log string, env []string, args ...string) (*instance, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...) //nolint:noctx // it outlives any context but the cluster
	cmd.Env, cmd.Stdout, cmd.Stderr = env, output, output
	done, err := startChild(cmd, syscall.SIGKILL)
	if err := errors.Join(err, output.Close()); err != nil {
		return nil, err
	}
	return &instance{
		pid: cmd.Process.Pid, done: done,
		end:  func() error { return cmd.Process.Signal(syscall.SIGTERM) },
		exit: func() (int, string) { return cmd.ProcessState.ExitCode(), cmd.ProcessState.String() },
	}, nil
}

// family are the children of a process.
func family(parent int) []int {
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
		// proc_pid_stat(5): the state and the parent come after the name, which is in
		// parentheses and may hold anything.
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
