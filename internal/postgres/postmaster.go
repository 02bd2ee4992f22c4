package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
)

// postmaster is the first process of a running server. It is a child of this
// process, or one that an earlier process left running.
type postmaster struct {
	pid    int
	port   int // of a server that was found running; 0 for a child
	signal func(syscall.Signal) error
	done   chan struct{} // closed when the process is gone
	exit   string        // how a child ended; set before done is closed
	logged int64         // the size of the log when the server was started or found
}

// pidInfo is what the server writes about itself into postmaster.pid
// (PostgreSQL's miscadmin.h, LOCK_FILE_LINE_*).
type pidInfo struct {
	pid    int
	port   int
	status string // starting, stopping, ready or standby
}

// readPIDFile reads the server's pid file. The result is false if there is
// none, or if the server has not finished writing it.
func (l layout) readPIDFile() (pidInfo, bool, error) {
	content, err := os.ReadFile(l.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return pidInfo{}, false, nil
	}
	if err != nil {
		return pidInfo{}, false, unusable(l.pidFile(), err)
	}

	lines := strings.Split(string(content), "\n")
	const pidLine, portLine, statusLine = 0, 3, 7
	line := func(i int) string {
		if i < len(lines) {
			return strings.TrimSpace(lines[i])
		}
		return ""
	}

	info := pidInfo{pid: numberOr0(line(pidLine)), port: numberOr0(line(portLine)), status: line(statusLine)}
	return info, info.pid > 0, nil
}

// numberOr0 parses a decimal number. It returns 0 for anything else.
func numberOr0(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return number
}

// findPostmaster returns the server that already runs on the data, or nil. It
// removes a stale pid file, whose process has ended or is another program by
// now: PostgreSQL refuses to start as long as any process has the number in the
// file. Removing it is safe, because PostgreSQL also looks at its shared memory
// to find out whether the data is in use.
func (l layout) findPostmaster() (*postmaster, error) {
	info, ok, err := l.readPIDFile()
	if err != nil {
		return nil, err
	}

	if ok {
		proc, err := l.openPostmaster(info)
		if err != nil || proc != nil {
			return proc, err
		}
	}

	if err := os.Remove(l.pidFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, unusable(l.pidFile(), err)
	}

	return nil, nil //nolint:nilnil // that no server runs is not an error
}

// openPostmaster opens the process in the pid file. It returns nil if the
// process is not a PostgreSQL server on this data. It looks at the process
// after it has opened a handle on it (pidfd_open(2)): if the process number
// were reused in between, the handle and the look would be about different
// processes, and signals would hit the wrong one.
func (l layout) openPostmaster(info pidInfo) (*postmaster, error) {
	handle, err := unix.PidfdOpen(info.pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return nil, nil //nolint:nilnil // a process that has ended is not a server
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "cannot look at process %d, which may be our PostgreSQL: %w", info.pid, err)
	}

	if !l.runsOnOurData(info.pid) {
		return nil, unix.Close(handle)
	}

	proc := &postmaster{
		pid: info.pid, port: info.port, done: make(chan struct{}), logged: l.log().size(),
		signal: func(sig syscall.Signal) error { return unix.PidfdSendSignal(handle, sig, nil, 0) },
	}

	go func() {
		// The handle becomes readable when the process has ended. It is never closed,
		// because another goroutine may be about to send a signal through it.
		events := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}
		for {
			if n, err := unix.Poll(events, -1); n > 0 || (err != nil && !errors.Is(err, syscall.EINTR)) {
				break
			}
		}
		close(proc.done)
	}()

	return proc, nil
}

// runsOnOurData reports whether the process is a PostgreSQL server whose
// working directory is the data. Every server changes to its data directory
// when it starts.
func (l layout) runsOnOurData(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	name, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil || !strings.HasPrefix(string(name), "postgres") {
		return false
	}

	cwd, errCwd := os.Stat(filepath.Join(proc, "cwd"))
	data, errData := os.Stat(l.data())
	return errCwd == nil && errData == nil && os.SameFile(cwd, data)
}

// launch starts a server as a child of this process, with its output in the
// log. If DieWithParent is set, the kernel ends the server when this process
// dies.
func (l layout) launch(acct account, inst installation, cfg Config) (*postmaster, error) {
	log := l.log()
	if err := log.trim(); err != nil {
		return nil, err
	}

	output, err := log.open()
	if err != nil {
		return nil, err
	}

	// The command does not get the caller's context, because the server outlives
	// it.
	cmd := acct.command(context.Background(), l.dir, inst.binary("postgres"), "-D", l.data(), "-c", "config_file="+l.file("postgresql.conf"))
	cmd.Stdout, cmd.Stderr = output, output
	proc := &postmaster{done: make(chan struct{}), logged: log.size()}
	if cfg.DieWithParent {
		// SIGQUIT makes the postmaster end at once, and its children end with it.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	}

	run := cfg.Run
	if run == nil {
		run = (*exec.Cmd).Start
	}

	// One goroutine starts the server and waits for its end. Both must be on the
	// same thread for DieWithParent.
	started := make(chan error)
	go func() {
		if cfg.DieWithParent {
			// The kernel sends the signal when the thread that started the server ends,
			// even if the process lives on (prctl(2), PR_SET_PDEATHSIG). The lock keeps the
			// thread until the server has ended.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		err := errors.Join(run(cmd), output.Close())
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the process state says how it ended
		proc.exit = cmd.ProcessState.String()
		close(proc.done)
	}()

	if err := <-started; err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "cannot run %s: %w", inst.binary("postgres"), err)
	}

	proc.pid = cmd.Process.Pid
	proc.signal = func(sig syscall.Signal) error { return cmd.Process.Signal(sig) }
	return proc, nil
}

// gone reports whether the process has ended.
func (p *postmaster) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop shuts the server down and waits for its end. SIGINT ends open
// connections and writes everything to disk. If that takes too long, SIGQUIT
// ends the server at once, and the next start has to recover (PostgreSQL
// manual, "Shutting Down the Server").
func (p *postmaster) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fastShutdownLimit)
	defer cancel()

	if err := p.send(syscall.SIGINT); err != nil {
		return err
	}

	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}

	if err := p.send(syscall.SIGQUIT); err != nil {
		return err
	}

	select {
	case <-p.done:
		return nil
	case <-time.After(immediateShutdownLimit):
		return cyborg.Errorf(cyborg.ErrTimeout, "PostgreSQL (process %d) does not stop", p.pid)
	}
}

// send sends a signal to the server. It is not an error if the server has ended
// already.
func (p *postmaster) send(sig syscall.Signal) error {
	if p.gone() {
		return nil
	}

	err := p.signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, syscall.ESRCH) {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot signal PostgreSQL (process %d): %w", p.pid, err)
	}
	return nil
}

// death returns the error for a server that ended by itself, with the reason
// that the log gives.
func (p *postmaster) death(log logFile) error {
	output := log.since(p.logged)
	if outOfSpace(output) {
		return noSpace(filepath.Dir(string(log)))
	}

	how := "ended"
	if p.exit != "" {
		how = fmt.Sprintf("ended (%s)", p.exit)
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "PostgreSQL (process %d) %s: %s (see %s)", p.pid, how, lastWords(output), log)
}
