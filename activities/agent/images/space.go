package images

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

const (
	// diskReserve is how many bytes an image must leave free on the disk: the
	// journal is on the same disk, and without it no step can be taken.
	diskReserve = 16 << 20
	// partialKept is how long a partial download is kept for a repeat of its
	// operation.
	partialKept = 24 * time.Hour
	// recentlyUsed is how long after its last use an image is kept even if nobody
	// lists it as needed: a step that has just staged it may not have written the
	// journal yet.
	recentlyUsed = 10 * time.Minute
	// progressEvery is how many bytes are copied between two calls of progress.
	progressEvery = 1 << 20
)

// freeSpace drops images that nobody needs, the least recently used first,
// until size more bytes fit into the cache and onto the disk. Needed images
// stay, even where the cache is too small for them; only a full disk is an
// error.
func (s *Store) freeSpace(size int64) error {
	entries, err := os.ReadDir(s.config.Dir)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the directory for images cannot be read: %w", err)
	}

	type item struct {
		path string
		size int64
		used time.Time
	}

	var (
		droppable []item
		total     int64
		needed    = s.config.Needed()
	)

	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue // removed meanwhile
		}

		total += info.Size()

		age := recentlyUsed
		if strings.HasPrefix(entry.Name(), partialPrefix) {
			age = partialKept
		}

		if !needed[entry.Name()] && s.config.Now().Sub(info.ModTime()) > age {
			droppable = append(droppable, item{filepath.Join(s.config.Dir, entry.Name()), info.Size(), info.ModTime()})
		}
	}

	slices.SortFunc(droppable, func(a, b item) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })

	for {
		// The disk is asked again after each removal, since others write to it as well.
		free, known := s.diskFree()
		fits := total+size <= s.config.CacheBytes && (!known || size+diskReserve <= free)
		if fits {
			return nil
		}

		if len(droppable) == 0 {
			if known && size+diskReserve > free {
				return cyborg.Errorf(cyborg.ErrUnavailable, "the image needs %d bytes and the disk of %s has %d left", size, s.config.Dir, max(free-diskReserve, 0)).
					WithHint("Free some space on the disk of the agent's state directory.")
			}

			s.log.Warn("the images that are in use are larger together than the cache may be",
				"bytes", total+size, "cache_bytes", s.config.CacheBytes)
			return nil
		}

		first := droppable[0]
		droppable = droppable[1:]
		if err := os.Remove(first.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Warn("an image cannot be dropped", "path", first.path, "error", err)
			continue
		}

		s.log.Info("image dropped from the cache", "image", filepath.Base(first.path), "bytes", first.size)
		total -= first.size
	}
}

// diskFree returns how many bytes the disk has left, and whether the kernel
// knows.
func (s *Store) diskFree() (int64, bool) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(s.config.Dir, &stat); err != nil {
		return 0, false
	}
	return int64(stat.Bavail) * stat.Bsize, true
}

// unwritable returns the error of kind ErrUnavailable for a failed write, which
// names a full disk as such.
func (s *Store) unwritable(err error) error {
	if diskFull(err) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left for the image on the disk of %s: %w", s.config.Dir, err).
			WithHint("Free some space on the disk of the agent's state directory.")
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "the image cannot be written to %s: %w", s.config.Dir, err)
}

func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// reader reads until its context ends, so that a long copy can be cancelled.
type reader struct {
	ctx  context.Context //nolint:containedctx // it lives as long as one call of Read's caller
	from io.Reader
}

func (r *reader) Read(buffer []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.from.Read(buffer)
}

// writer marks its errors as writeError, so that a failed io.Copy shows whether
// reading or writing failed.
type writer struct{ to io.Writer }

// writeError is an error of a writer.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

func (w writer) Write(text []byte) (int, error) {
	n, err := w.to.Write(text)
	if err != nil {
		err = writeError{err}
	}
	return n, err
}

// counter calls report as the copy proceeds, at most once for each
// progressEvery bytes.
type counter struct {
	done, reported int64
	report         func(done int64)
}

func (c *counter) Write(text []byte) (int, error) {
	c.done += int64(len(text))
	if c.done-c.reported >= progressEvery {
		c.reported = c.done
		c.report(c.done)
	}
	return len(text), nil
}
