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
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

const (
	// longestSocket is the longest path in bytes that the kernel accepts for a Unix
	// socket (sun_path in unix(7), without its final zero).
	longestSocket = 107
	// socketPort is the port number in the socket's name if the server does not
	// listen on TCP.
	socketPort = 5432

	// unfinishedPrefix begins the names of databases that initdb has not finished.
	unfinishedPrefix = "data.tmp-"
)

// layout knows where each file is in the server's directory. The directory
// belongs to the user of this process. The user that runs the server owns only
// the data and the socket directory below it: it must not be able to replace
// the files that this process writes, perhaps as root, by links to others.
type layout struct{ dir string }

// newLayout makes the path absolute, because the server and this process have
// different working directories.
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

// socketDir returns the directory of the socket. It is inside the server's
// directory, unless the path of the socket would be longer than the kernel
// allows. Then it is in the user's runtime directory, or for root in /tmp,
// under a name made from a hash of the server's directory, so that each start
// finds the same one.
func (l layout) socketDir() string {
	dir := filepath.Join(l.dir, "run")
	// The longest port number is used, so that the place does not depend on the
	// port.
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

// prepare makes the server's directory and the directory of the socket, and
// makes sure that the server's user can work there.
func (l layout) prepare(ctx context.Context, acct account, inst installation) error {
	// Another user must be able to pass through the directory, but not to list it.
	mode := fs.FileMode(0o700)
	if acct.other() {
		mode = 0o711
	}

	err := os.Mkdir(l.dir, mode)
	if err == nil {
		err = os.Chmod(l.dir, mode) // Mkdir applies the umask
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return unusable(l.dir, err)
	}

	if err := acct.checkReach(ctx, l.dir, inst); err != nil {
		return err
	}

	return l.prepareSocketDir(acct)
}

// prepareSocketDir makes the directory of the socket, or checks the one that an
// earlier start made.
func (l layout) prepareSocketDir(acct account) error {
	dir := l.socketDir()
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return unusable(dir, err)
	}

	info, err := os.Lstat(dir)
	if err != nil {
		return unusable(dir, err)
	}

	// The owner is changed for an existing directory too: an earlier start may have
	// died after it had made the directory.
	if ownedBy(info, os.Geteuid()) && info.IsDir() {
		if err := acct.own(dir); err != nil {
			return unusable(dir, err)
		}
		info, err = os.Lstat(dir)
		if err != nil {
			return unusable(dir, err)
		}
	}

	// The directory may be in /tmp, where any user could have made it. It must be
	// exactly what this function makes, or somebody else could pose as the server.
	if !info.IsDir() || !ownedBy(info, acct.uid) || info.Mode().Perm() != 0o700 {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"%s should be a directory of user %s with mode 0700, for PostgreSQL's socket, and is not: remove it", dir, acct.name)
	}

	return nil
}

// ownedBy reports whether the user owns the file.
func ownedBy(info fs.FileInfo, uid int) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == uid
}

// initCluster makes the database if there is none yet. initdb works in a
// directory with a temporary name, which is renamed when it is complete, so an
// interruption at any moment leaves either a whole database or none. Each
// attempt has a name of its own, because the initdb of a process that was
// killed goes on.
func (l layout) initCluster(ctx context.Context, acct account, inst installation, sync bool, log *slog.Logger) error {
	if err := l.removeUnfinished(log); err != nil {
		return err
	}

	if _, err := os.Lstat(l.data()); err == nil {
		return nil
	}

	began := time.Now()
	tmp, err := os.MkdirTemp(l.dir, unfinishedPrefix)
	if err == nil {
		err = acct.own(tmp)
	}
	if err != nil {
		return unusable(l.dir, err)
	}

	// Without a locale, strings are ordered by their bytes. That order is the same
	// on every machine. The order of a locale may change with an upgrade of the C
	// library, and then indexes are corrupt without a word.
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
	// The children of initdb hold the output pipe as well. Without a delay Run
	// would wait for them after initdb itself was killed.
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		_ = os.RemoveAll(tmp) // the next start removes what is left
		return l.initFailure(ctx, err, output.String())
	}

	// From here on the database exists.
	err = os.Rename(tmp, l.data())
	if err == nil && sync {
		err = atomicfile.SyncDir(l.dir)
	}
	if err != nil {
		return unusable(l.dir, err)
	}

	log.InfoContext(ctx, "made the database", slog.String("dir", l.data()), slog.String("version", inst.version), slog.Duration("took", time.Since(began)))
	return nil
}

// initFailure returns the error for an initdb that failed with err and the
// output.
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

// removeUnfinished removes the unfinished databases of interrupted attempts.
func (l layout) removeUnfinished(log *slog.Logger) error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return unusable(l.dir, err)
	}

	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), unfinishedPrefix) {
			continue
		}

		path := filepath.Join(l.dir, entry.Name())
		// Its initdb may still run and add files. That does not disturb this start, and
		// the next start tries again.
		if err := os.RemoveAll(path); err != nil {
			log.Warn("cannot remove a half-made database yet", slog.String("dir", path), slog.Any("error", err))
			continue
		}
		log.Info("removed a half-made database", slog.String("dir", path))
	}

	return nil
}
