package novaconf

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

const (
	// Name is the file's name. oslo.config reads the *.conf files of a directory,
	// in the order of their names, and ignores the hidden file that is to replace
	// this one.
	Name = "cyborg-pci.conf"
	// largest is the size in bytes up to which the file is read; one with every
	// function of a host is far smaller.
	largest = 1 << 20
	// mode lets root write and Nova's group read.
	mode = 0o640
)

// File is the whitelist file in one host's directory of drop-ins. Whoever
// installs Nova makes that directory.
type File struct {
	Host string
	// Dir is the directory of the drop-ins; empty where this host has none.
	Dir string
}

// Path is the path of the file.
func (f File) Path() string { return filepath.Join(f.Dir, Name) }

// open opens the directory. Nothing outside it can be reached through the
// returned root, even if somebody replaces the file by a link. The error is of
// kind ErrUnsupported where the host has no usable directory.
func (f File) open() (*os.Root, error) {
	if f.Dir == "" {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "the agent of host %s does not write Nova's whitelist", f.Host).
			WithHint("Set agent.nova_conf_dir there to the directory from which nova-compute reads drop-ins, such as /etc/nova/nova.conf.d.")
	}

	info, err := os.Lstat(f.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "agent.nova_conf_dir of host %s is %s, which does not exist", f.Host, f.Dir).
			WithHint("Make it, and have nova-compute read it (--config-dir).")
	case err != nil:
		return nil, unavailable(err)
	case !info.IsDir():
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "agent.nova_conf_dir of host %s is %s, which is no directory itself (%s)", f.Host, f.Dir, info.Mode().Type()).
			WithHint("Name the directory, not a link to it.")
	}

	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, unavailable(err)
	}

	return root, nil
}

// unavailable is the error for a failed system call.
func unavailable(err error) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "Nova's whitelist cannot be read or written: %w", err)
}

// Read returns the content of the file; nil where it does not exist. It
// refuses, with kind ErrChanged, what is no regular file.
func (f File) Read() (content []byte, err error) {
	root, err := f.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	return f.read(root)
}

// Look returns the state of the file for the host's reports. A file that cannot
// be read counts as foreign.
func (f File) Look() cyborg.WhitelistFile {
	content, err := f.Read()
	if err != nil {
		return cyborg.WhitelistFile{Foreign: err.Error()}
	}

	return cyborg.WhitelistFile{SHA256: Sum(content), Foreign: ForeignReason(f.Host, content)}
}

// read reads the file below the root. It checks the type twice, as before
// opening it is not known what opening does, and afterwards the file may have
// been exchanged.
func (f File) read(root *os.Root) (content []byte, err error) {
	info, err := root.Lstat(Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailable(err)
	}

	if !info.Mode().IsRegular() {
		return nil, f.irregular(info.Mode())
	}

	file, err := root.OpenFile(Name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, unavailable(err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	info, err = file.Stat()
	if err != nil {
		return nil, unavailable(err)
	}
	if !info.Mode().IsRegular() {
		return nil, f.irregular(info.Mode())
	}

	content, err = io.ReadAll(io.LimitReader(file, largest+1))
	if err != nil {
		return nil, unavailable(err)
	}

	if len(content) > largest {
		return nil, cyborg.Errorf(cyborg.ErrChanged, "%s of host %s is larger than %d bytes: it is not ours", f.Path(), f.Host, largest).
			WithHint("Move it away.")
	}

	return content, nil
}

// irregular is the error for something else than a regular file in the file's
// place.
func (f File) irregular(mode fs.FileMode) error {
	return cyborg.Errorf(cyborg.ErrChanged, "%s of host %s is no plain file (%s)", f.Path(), f.Host, mode.Type()).WithHint("Move it away.")
}

// Write replaces the content of the file, all of it or nothing; an empty
// content removes the file. The change is durable when Write returns. Nova
// reads the file through the directory's group.
func (f File) Write(content []byte) (err error) {
	root, err := f.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()

	if _, err := f.read(root); err != nil { // something else than a regular file is not replaced either
		return err
	}

	if len(content) == 0 {
		err = atomicfile.RemoveIn(root, Name)
	} else {
		err = atomicfile.WriteIn(root, Name, content, mode, func(file *os.File) error { return takeGroup(root, file) })
	}

	if err != nil {
		return unavailable(err)
	}

	return nil
}

// takeGroup gives a file the group of its directory, which is how the group of
// nova-compute can read it.
func takeGroup(root *os.Root, file *os.File) error {
	dir, err := root.Stat(".")
	if err != nil {
		return err
	}

	info, err := file.Stat()
	if err != nil {
		return err
	}

	want, known := dir.Sys().(*syscall.Stat_t)
	has, also := info.Sys().(*syscall.Stat_t)
	if !known || !also || want.Gid == has.Gid {
		return nil
	}

	return file.Chown(-1, int(want.Gid))
}
