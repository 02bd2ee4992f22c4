package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

// account is the operating system's user that runs the server.
type account struct {
	name     string
	uid, gid int
	self     string // the name of the user that this process runs as
}

// other reports whether the server runs as another user than this process. That
// is so only if this process runs as root.
func (a account) other() bool { return a.uid != os.Geteuid() }

// chooseAccount returns the user to run the server as: the user of this
// process, or, if that is root, another one.
func chooseAccount(name, data string) (account, error) {
	self, err := lookUp(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return account{}, err
	}

	if self.uid != 0 {
		return self, nil
	}

	chosen, err := chooseForRoot(name, data)
	if err != nil {
		return account{}, err
	}

	if chosen.uid == 0 {
		return account{}, cyborg.Errorf(cyborg.ErrInvalid, "PostgreSQL refuses to run as root: name another user for it")
	}

	chosen.self = self.name
	return chosen, nil
}

// chooseForRoot returns the named user, else the owner of the data, else
// postgres, else nobody.
func chooseForRoot(name, data string) (account, error) {
	if name != "" {
		return lookUp(name)
	}

	// PostgreSQL refuses data that another user owns, so the owner of an existing
	// database has to run it.
	if info, err := os.Stat(data); err == nil {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
			return lookUp(strconv.Itoa(int(owner.Uid)))
		}
	}

	if acct, err := lookUp("postgres"); err == nil {
		return acct, nil
	}
	return lookUp("nobody")
}

// lookUp finds a user by name or by number. The error is of kind ErrInvalid if
// the user has no entry in the user database: initdb needs one.
func lookUp(name string) (account, error) {
	find := user.Lookup
	if _, err := strconv.Atoi(name); err == nil {
		find = user.LookupId
	}

	found, err := find(name)
	if err != nil {
		return account{}, cyborg.Errorf(cyborg.ErrInvalid,
			"user %s has no entry in /etc/passwd, and PostgreSQL wants one: add it, or run as another user (%w)", name, err)
	}

	uid, errUID := strconv.Atoi(found.Uid)
	gid, errGID := strconv.Atoi(found.Gid)
	if err := errors.Join(errUID, errGID); err != nil {
		return account{}, cyborg.Errorf(cyborg.ErrInternal, "user %s has no numeric ids: %w", name, err)
	}

	return account{name: found.Username, self: found.Username, uid: uid, gid: gid}, nil
}

// command prepares a run of one of the server's binaries as this user. It
// passes on only the environment variables that a binary needs in order to run.
// The variables of PostgreSQL's clients, such as PGDATA, would change what it
// does, and with systemd's NOTIFY_SOCKET the server could announce itself as
// this process.
//
// The binary runs in a session of its own, so that Ctrl-C in the terminal does
// not reach it.
func (a account) command(ctx context.Context, dir, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	if libraries := os.Getenv("LD_LIBRARY_PATH"); libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+libraries)
	}

	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.other() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}

	return cmd
}

// own makes the user the owner of a directory that this process made.
func (a account) own(path string) error {
	if !a.other() {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// checkReach makes sure that the user can enter the directory and run the
// binaries. It tries both, because only that takes access control lists and
// capabilities into account. The permission bits are used only to find words
// for the error.
func (a account) checkReach(ctx context.Context, dir string, inst installation) error {
	if !a.other() {
		return nil
	}

	binary := inst.binary("postgres")
	err := a.command(ctx, dir, binary, "--version").Run()
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}

	if errors.Is(err, fs.ErrPermission) {
		for _, path := range []string{dir, inst.binDir} {
			if closed, ok := a.firstClosed(path); ok {
				return cyborg.Errorf(cyborg.ErrInvalid,
					"root runs PostgreSQL as user %s, which cannot pass %s on its way to %s: run `chmod o+x %s`, or choose another place",
					a.name, closed, path, closed)
			}
		}
	}

	if errors.Is(err, syscall.EPERM) {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"PostgreSQL refuses to run as root, and this root may not become user %s (%w): run as an ordinary user", a.name, err)
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "user %s cannot run %s in %s: %w", a.name, binary, dir, err)
}

// firstClosed walks down to a directory and returns the first directory on the
// way that the permission bits do not let the user enter.
func (a account) firstClosed(path string) (string, bool) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", false
	}

	at := "/"
	for _, name := range append([]string{""}, strings.Split(strings.TrimPrefix(path, "/"), "/")...) {
		at = filepath.Join(at, name)
		info, err := os.Stat(at)
		if err != nil {
			return "", false
		}

		if !a.mayEnter(info) {
			return at, true
		}
	}

	return "", false
}

// mayEnter reports whether the permission bits let the user enter a directory.
// It knows only the user's primary group, which is enough for an error message.
func (a account) mayEnter(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return true
	}

	switch mode := info.Mode().Perm(); {
	case int(stat.Uid) == a.uid:
		return mode&0o100 != 0
	case int(stat.Gid) == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// unusable turns an error of the kernel about a file or directory of the server
// into one sentence: of kind ErrUnavailable if the disk is full, else
// ErrInvalid.
func unusable(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return noSpace(path)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return cyborg.Errorf(cyborg.ErrInvalid, "PostgreSQL's directory cannot be used as user %d: %w", os.Geteuid(), err)
	default:
		return cyborg.Errorf(cyborg.ErrInvalid, "PostgreSQL's directory cannot be used: %w", err)
	}
}

// noSpace returns the error for a disk that is full, with the space that is
// left.
func noSpace(path string) error {
	free := ""
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err == nil {
		free = fmt.Sprintf(" (%d MiB are free)", stat.Bavail*uint64(stat.Bsize)>>20)
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left on the disk that holds %s%s: free some; PostgreSQL needs at least 100 MiB", path, free)
}
