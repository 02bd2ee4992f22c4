// Package statedir opens the one directory in which a process keeps its state: it makes it, marks it as ours, refuses
// a directory that is someone else's, and locks it, so that two processes never work on the same state.
//
// It knows nothing of what is kept in there, and imports only the root package besides the standard library.
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

	"github.com/cyborg-project/cyborg"
)

const (
	// markerName is the file that says that a directory is ours, and in which format it is.
	markerName = "cyborg-state"
	// lockName is the file that the process which uses the directory has locked; it holds that process's id.
	lockName = "lock"
	// Format is the version of the directory's layout that this release writes, and the newest that it reads.
	Format = 1

	markerPrefix = "cyborg-state "
)

// Dir is an open state directory. It is locked until Close, or until the process dies.
type Dir struct {
	path string
	lock *os.File
}

// Default returns where the state goes when nobody says otherwise: /var/lib/cyborg for root, else
// $XDG_STATE_HOME/cyborg, else ~/.local/state/cyborg (XDG Base Directory Specification 0.8).
func Default() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/cyborg", nil
	}
	// The specification says that a relative path is to be ignored.
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

// Open opens the state directory at path and locks it; it makes the directory, and its parents, where they are
// missing. An empty directory is taken into use.
//
// The errors are of kind ErrInvalid for a directory that holds something else, that a newer release wrote, that others may
// write to or that cannot be used, and of kind ErrClaimed for one that another process uses. None of them leaves anything changed.
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

// Join returns the path of something inside the directory.
func (d *Dir) Join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// ID tells the directory from all others that are in use at the same time on this machine, until it boots again: it is the
// file that is locked. A copy of the directory has another, and so has one that was lost and made anew, as a rule.
func (d *Dir) ID() string { return lockID(d.lock.Stat()) }

// ID is the ID of the directory at path, whether a process uses it or not; empty where none ever did.
func ID(path string) string { return lockID(os.Lstat(filepath.Join(path, lockName))) }

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

// Close lets another process use the directory, also where a process that is being started has the lock's file open for a
// moment still.
func (d *Dir) Close() error {
	return errors.Join(syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
}

// create makes the directory. For root others may pass through it (0711), because the database below it runs as
// another user; what is in it protects itself. Everyone else keeps it closed (0700), its new parents too, as the XDG
// specification asks.
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
	return os.Chmod(path, mode) // whatever the umask
}

// refuseOpen refuses a directory in which somebody else could put something in the place of ours, where a link may lead to
// it too: one that belongs neither to us nor to root, or that others may write to.
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

// refuseForeign refuses a directory that has entries but no marker. Whoever makes it ours writes the marker before
// anything but the lock, so looking for the marker last cannot mistake a directory that is just being made.
func refuseForeign(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return unusable(path, err)
	}
	for _, entry := range entries {
		if entry.Name() == lockName || entry.Name() == markerName {
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

// acquire locks the directory. The kernel drops the lock with the last process that holds the file, so there is no
// stale lock after a crash.
func acquire(path string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, unusable(path, err)
	}
	err = flock(lock)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		user := "another process"
		if content, err := os.ReadFile(lock.Name()); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil {
				user = fmt.Sprintf("process %d", pid)
			}
		}
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

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// checkMarker writes the marker into a new directory, under the lock, and reads the one of an old directory. A marker
// of length zero is left where the disk was full or the machine died between making and writing it; nothing else was
// written then.
func checkMarker(path string) error {
	marker := filepath.Join(path, markerName)
	content, err := os.ReadFile(marker)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unusable(path, err)
	}
	if len(content) == 0 {
		if err := os.WriteFile(marker, fmt.Appendf(nil, "%s%d\n", markerPrefix, Format), 0o600); err != nil {
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

// unusable is one sentence for what the kernel says about the directory.
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
