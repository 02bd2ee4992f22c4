// Package images keeps the images (bitstreams, firmware) that were brought to a host: checked, under their checksum, as
// many as fit. It imports the root package and the standard library.
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
)

const (
	// partialPrefix begins the name of an image that is being fetched, and may go on being fetched by a later process.
	partialPrefix = ".partial-"
	// copyPrefix begins the name of an image that is being copied.
	copyPrefix = ".copy-"
)

// Download is an image on its way.
type Download struct {
	io.ReadCloser
	// Offset is the byte at which it begins: the one that was asked for, or 0.
	Offset int64
	// Size of the whole image in bytes; -1 where nobody said.
	Size int64
}

// Source fetches the images that are not on this host.
type Source interface {
	// Image begins to fetch what conductors give at the path, from the given byte if it can.
	Image(ctx context.Context, path string, offset int64) (Download, error)
	// GiveBack tells a conductor that the path, of a one-time URL, is needed no more.
	GiveBack(ctx context.Context, path string) error
}

// Request is an image to bring to the host.
type Request struct {
	Image cyborg.Image
	// Fetch is the path and query where conductors give it, if it is not below the image directory.
	Fetch string
	// Once says that Fetch is given back when the image is here.
	Once bool
}

// Config is what a store is made with; every field but ImageDir is needed.
type Config struct {
	Dir string
	// ImageDir is where images are taken from that name no other source; without it they are refused.
	ImageDir string
	// MaxBytes is the largest image that is taken.
	MaxBytes int64
	// CacheBytes bounds all that is kept of images that are not needed.
	CacheBytes int64
	Source     Source
	// Needed lists the checksums of images that must not be dropped.
	Needed func() map[string]bool
	// Now is the time of day; time.Now where nil.
	Now func() time.Time
}

// Store is a directory of images. Its methods may be called from several goroutines.
type Store struct {
	config Config
	log    *slog.Logger

	mu    sync.Mutex
	locks map[string]chan struct{} // by checksum or path of those being staged
}

// Image is one that is on this host.
type Image struct {
	SHA256 string
	Size   int64
	Path   string
}

// Open opens a store and makes its directory.
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
	for _, path := range cut { // of a process that died
		if err := os.Remove(path); err != nil {
			return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory for images cannot be cleaned: %w", err)
		}
	}
	return &Store{config: config, log: log, locks: map[string]chan struct{}{}}, nil
}

// Stage brings an image to the host and checks it. Where an earlier try was interrupted it goes on from there. Progress
// is called now and then with the bytes so far and in all (-1 where nobody knows).
//
// Errors: Invalid for a source or checksum that cannot be; ErrNotFound; ErrTooLarge; ErrImageRejected where the checksum does not
// match; Unavailable for a full disk or a source that does not answer.
func (s *Store) Stage(ctx context.Context, request Request, progress func(done, all int64)) (Image, error) {
	image := request.Image
	want, err := wanted(image)
	if err != nil {
		return Image{}, err
	}
	local, isLocal := localPath(image.Source)
	if !isLocal && want == (checksums{}) {
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "the image %.200q comes from another machine, so its SHA-256 must be given", image.Source)
	}
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
		if err := s.config.Source.GiveBack(ctx, request.Fetch); err != nil { // it ends by itself, only later
			s.log.DebugContext(ctx, "the URL of an image was not given back", "error", err)
		}
	}
	return staged, err
}

// localPath returns the path below the image directory, where the source is one.
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

// stageLocal copies an image from the image directory, so that nobody changes it between check and use.
func (s *Store) stageLocal(ctx context.Context, path, want string, progress func(done, all int64)) (Image, error) {
	if s.config.ImageDir == "" {
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "this host has no image directory, so %.200q cannot be used", path).
			WithHint("Set agent.image_dir, or give a URL.")
	}
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
		return Image{}, cyborg.Errorf(cyborg.ErrInvalid, "the image %.200q cannot be opened below this host's image directory %s: %w", path, s.config.ImageDir, bare(err))
	}
	defer func() { _ = file.Close() }() // it was only read
	size := info.Size()
	if err := s.makeRoom(size); err != nil {
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

var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file below the root. It opens nothing else where that can be seen before, since opening may
// do something to a device; and it waits for nothing where a pipe takes a file's place in between.
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

// bare is the reason without the path, which may be of any length.
func bare(err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return failed.Err
	}
	return err
}

// stageRemote fetches an image, from where an earlier try stopped.
func (s *Store) stageRemote(ctx context.Context, fetch string, want checksums, progress func(done, all int64)) (Image, error) {
	path := filepath.Join(s.config.Dir, partialPrefix+want.name())
	image, resumed, err := s.fetch(ctx, fetch, path, want, progress)
	if resumed && cyborg.ErrorKindOf(err) == cyborg.ErrImageRejected {
		s.log.WarnContext(ctx, "what was there of an image does not fit what came; it is fetched from the beginning", "checksum", want.name())
		image, _, err = s.fetch(ctx, fetch, path, want, progress)
	}
	return image, err
}

// fetch tells, besides, whether it went on from an earlier try. What it got is kept for a later one unless it is wrong.
func (s *Store) fetch(ctx context.Context, from, path string, want checksums, progress func(done, all int64)) (Image, bool, error) {
	partial, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return Image{}, false, s.unwritable(err)
	}
	keep := false
	defer func() {
		_ = partial.Close() // a second Close of what keep closed; of the rest nothing is needed but what is on disk
		if !keep {
			_ = os.Remove(path) // where this fails, the next try finds the checksum wrong and begins anew
		}
	}()
	sums, err := want.begin()
	if err != nil {
		return Image{}, false, err
	}
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
	if err := s.makeRoom(max(download.Size-offset, 0)); err != nil {
		return Image{}, resumed, err
	}
	done, err := s.fill(ctx, partial, sums, download, offset, download.Size, progress)
	switch {
	case err != nil:
		keep = !diskFull(err) && cyborg.ErrorKindOf(err) != cyborg.ErrTooLarge
		return Image{}, resumed, err
	case download.Size >= 0 && done < download.Size:
		keep = true
		return Image{}, resumed, cyborg.Errorf(cyborg.ErrUnavailable, "the image ended after %d of %d bytes", done, download.Size)
	}
	if err := sums.check("fetched", want); err != nil {
		return Image{}, resumed, err
	}
	image, err := s.keep(partial, hexOf(sums.sha256), done)
	if keep = err == nil; keep {
		s.alias(ctx, want, image)
	}
	return image, resumed, err
}

// fill copies from into the file, which has offset bytes already, and returns how many it has then.
func (s *Store) fill(
	ctx context.Context, to *os.File, sum io.Writer, from io.Reader, offset, all int64, progress func(done, all int64),
) (int64, error) {
	progress(offset, all)
	counted := &counter{done: offset, tell: func(done int64) { progress(done, all) }}
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

// keep gives a complete image its place.
func (s *Store) keep(partial *os.File, sum string, size int64) (Image, error) {
	path := s.path(sum)
	err := partial.Sync()
	if err = errors.Join(err, partial.Close()); err == nil {
		err = os.Rename(partial.Name(), path)
	}
	if err == nil {
		err = syncDir(s.config.Dir)
	}
	if err != nil {
		return Image{}, s.unwritable(err)
	}
	return Image{SHA256: sum, Size: size, Path: path}, nil
}

// Get returns a staged image after it has checked it once more. One that is not there is an error of kind ErrNotFound; one
// that no longer matches is removed, and is not there either.
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

func (s *Store) path(sum string) string { return filepath.Join(s.config.Dir, filepath.Base(sum)) }

// lock lets one image be staged by one caller at a time.
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

func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
