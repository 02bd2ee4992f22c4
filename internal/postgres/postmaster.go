package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
)

// postmaster is the first process of a running server: a child of ours, or one that an earlier process of ours left.
type postmaster struct {
	pid    int
	port   int // of one that we found running
	signal func(syscall.Signal) error
	done   chan struct{} // closed when the process is gone
	exit   string        // how a child ended; set before done is closed
	logged int64         // the size of the log when it started, or when we found it running
}

// pidInfo is what the server says of itself in postmaster.pid (PostgreSQL's miscadmin.h, LOCK_FILE_LINE_*).
type pidInfo struct {
	pid    int
	port   int
	status string // starting, stopping, ready or standby
}

// readPIDFile returns false where there is no pid file, or none that a server finished writing.
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

func numberOr0(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return number
}

// findPostmaster finds the server that already runs on our data. A pid file whose process is gone, or is something
// else by now, is stale: it is removed, because PostgreSQL would refuse to start where any process of that number
// lives. (It does not rely on the file alone; its shared memory tells, too, whether the data is in use.)
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
	return nil, nil //nolint:nilnil // nothing runs, and that is no error
}

// openPostmaster returns nil when the process is not a PostgreSQL server on our data. It looks after it has a handle
// on the process, so the number cannot have changed its owner meanwhile.
func (l layout) openPostmaster(info pidInfo) (*postmaster, error) {
	handle, err := unix.PidfdOpen(info.pid, 0)
	if errors.Is(err, syscall.ESRCH) {
		return nil, nil //nolint:nilnil // as the comment says
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
		// The handle becomes readable when the process has ended. It stays open with us: a signal may still be on its way.
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

// runsOnOurData says whether a process is a PostgreSQL server whose working directory is our data, which is where each
// of them goes at its start.
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

// launch starts a server as a child of ours.
func (l layout) launch(acct account, inst installation, dieWithParent bool) (*postmaster, error) {
	log := l.log()
	if err := log.trim(); err != nil {
		return nil, err
	}
	output, err := log.open()
	if err != nil {
		return nil, err
	}
	// Not the caller's context: the server outlives it.
	cmd := acct.command(context.Background(), l.dir, inst.binary("postgres"), "-D", l.data(), "-c", "config_file="+l.file("postgresql.conf"))
	cmd.Stdout, cmd.Stderr = output, output
	proc := &postmaster{done: make(chan struct{}), logged: log.size()}
	if dieWithParent {
		// Its children follow the postmaster by themselves. SIGQUIT has it end at once.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	}
	started := make(chan error)
	go func() {
		if dieWithParent {
			// The signal comes when the thread ends, not the process, so this thread stays until the server has ended.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		err := errors.Join(cmd.Start(), output.Close())
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // the state says how it ended
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

// gone says whether the process has ended.
func (p *postmaster) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the server to shut down, by SIGINT, which breaks connections off; when that takes too long by SIGQUIT,
// which leaves a recovery to the next start (PostgreSQL's documentation, "Shutting Down the Server").
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

// death is the error of a server that ended without being asked.
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
