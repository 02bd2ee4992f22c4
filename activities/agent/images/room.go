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
	// spare is what an image must leave free on the disk, for the journal, in bytes.
	spare = 16 << 20
	// stale is how long an image that is not complete may wait for its operation to be tried again.
	stale = 24 * time.Hour
	// recent is how long ago an image may have been used to be kept, whether it is known to be needed or not yet.
	recent = 10 * time.Minute
	// tellEvery is how many bytes pass between two calls of progress.
	tellEvery = 1 << 20
)

// makeRoom drops images that nobody needs, the longest unused first, until size more bytes fit into the cache and onto
// the disk. What is needed stays, even where the cache is too small for it.
func (s *Store) makeRoom(size int64) error {
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
			continue // it was removed meanwhile
		}
		total += info.Size()
		age := recent
		if strings.HasPrefix(entry.Name(), partialPrefix) {
			age = stale
		}
		if !needed[entry.Name()] && s.config.Now().Sub(info.ModTime()) > age {
			droppable = append(droppable, item{filepath.Join(s.config.Dir, entry.Name()), info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(droppable, func(a, b item) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	for {
		free, known := s.free()
		fits := total+size <= s.config.CacheBytes && (!known || size+spare <= free)
		if fits {
			return nil
		}
		if len(droppable) == 0 {
			if known && size+spare > free {
				return cyborg.Errorf(cyborg.ErrUnavailable, "the image needs %d bytes and the disk of %s has %d left", size, s.config.Dir, max(free-spare, 0)).
					WithHint("Free some space on the disk of the agent's state directory.")
			}
			s.log.Warn("the images that are needed are more than the cache is meant to hold",
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

// free is how many bytes the disk has left, where the kernel tells.
func (s *Store) free() (int64, bool) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(s.config.Dir, &stat); err != nil {
		return 0, false
	}
	return int64(stat.Bavail) * stat.Bsize, true
}

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

// reader stops reading when its context ends.
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

// writer tells failures to write from failures to read.
type writer struct{ to io.Writer }

type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

func (w writer) Write(text []byte) (int, error) {
	n, err := w.to.Write(text)
	if err != nil {
		err = writeError{err}
	}
	return n, err
}

// counter tells how far a copy is.
type counter struct {
	done, told int64
	tell       func(done int64)
}

func (c *counter) Write(text []byte) (int, error) {
	c.done += int64(len(text))
	if c.done-c.told >= tellEvery {
		c.told = c.done
		c.tell(c.done)
	}
	return len(text), nil
}
