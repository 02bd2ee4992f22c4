package pki

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// Files are where one end of a connection has its certificate, the private key
// of it, and the certificates of the authorities that sign the other end's.
// Certificate and key may be in the same file.
type Files struct {
	Cert, Key string // both empty for an end without a certificate
	CA        string // empty for the authorities of the system, or for no demand
}

// Check returns an error of kind ErrInvalid where a file cannot be used, or the
// certificate and the key do not belong together.
func (f Files) Check() error {
	if f.Cert != "" {
		if _, err := f.pair(nil); err != nil {
			return err
		}
	}
	_, err := f.pool(nil)
	return err
}

// CheckOwn is identity.CheckOwn for the certificate in the files, which the setting
// names; without one there is no error.
func (f Files) CheckOwn(setting string, own identity.Identity) error {
	if f.Cert == "" {
		return nil
	}

	pair, err := f.pair(nil)
	if err != nil {
		return err
	}
	current, err := pair.current()
	if err != nil {
		return err
	}
	return identity.CheckOwn(setting+" "+f.Cert, current.Leaf, own)
}

// reloaded is what was read from files that may be replaced at any time.
type reloaded[T any] struct {
	paths []string
	read  func() (T, error)
	log   *slog.Logger // nil for none

	mu     sync.Mutex // guards the fields below; handshakes run in parallel
	loaded bool
	value  T       // the last that could be read
	stamps []stamp // of the files, when value was read
	told   []stamp // of the files whose error is in the log already
}

// stamp tells a file from the one that replaces it.
type stamp struct {
	modified time.Time
	size     int64
	inode    uint64
}

// stampOf returns the stamp of a file; the zero stamp if it cannot be seen.
func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stamp{modified: info.ModTime(), size: info.Size(), inode: inode(info)}
}

// inode returns the number of the file in its file system, 0 where there is none.
func inode(info fs.FileInfo) uint64 {
	if known, ok := info.Sys().(*syscall.Stat_t); ok {
		return known.Ino
	}
	return 0
}

// current returns the content, and reads it again if a file has changed. If the
// new files cannot be used, current returns the last good content and says so in
// the log, once for each change: somebody may be replacing the two files one
// after the other, and until then they do not match. The next call tries again.
// There is an error only if the files could never be used.
func (r *reloaded[T]) current() (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	// The stamps are taken first, so that a change during the reading is seen by
	// the next call.
	stamps := make([]stamp, len(r.paths))
	for n, path := range r.paths {
		stamps[n] = stampOf(path)
	}
	if r.loaded && slices.Equal(stamps, r.stamps) {
		return r.value, nil
	}

	value, err := r.read()
	switch {
	case err == nil:
		r.loaded, r.value, r.stamps, r.told = true, value, stamps, nil
	case !r.loaded:
		return value, err
	case r.log != nil && !slices.Equal(stamps, r.told):
		r.told = stamps
		r.log.Warn("the replaced certificates cannot be used; the old ones stay in use", "files", strings.Join(r.paths, ", "), "error", err)
	}

	return r.value, nil
}

// pair returns certificate and key of the files.
func (f Files) pair(log *slog.Logger) (*reloaded[*tls.Certificate], error) {
	pair := &reloaded[*tls.Certificate]{paths: []string{f.Cert, f.Key}, log: log, read: func() (*tls.Certificate, error) {
		loaded, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the certificate %s and the key %s cannot be used: %w", f.Cert, f.Key, err)
		}
		return &loaded, nil
	}}

	// Reading now reports a bad certificate at the start, and not at the first
	// connection.
	_, err := pair.current()
	return pair, err
}

// pool returns the authorities of the files; nil where none are named.
func (f Files) pool(log *slog.Logger) (*reloaded[*x509.CertPool], error) {
	if f.CA == "" {
		return nil, nil //nolint:nilnil // no authorities are a configuration, too
	}

	pool := &reloaded[*x509.CertPool]{paths: []string{f.CA}, log: log, read: func() (*x509.CertPool, error) { return ReadPool(f.CA) }}
	_, err := pool.current()
	return pool, err
}
