// Package statedir opens the one directory in which a process keeps its state.
// It makes the directory, marks it as Cyborg's, refuses a directory that
// belongs to something else, and locks it, so that two processes never work on
// the same state.
//
// It knows nothing of what is stored in there, and imports only the root package
// and internal/atomicfile besides the standard library.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

const (
	// markerName is the file that marks a directory as Cyborg's, and holds the
	// version of its layout.
	markerName = "cyborg-state"
	// lockName is the file that the process which uses the directory holds locked;
	// its content is the id of that process.
	lockName = "lock"
	// Format is the version of the directory's layout that this release writes, and
	// the newest that it can read.
	Format = 1

	// markerPrefix begins the marker's content, before the version.
	markerPrefix = "cyborg-state "

	// nameLimit is how long a refused start waits for the process that has the lock
	// to write its id. That process does so at once, unless it was stopped in between.
	nameLimit = time.Second
)

// Dir is an open state directory. It stays locked until Close, or until the
// process dies.
type Dir struct {
	path string
	lock *os.File
}

// Default returns the state directory for when none is configured:
// /var/lib/cyborg for root, else $XDG_STATE_HOME/cyborg, else
// ~/.local/state/cyborg (XDG Base Directory Specification 0.8). The error is of
// kind ErrInvalid where there is no home directory.
func Default() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/cyborg", nil
	}

	// The specification demands that a relative path is ignored.
	if home := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, "cyborg"), nil
	}

	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", cyborg.Errorf(cyborg.ErrInvalid,
			"cannot tell where to keep the state, because neither XDG_STATE_HOME nor HOME is set: name a directory with --state-dir")
	}

	return filepath.Join(home, ".local", "state", "cyborg"), nil
}

// Open opens and locks the state directory at path. It makes the directory and
// its parents where they are missing. An empty directory is taken into use.
//
// The error is of kind ErrInvalid for a directory that holds something else,
// that a newer release wrote, that others may write to or that cannot be used,
// and of kind ErrClaimed for one that another process uses. A refused directory
// is left unchanged.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, unusable(path, err)
	}

	if err := create(path); err != nil {
		return nil, unusable(path, err)
	}

	if err := refuseOpen(path); err != nil {
		return nil, err
	}
	if err := refuseForeign(path); err != nil {
		return nil, err
	}

	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}

	if err := checkMarker(path); err != nil {
		return nil, errors.Join(err, lock.Close())
	}

	return &Dir{path: path, lock: lock}, nil
}

// Path returns the directory's absolute path.
func (d *Dir) Path() string { return d.path }

// Join returns the path of a file or directory inside the state directory.
func (d *Dir) Join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// ID identifies the directory among all that are in use at the same time on
// this machine, until the machine boots again. It is made from the device and
// inode of the lock file, so a copy of the directory has another ID, and so, as
// a rule, has a directory that was lost and made anew.
func (d *Dir) ID() string { return lockID(d.lock.Stat()) }

// ID returns the ID of the directory at path, whether a process uses it or not;
// empty where no process ever did.
func ID(path string) string { return lockID(os.Lstat(filepath.Join(path, lockName))) }

// lockID makes an ID from the result of a stat of the lock file.
func lockID(info fs.FileInfo, err error) string {
	if err != nil {
		return ""
	}
	known, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%x:%x", known.Dev, known.Ino)
}

// Close lets another process use the directory. It unlocks explicitly, because
// closing the file is not enough while a child process that is just being
// started still has it open.
func (d *Dir) Close() error {
	return errors.Join(syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
}

// create makes the directory. Root makes it passable for others (0711), because
// the database below it runs as another user; what is in it protects itself.
// Everyone else makes it private (0700), new parents included, as the XDG
// specification demands.
func create(path string) error {
	mode, parents := fs.FileMode(0o700), fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode, parents = 0o711, 0o755
	}

	if err := os.MkdirAll(filepath.Dir(path), parents); err != nil {
		return err
	}

	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}

	return os.Chmod(path, mode) // Mkdir's mode is reduced by the umask
}

// refuseOpen refuses a directory in which another user could replace our files,
// perhaps by links to somewhere else: one that belongs neither to us nor to
// root, or that others may write to.
func refuseOpen(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return unusable(path, err)
	}

	mode, writers := info.Mode(), fs.FileMode(0o022)
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		if owner.Uid != 0 && int(owner.Uid) != os.Geteuid() {
			return cyborg.Errorf(cyborg.ErrInvalid,
				"the state directory %s belongs to another user (%d): run as that user, or name another with --state-dir", path, owner.Uid)
		}
		if int(owner.Gid) == os.Getegid() {
			writers = 0o002 // our own group, which many systems give to each user alone
		}
	}

	if mode.IsDir() && mode.Perm()&writers != 0 {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"others may write to the state directory %s (%v): run chmod go-w on it, or name a new one below it with --state-dir", path, mode)
	}

	return nil
}

// refuseForeign refuses a directory that has entries but no marker. Another
// process that takes the directory into use writes the marker before anything
// but the lock file. The marker is looked for after the entries were listed, so
// a directory that is just being taken into use is not refused.
func refuseForeign(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return unusable(path, err)
	}

	for _, entry := range entries {
		switch entry.Name() {
		case lockName, markerName, atomicfile.HiddenName(markerName):
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, markerName)); errors.Is(err, fs.ErrNotExist) {
			return cyborg.Errorf(cyborg.ErrInvalid,
				"the state directory %s holds something else (%s): name an empty or a new directory with --state-dir",
				path, entry.Name())
		}
	}

	return nil
}

// acquire locks the directory. The kernel releases the lock when the last
// process that has the file open ends, so no stale lock remains after a crash.
//
// Where another process has the lock, acquire tries again until the file names a
// process that lives. Without that, the refusal would name nobody, or the
// process that used the directory before, while the other one has just taken the
// lock and not yet written its id.
func acquire(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, unusable(path, err)
	}

	user, begun := "", time.Now()
	for err = flock(lock); errors.Is(err, syscall.EWOULDBLOCK); err = flock(lock) {
		if pid := livingProcess(lock); pid != 0 {
			user = fmt.Sprintf("process %d", pid)
			break
		}
		if time.Since(begun) > nameLimit {
			user = "another process"
			break
		}
		time.Sleep(nameLimit / 100) //nolint:forbidigo // nothing tells that the lock became free
	}

	if user != "" {
		err := cyborg.Errorf(cyborg.ErrClaimed, "the state directory %s is used by %s: stop that one first, or name another with --state-dir",
			path, user)
		return nil, errors.Join(err, lock.Close())
	}

	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}

	if err != nil {
		return nil, errors.Join(unusable(path, err), lock.Close())
	}

	return lock, nil
}

// livingProcess returns the id of the process that the lock file names, or 0
// where it names none, or one that has ended.
func livingProcess(lock *os.File) int {
	content, err := os.ReadFile(lock.Name())
	if err != nil {
		return 0
	}

	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid < 1 {
		return 0
	}

	// Signal 0 reaches nobody, and is refused with EPERM for another user's process.
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return 0
	}
	return pid
}

// flock takes the lock without waiting, and repeats the call when a signal
// interrupts it.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// checkMarker writes the marker into a new directory, and checks the marker of
// an old one. The caller holds the lock. Releases up to 0.1 could leave a marker
// of length zero, where the disk was full or the machine died while it was
// written; nothing else was written then, so it counts as a new directory.
func checkMarker(path string) error {
	marker := filepath.Join(path, markerName)

	// A link would lead to somebody else's file, and to read a pipe would never end.
	if info, err := os.Lstat(marker); err == nil && !info.Mode().IsRegular() {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"%s is no plain file (%v), and Cyborg writes one: remove it, or name an empty or a new directory with --state-dir", marker, info.Mode())
	}

	content, err := os.ReadFile(marker)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unusable(path, err)
	}

	if len(content) == 0 {
		if err := atomicfile.Write(marker, fmt.Appendf(nil, "%s%d\n", markerPrefix, Format), 0o600); err != nil {
			return unusable(path, err)
		}
		return nil
	}

	text, ok := strings.CutPrefix(string(content), markerPrefix)
	version, err := strconv.Atoi(strings.TrimSpace(text))
	if !ok || err != nil || version < 1 {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"the file %s is not what Cyborg writes (it reads %.40q): name an empty or a new directory with --state-dir", marker, content)
	}

	if version > Format {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"the state directory %s has format %d and this release knows formats up to %d: use the newer release that wrote it",
			path, version, Format)
	}

	return nil
}

// unusable explains what the kernel said about the directory, with what to do.
func unusable(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left on the disk of the state directory %s: free some (%w)", path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return cyborg.Errorf(cyborg.ErrInvalid,
			"the state directory %s cannot be used: run as the user that owns it, or name another with --state-dir (%w)", path, err)
	default:
		return cyborg.Errorf(cyborg.ErrInvalid, "the state directory %s cannot be used: %w", path, err)
	}
}
