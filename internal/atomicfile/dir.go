package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Dir is an open directory: all that durable files need of a file system.
// OpenDir opens one of the operating system; package disktest has one whose
// power can be cut.
type Dir interface {
	// Name returns the path with which the directory was opened.
	Name() string
	ReadFile(name string) ([]byte, error)
	OpenFile(name string, flag int, mode fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes durable what was made, renamed or removed.
	Sync() error
	Close() error
}

// File is a file of a Dir that is open for writing.
type File interface {
	io.WriteCloser
	Chmod(mode fs.FileMode) error
	Truncate(size int64) error
	// Sync makes the content durable, but not the name of the file.
	Sync() error
}

// OpenDir opens a directory of the operating system.
func OpenDir(path string) (Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return osDir{root}, nil
}

// osDir is a directory of the operating system.
type osDir struct{ *os.Root }

// OpenFile opens a file of the directory; see Dir.
func (d osDir) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	file, err := d.Root.OpenFile(name, flag, mode)
	if err != nil {
		return nil, err
	}
	return file, nil
}

// Sync makes the names in the directory durable; see Dir.
func (d osDir) Sync() error {
	dir, err := d.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
