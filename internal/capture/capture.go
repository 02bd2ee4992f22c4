// Package capture records the part of a machine's sysfs that describes its PCI
// functions, and opens such recordings: its own and those of ghw's snapshot
// tool. A recording is a .tar.gz of a tree that stands for "/".
//
// An archive may come from anybody, so nothing in it is trusted: no entry is
// written outside of the directory to which it is unpacked, links that lead
// outside are left out, and the size and number of entries are bounded. The
// package imports the root package and the standard library only.
package capture

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Limits of an archive. A recording has about 25 entries for a PCI function,
// each a KiB with its header.
const (
	maxFile  = 4 << 20   // bytes in one file; the longest is a mount table
	maxTotal = 128 << 20 // bytes unpacked, headers included, so it bounds the number of entries too
	maxDepth = 64        // parts of a path
)

// stamp is the file that marks an unpacked recording; it holds the checksum of
// the archive. It is written last, so that a directory with a stamp is
// complete.
const stamp = ".cyborg-capture"

// Open makes a recording readable and returns the directory that stands for
// "/". Where name is a directory, that directory is returned. Where it is an
// archive, it is unpacked to dir, which must be missing, be empty, or hold what
// an earlier Open has unpacked: the same archive is not unpacked again, and
// another one replaces the content. An error is of kind ErrNotFound,
// ErrInvalid, ErrTooLarge or, where dir cannot be written, ErrUnavailable.
func Open(name, dir string) (root string, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrNotFound, "the recording %s cannot be opened: %w", name, err)
	}

	if info.IsDir() {
		return name, requireTree(name, name)
	}

	sum, err := checksum(name)
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "the recording %s cannot be read: %w", name, err)
	}

	present, err := unpacked(dir)
	if err != nil || present == sum {
		return dir, err
	}

	// Unpack into a directory next to dir and rename it, so that dir is never half
	// unpacked.
	partial := dir + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(partial, 0o755)); err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the recording %s cannot be unpacked: %w", name, err)
	}
	defer os.RemoveAll(partial) //nolint:errcheck // it has been renamed by then, or the next Open removes it

	if err := unpackFile(name, partial); err != nil {
		return "", err
	}
	if err := requireTree(name, partial); err != nil {
		return "", err
	}

	// What was unpacked before is removed only once the new recording is complete.
	err = os.WriteFile(filepath.Join(partial, stamp), []byte(sum), 0o644)
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err == nil {
		err = os.Rename(partial, dir)
	}
	if err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the recording %s cannot be unpacked: %w", name, err)
	}

	return dir, nil
}

// requireTree rejects a directory that does not look like a recording. A tree
// without PCI functions is one, too.
func requireTree(name, dir string) error {
	if entries, err := os.ReadDir(filepath.Join(dir, "sys")); err != nil || len(entries) == 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s is no recording of a machine: it has no directory sys with something in it", name).
			WithHint("Make one with: cyborg-agent record")
	}
	return nil
}

// unpacked returns the checksum of the archive that was unpacked to dir, or ""
// where dir is missing or empty. Any other content is an error, so that Open
// removes nothing that it has not written.
func unpacked(dir string) (string, error) {
	sum, err := os.ReadFile(filepath.Join(dir, stamp))
	if err == nil {
		return string(sum), nil
	}

	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "a recording cannot be unpacked to %s: it holds something else", dir)
	}

	return "", nil
}

// checksum is the SHA-256 of a file, in hexadecimal.
func checksum(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()

	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// unpackFile unpacks the archive of that name below dir.
func unpackFile(name, dir string) error {
	file, err := os.Open(name)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrNotFound, "the recording %s cannot be opened: %w", name, err)
	}
	defer file.Close()

	if err := unpack(file, dir); err != nil {
		return cyborg.Errorf(cyborg.ErrorKindOf(err), "the recording %s: %w", name, err)
	}

	return nil
}

// unpack writes the archive's directories, files and links below dir, which
// exists. os.Root keeps every write below dir, also where an entry leads
// through a link.
func unpack(archive io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "%w", err)
	}
	defer root.Close()

	compressed, err := gzip.NewReader(archive)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "it is no .tar.gz: %w", err)
	}

	reader := tar.NewReader(&limitedReader{from: compressed, left: maxTotal})
	// A sparse file can hold more than its part of the archive, so the content has
	// a limit of its own.
	content := &limitedReader{from: reader, left: maxTotal}

	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged(err)
		}

		if err := unpackEntry(root, header, content); err != nil {
			return err
		}
	}
}

// damaged converts an error of reading the archive: either a limit was reached,
// or the archive is damaged.
func damaged(err error) error {
	if errors.Is(err, errTooLarge) {
		return cyborg.Errorf(cyborg.ErrTooLarge, "%w", errTooLarge)
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "it is damaged: %w", err)
}

// unpackEntry writes one entry.
func unpackEntry(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if name == "." {
		return nil
	}

	if !filepath.IsLocal(name) || strings.Count(name, "/") >= maxDepth {
		return cyborg.Errorf(cyborg.ErrInvalid, "its entry %q does not belong below one directory", header.Name)
	}

	var err error
	switch header.Typeflag {
	case tar.TypeDir:
		err = root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		err = unpackText(root, name, content)
	case tar.TypeSymlink:
		err = unpackLink(root, name, header.Linkname)
	default:
		return nil // a sysfs has no device nodes, pipes or hard links
	}

	if err != nil && !errors.As(err, new(*cyborg.Error)) {
		return cyborg.Errorf(cyborg.ErrInvalid, "its entry %q cannot be unpacked: %w", header.Name, err)
	}

	return err
}

// unpackText writes a file.
func unpackText(root *os.Root, name string, content io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(content, maxFile+1))
	if err != nil {
		return damaged(err)
	}

	if len(text) > maxFile {
		return cyborg.Errorf(cyborg.ErrTooLarge, "its entry %q is larger than %d bytes", name, maxFile)
	}

	if err := makeWay(root, name); err != nil {
		return err
	}

	return root.WriteFile(name, text, 0o644)
}

// unpackLink makes a link that stays below the root, as all links of a sysfs
// do. Other links are left out without an error, because ghw's recordings have
// some, such as etc/mtab.
func unpackLink(root *os.Root, name, target string) error {
	if path.IsAbs(target) || !filepath.IsLocal(path.Join(path.Dir(name), target)) {
		return nil
	}

	if err := makeWay(root, name); err != nil {
		return err
	}

	return root.Symlink(target, name)
}

// makeWay makes the directory of an entry, and removes an earlier entry of the
// same name: as with tar, the last one counts.
func makeWay(root *os.Root, name string) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}

	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}

// errTooLarge is returned when maxTotal is reached.
var errTooLarge = errors.New("it unpacks to more than 128 MiB")

// limitedReader returns an error at its limit. The standard library's
// LimitedReader would return io.EOF, and a cut archive would pass for a
// complete one.
type limitedReader struct {
	from io.Reader
	left int64
}

// Read returns errTooLarge once the limit is used up.
func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}

	if int64(len(p)) > l.left {
		p = p[:l.left]
	}

	n, err := l.from.Read(p)
	l.left -= int64(n)
	return n, err
}
