// Package images stores the images (bitstreams, firmware) that were brought to
// a host. An image is kept under its checksum after it was verified, and old
// images are dropped when the space is needed. It imports the root package,
// internal/atomicfile and the standard library.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

const (
	// partialPrefix begins the file name of an image that is being fetched. A later
	// process may go on fetching it.
	partialPrefix = ".partial-"
	// copyPrefix begins the file name of an image that is being copied from the
	// image directory. Open removes what is left of one.
	copyPrefix = ".copy-"
)

// Download is the body of an image that is being fetched.
type Download struct {
	io.ReadCloser
	// Offset is the byte at which the body begins: the requested one, or 0 where
	// the source cannot begin there.
	Offset int64
	// Size is the size of the whole image in bytes; -1 where it is unknown.
	Size int64
}

// Source fetches the images that are not on this host.
type Source interface {
	// Image begins to fetch the image that conductors serve at the path, from the
	// given byte if the conductor can.
	Image(ctx context.Context, path string, offset int64) (Download, error)
	// GiveBack tells a conductor that the one-time URL at the path is no longer
	// needed.
	GiveBack(ctx context.Context, path string) error
}

// Request is an image to bring to the host.
type Request struct {
	Image cyborg.Image
	// Fetch is the path and query at which conductors serve the image, where it
	// does not come from the image directory.
	Fetch string
	// Once is true where Fetch is a one-time URL, to be given back when the image
	// is here.
	Once bool
}

// Config is what a store is made with. Every field but ImageDir and Now is
// required.
type Config struct {
	// Dir is the directory in which the images are stored.
	Dir string
	// ImageDir is the operator's directory, from which images with a local source
	// are taken. Where it is empty, such images are refused.
	ImageDir string
	// MaxBytes is the largest image that is accepted.
	MaxBytes int64
	// CacheBytes limits the size of all stored images. Needed images are kept even
	// above it.
	CacheBytes int64
	Source     Source
	// Needed returns the checksums of images that must not be dropped.
	Needed func() map[string]bool
	// Now returns the time of day; nil means time.Now.
	Now func() time.Time
}

// Store is a directory of images. Its methods may be called from several
// goroutines.
type Store struct {
	config Config
	log    *slog.Logger

	// mu guards locks, and is never held while an image is read or written.
	mu sync.Mutex
	// locks are the images that are being staged, by checksum or local path. Each
	// channel is closed when that image is done.
	locks map[string]chan struct{}
}

// Image is a verified image on this host.
type Image struct {
	SHA256 string
	Size   int64
	Path   string
}

// Open makes the directory of a store and removes what a killed process left of
// its copies. Partial downloads stay: they are resumed.
func Open(config Config, log *slog.Logger) (*Store, error) {
	if config.Now == nil {
		config.Now = time.Now
	}

	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory for images cannot be made: %w", err)
	}

	cut, err := filepath.Glob(filepath.Join(config.Dir, copyPrefix+"*"))
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the directory for images cannot be searched: %w", err)
	}
	for _, path := range cut {
		if err := os.Remove(path); err != nil {
			return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory for images cannot be cleaned: %w", err)
		}
	}

	return &Store{config: config, log: log, locks: map[string]chan struct{}{}}, nil
}

// Stage brings an image to the host and verifies it. An interrupted download is
// resumed from where it stopped. Progress is called repeatedly with the number
// of bytes so far and in total (-1 if the total is unknown).
//
// Errors: ErrInvalid for an impossible source or checksum; ErrNotFound;
// ErrTooLarge; ErrImageRejected where the checksum does not match;
// ErrUnavailable for a full disk or a source that does not answer.
func (s *Store) Stage(ctx context.Context, request Request, progress func(done, all int64)) (Image, error) {
	image := request.Image
	want, err := wantedChecksums(image)
	if err != nil {
		return Image{}, err
	}

	local, isLocal := localPath(image.Source)
	if !isLocal && want == (checksums{}) {
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "the image %.200q comes from another machine, so its SHA-256 must be given", image.Source)
	}

	// Two operations may need the same image; the second waits, and finds it here.
	key := want.name()
	if key == "" {
		key = local
	}

	unlock, err := s.lock(ctx, key)
	if err != nil {
		return Image{}, err
	}
	defer unlock()

	staged, err := s.known(ctx, want)
	if err != nil && ctx.Err() == nil {
		if isLocal {
			return s.stageLocal(ctx, local, want.sha256, progress)
		}
		staged, err = s.stageRemote(ctx, request.Fetch, want, progress)
	}

	if err == nil && request.Once {
		if err := s.config.Source.GiveBack(ctx, request.Fetch); err != nil { // the URL expires by itself, only later
			s.log.DebugContext(ctx, "the one-time URL of an image was not revoked", "error", err)
		}
	}

	return staged, err
}

// localPath returns the path below the image directory, where the source is a
// local one.
func localPath(source string) (string, bool) {
	if path, ok := strings.CutPrefix(source, "file:"); ok {
		return path, true
	}

	scheme, _, hasScheme := strings.Cut(source, ":")
	if hasScheme && !strings.Contains(scheme, "/") {
		return "", false
	}
	return source, true
}

// stageLocal copies an image from the image directory. The hardware is loaded
// from the copy, so that nobody can change the image between its check and its
// use.
func (s *Store) stageLocal(ctx context.Context, path, want string, progress func(done, all int64)) (Image, error) {
	if s.config.ImageDir == "" {
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "this host has no image directory, so %.200q cannot be used", path).
			WithHint("Set agent.image_dir, or give a URL.")
	}

	// Below a Root neither ".." nor a symbolic link leads out of the directory.
	root, err := os.OpenRoot(s.config.ImageDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no image %.200q: this host's image directory %s does not exist", path, s.config.ImageDir).
			WithHint("Make the directory on the host and put the image into it, or set agent.image_dir.")
	}
	if err != nil {
		return Image{}, cyborg.Errorf(cyborg.ErrUnavailable, "the image directory cannot be opened: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read

	file, info, err := openRegular(root, path)
	switch {
	case errors.Is(err, errNotRegular):
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "the image %.200q is not a regular file", path)
	case errors.Is(err, fs.ErrNotExist):
		return Image{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no image %.200q below this host's image directory %s", path, s.config.ImageDir)
	case err != nil:
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "the image %.200q cannot be opened below this host's image directory %s: %w", path, s.config.ImageDir, withoutPath(err))
	}
	defer func() { _ = file.Close() }() // it was only read

	size := info.Size()
	if err := s.freeSpace(size); err != nil {
		return Image{}, err
	}

	partial, err := os.CreateTemp(s.config.Dir, copyPrefix+"*")
	if err != nil {
		return Image{}, s.unwritable(err)
	}

	sum := sha256.New()
	done, err := s.fill(ctx, partial, sum, file, 0, size, progress)
	if err == nil && want != "" && hexOf(sum) != want {
		err = mismatch(path, "SHA-256", want, hexOf(sum))
	}
	if err != nil {
		return Image{}, errors.Join(err, partial.Close(), os.Remove(partial.Name()))
	}

	return s.keep(partial, hexOf(sum), done)
}

// errNotRegular is the error of openRegular for a directory, device, pipe or
// socket.
var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file below the root. It looks before it opens,
// because merely opening a device may make the device do something; and it
// looks again afterwards, because the file may have been exchanged in between.
// O_NONBLOCK keeps the open from waiting where a pipe took the file's place.
func openRegular(root *os.Root, path string) (*os.File, fs.FileInfo, error) {
	path = filepath.Clean(path)
	info, err := root.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, nil, err
	}

	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}

	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}

	return file, info, nil
}

// withoutPath returns the reason without the path, which may be of any length
// and is in the message already.
func withoutPath(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}

// stageRemote fetches an image, beginning where an earlier try stopped. Where
// the result has a wrong checksum, the part from the earlier try may be to
// blame, so it fetches once more from the first byte.
func (s *Store) stageRemote(ctx context.Context, fetch string, want checksums, progress func(done, all int64)) (Image, error) {
	path := filepath.Join(s.config.Dir, partialPrefix+want.name())

	image, resumed, err := s.fetch(ctx, fetch, path, want, progress)
	if resumed && cyborg.ErrorKindOf(err) == cyborg.ErrImageRejected {
		s.log.WarnContext(ctx, "the part of an image that an earlier try fetched does not fit the rest; the image is fetched from its beginning", "checksum", want.name())
		image, _, err = s.fetch(ctx, fetch, path, want, progress)
	}

	return image, err
}

// fetch downloads an image into the file at path, behind what that file already
// has, and reports whether it resumed an earlier download. On failure it keeps
// the partial file for a later try, unless the content itself is wrong.
func (s *Store) fetch(ctx context.Context, from, path string, want checksums, progress func(done, all int64)) (Image, bool, error) {
	partial, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return Image{}, false, s.unwritable(err)
	}

	keep := false
	defer func() {
		_ = partial.Close() // keep may have closed it already; what matters is on disk
		if !keep {
			_ = os.Remove(path) // if this fails, the next try finds a wrong checksum and starts over
		}
	}()

	sums, err := want.begin()
	if err != nil {
		return Image{}, false, err
	}

	// The hashes must cover the whole image, so the part that is already there is
	// read first.
	offset, err := io.Copy(sums, &reader{ctx: ctx, from: partial})
	if err != nil {
		keep = ctx.Err() != nil
		return Image{}, false, orCause(ctx, cyborg.Errorf(cyborg.ErrUnavailable, "what was fetched of the image cannot be read: %w", err))
	}

	download, err := s.config.Source.Image(ctx, from, offset)
	if err != nil {
		keep = true
		return Image{}, false, orCause(ctx, err)
	}
	defer func() { _ = download.Close() }() // it was only read

	// The source cannot begin at that byte: the image comes from its first byte,
	// and replaces the partial file.
	if download.Offset != offset {
		offset = 0
		sums.reset()
		if _, err := partial.Seek(0, io.SeekStart); err != nil {
			return Image{}, false, s.unwritable(err)
		}
		if err := partial.Truncate(0); err != nil {
			return Image{}, false, s.unwritable(err)
		}
	}

	resumed := offset > 0
	if download.Size > s.config.MaxBytes {
		return Image{}, resumed, s.tooLarge()
	}

	if err := s.freeSpace(max(download.Size-offset, 0)); err != nil {
		return Image{}, resumed, err
	}

	done, err := s.fill(ctx, partial, sums, download, offset, download.Size, progress)
	switch {
	case err != nil:
		keep = !diskFull(err) && cyborg.ErrorKindOf(err) != cyborg.ErrTooLarge
		return Image{}, resumed, err
	case download.Size >= 0 && done < download.Size: // the connection broke; the next try goes on from here
		keep = true
		return Image{}, resumed, cyborg.Errorf(cyborg.ErrUnavailable, "the image ended after %d of %d bytes", done, download.Size)
	}

	if err := sums.check("fetched", want); err != nil {
		return Image{}, resumed, err
	}

	image, err := s.keep(partial, hexOf(sums.sha256), done)
	keep = err == nil
	if keep {
		s.alias(ctx, want, image)
	}

	return image, resumed, err
}

// fill appends what it reads from the source to the file, which has offset
// bytes already, and returns how many it has then. It reads one byte more than
// the limit, to notice an image that is too large without reading all of it.
func (s *Store) fill(
	ctx context.Context, to *os.File, sum io.Writer, from io.Reader, offset, all int64, progress func(done, all int64),
) (int64, error) {
	progress(offset, all)

	counted := &counter{done: offset, report: func(done int64) { progress(done, all) }}
	source := io.LimitReader(&reader{ctx: ctx, from: from}, s.config.MaxBytes-offset+1)
	copied, err := io.Copy(io.MultiWriter(writer{to}, sum, counted), source)

	done := offset + copied
	switch {
	case ctx.Err() != nil:
		return done, context.Cause(ctx)
	case errors.As(err, new(writeError)):
		return done, s.unwritable(err)
	case err != nil:
		return done, cyborg.Errorf(cyborg.ErrUnavailable, "the image could not be read to its end, after %d bytes: %w", done, err)
	case done > s.config.MaxBytes:
		return done, s.tooLarge()
	}

	return done, nil
}

// keep moves a complete image to its final name. A power cut cannot leave a
// damaged image under that name.
func (s *Store) keep(partial *os.File, sum string, size int64) (Image, error) {
	path := s.path(sum)
	if err := atomicfile.Keep(partial, path); err != nil {
		return Image{}, s.unwritable(err)
	}

	return Image{SHA256: sum, Size: size, Path: path}, nil
}

// Get returns a stored image after verifying it again: the disk may have
// damaged it since. The error is of kind ErrNotFound where the image is not
// there; a damaged image is removed, and counts as not there.
func (s *Store) Get(ctx context.Context, sum string) (Image, error) {
	file, err := os.Open(s.path(sum))
	if err != nil {
		return Image{}, cyborg.Errorf(cyborg.ErrNotFound, "the image %s is not on this host", sum)
	}
	defer func() { _ = file.Close() }() // it was only read

	hash := sha256.New()
	size, err := io.Copy(hash, &reader{ctx: ctx, from: file})
	if ctx.Err() != nil {
		return Image{}, context.Cause(ctx)
	}

	if err != nil || hexOf(hash) != sum {
		s.log.ErrorContext(ctx, "a staged image is damaged; it is removed", "sha256", sum, "error", err)
		if err := os.Remove(s.path(sum)); err != nil {
			return Image{}, cyborg.Errorf(cyborg.ErrHardware, "the staged image %s is damaged and cannot be removed: %w", sum, err)
		}
		return Image{}, cyborg.Errorf(cyborg.ErrNotFound, "the image %s was damaged on this host", sum)
	}

	now := s.config.Now()
	if err := os.Chtimes(s.path(sum), now, now); err != nil { // the time of last use decides what is dropped first
		s.log.WarnContext(ctx, "the use of an image cannot be noted", "sha256", sum, "error", err)
	}

	return Image{SHA256: sum, Size: size, Path: s.path(sum)}, nil
}

// path is where the image with that checksum is stored. Base keeps a malformed
// checksum from leading out of the directory.
func (s *Store) path(sum string) string { return filepath.Join(s.config.Dir, filepath.Base(sum)) }

// lock lets one caller at a time stage an image. It waits until the image is
// free or the context ends.
func (s *Store) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		s.mu.Lock()
		busy, taken := s.locks[key]
		if !taken {
			done := make(chan struct{})
			s.locks[key] = done
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				delete(s.locks, key)
				close(done)
			}, nil
		}

		s.mu.Unlock()

		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *Store) tooLarge() error {
	return cyborg.Errorf(cyborg.ErrTooLarge, "the image is larger than the %d bytes that this host takes", s.config.MaxBytes).
		WithHint("Raise the agent's limit on images if it is meant to be that large.")
}

func mismatch(what, algorithm, want, got string) error {
	return cyborg.Errorf(cyborg.ErrImageRejected, "the image %s has the %s %s and not %s", what, algorithm, got, want)
}

func hexOf(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }

// orCause returns the cause of the context's end where it has ended, since the
// error is then only a consequence.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
