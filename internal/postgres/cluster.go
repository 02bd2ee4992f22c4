package postgres

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

const (
	// longestSocket is the longest name of a Unix socket that the kernel takes (sun_path without its final zero).
	longestSocket = 107
	// socketPort is the port number in the socket's name while the server does not listen on TCP.
	socketPort = 5432

	unfinished = "data.tmp-"
)

// layout is our directory: what is where in it. It belongs to us, and the user that runs the server owns only the data
// and the socket directory, so that nothing that we write can be redirected by it.
type layout struct{ dir string }

func newLayout(dir string) (layout, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, unusable(dir, err)
	}
	return layout{dir: dir}, nil
}

func (l layout) data() string    { return filepath.Join(l.dir, "data") }
func (l layout) pidFile() string { return filepath.Join(l.data(), "postmaster.pid") }
func (l layout) log() logFile    { return logFile(filepath.Join(l.dir, "postgres.log")) }

// socketDir is where the socket lives: inside our directory, or in the runtime directory under a name made from ours
// where the name of the socket would become too long.
func (l layout) socketDir() string {
	dir := filepath.Join(l.dir, "run")
	if len(socketPath(dir, 65535)) <= longestSocket {
		return dir
	}
	base := "/tmp"
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); os.Geteuid() != 0 && filepath.IsAbs(runtime) {
		base = runtime
	}
	sum := sha256.Sum256([]byte(l.dir))
	return filepath.Join(base, "cyborg-pg-"+hex.EncodeToString(sum[:8]))
}

// prepare makes our directory and the socket's, and makes sure that the server's user can work there.
func (l layout) prepare(ctx context.Context, acct account, inst installation) error {
	mode := fs.FileMode(0o700)
	if acct.other() {
		mode = 0o711 // to pass through, not to look around
	}
	err := os.Mkdir(l.dir, mode)
	if err == nil {
		err = os.Chmod(l.dir, mode) // whatever the umask
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return unusable(l.dir, err)
	}
	if err := acct.checkReach(ctx, l.dir, inst); err != nil {
		return err
	}
	return l.prepareSocketDir(acct)
}

// prepareSocketDir makes the directory of the socket.
func (l layout) prepareSocketDir(acct account) error {
	dir := l.socketDir()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return unusable(dir, err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return unusable(dir, err)
	}
	// Handed over only now, because an earlier start may have died in between.
	if ownedBy(info, os.Geteuid()) && info.IsDir() {
		if err := acct.own(dir); err != nil {
			return unusable(dir, err)
		}
		if info, err = os.Lstat(dir); err != nil {
			return unusable(dir, err)
		}
	}
	// One that was there may be in /tmp, where anybody could have made it, so it must be what we would have made.
	if !info.IsDir() || !ownedBy(info, acct.uid) || info.Mode().Perm() != 0o700 {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"%s should be a directory of user %s with mode 0700, for PostgreSQL's socket, and is not: remove it", dir, acct.name)
	}
	return nil
}

func ownedBy(info fs.FileInfo, uid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == uid
}

// initCluster makes the database, if there is none yet. It is made under another name, and gets its own once it is
// whole, so whatever interrupts us leaves either a database or none. Each attempt has its own name, because the initdb
// of a killed process goes on.
func (l layout) initCluster(ctx context.Context, acct account, inst installation, sync bool, log *slog.Logger) error {
	if err := l.removeUnfinished(log); err != nil {
		return err
	}
	if _, err := os.Lstat(l.data()); err == nil {
		return nil
	}
	began := time.Now()
	tmp, err := os.MkdirTemp(l.dir, unfinished)
	if err == nil {
		err = acct.own(tmp)
	}
	if err != nil {
		return unusable(l.dir, err)
	}
	// Without a locale strings are ordered by their bytes: the same on every machine and after every upgrade of the C
	// library, which otherwise silently breaks indexes.
	args := []string{
		"--pgdata", tmp, "--username", role, "--encoding", "UTF8", "--no-locale", "--data-checksums",
		"--auth-local", "peer", "--auth-host", "scram-sha-256",
	}
	if !sync {
		args = append(args, "--no-sync")
	}
	cmd := acct.command(ctx, l.dir, inst.binary("initdb"), args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // its children hold the pipe, too
	if err := cmd.Run(); err != nil {
		_ = os.RemoveAll(tmp) // what stays is removed at the next start
		return l.initFailure(ctx, err, output.String())
	}
	if err := errors.Join(os.Rename(tmp, l.data()), syncDir(l.dir, sync)); err != nil {
		return unusable(l.dir, err)
	}
	log.InfoContext(ctx, "made the database", slog.String("dir", l.data()), slog.String("version", inst.version), slog.Duration("took", time.Since(began)))
	return nil
}

func (l layout) initFailure(ctx context.Context, err error, output string) error {
	switch {
	case ctx.Err() != nil:
		return cyborg.Errorf(cyborg.ErrCancelled, "the making of the database in %s was interrupted: %w", l.dir, ctx.Err())
	case outOfSpace(output):
		return noSpace(l.dir)
	default:
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot make the database in %s: %s (%w)", l.dir, lastWords(output), err)
	}
}

// removeUnfinished removes what interrupted attempts left behind.
func (l layout) removeUnfinished(log *slog.Logger) error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return unusable(l.dir, err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), unfinished) {
			continue
		}
		path := filepath.Join(l.dir, entry.Name())
		if err := os.RemoveAll(path); err != nil { // its initdb may still be at work; the next start will succeed
			log.Warn("cannot remove a half-made database yet", slog.String("dir", path), slog.Any("error", err))
			continue
		}
		log.Info("removed a half-made database", slog.String("dir", path))
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(path string, sync bool) error {
	if !sync {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
