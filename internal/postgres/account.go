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

// account is the user that runs the server.
type account struct {
	name     string
	uid, gid int
	self     string // the name of the user that runs us
}

// other says whether the server runs as another user than we do, which only root can arrange.
func (a account) other() bool { return a.uid != os.Geteuid() }

// chooseAccount picks the user: ourselves, unless we are root.
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

func chooseForRoot(name, data string) (account, error) {
	if name != "" {
		return lookUp(name)
	}
	// PostgreSQL wants to own its data, so an existing database decides.
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

// lookUp finds a user by name or by number.
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

// command prepares a run of one of the server's binaries as this user. Of our environment it gets only what lets a
// binary run: the variables of PostgreSQL's clients would change its behaviour, and systemd's NOTIFY_SOCKET would let
// the server announce itself in our name.
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

// own hands a directory that we made to the user.
func (a account) own(path string) error {
	if !a.other() {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// checkReach makes sure that the user can enter our directory and run the binaries, by doing both: that heeds access
// control lists and capabilities, too. Only for the sentence afterwards it looks at the permission bits.
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

// firstClosed walks down to a directory and returns the first one on the way that the user may not enter, as far as
// the permission bits tell.
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

// unusable is one sentence for what the kernel says about a file or directory of ours.
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

func noSpace(path string) error {
	free := ""
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err == nil {
		free = fmt.Sprintf(" (%d MiB are free)", stat.Bavail*uint64(stat.Bsize)>>20)
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left on the disk that holds %s%s: free some; PostgreSQL needs at least 100 MiB", path, free)
}
