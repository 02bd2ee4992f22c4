package novaconf

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

const (
	// Name is the file's. oslo.config reads *.conf of a directory.
	Name = "cyborg-pci.conf"
	// unfinished is what it is called until it is all there.
	unfinished = "." + Name + ".new"
	// largest is in bytes; a file with every function of a host is far smaller.
	largest = 1 << 20
	mode    = 0o640
)

// File is the file in one host's directory of drop-ins. The directory is made by whoever installs Nova.
type File struct {
	Host string
	Dir  string // empty: this host has none
}

// Path is where the file is.
func (f File) Path() string { return filepath.Join(f.Dir, Name) }

// open opens the directory. Nothing outside it can be reached through what it returns.
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

func unavailable(err error) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "Nova's whitelist cannot be read or written: %w", err)
}

// Read returns what the file has; nothing where there is none. What is no plain file is refused.
func (f File) Read() (content []byte, err error) {
	root, err := f.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	return f.read(root)
}

// Look is how the file is now.
func (f File) Look() cyborg.WhitelistFile {
	content, err := f.Read()
	if err != nil {
		return cyborg.WhitelistFile{Foreign: err.Error()}
	}
	return cyborg.WhitelistFile{SHA256: Sum(content), Foreign: Foreign(f.Host, content)}
}

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
	if info, err = file.Stat(); err != nil {
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

func (f File) irregular(mode fs.FileMode) error {
	return cyborg.Errorf(cyborg.ErrChanged, "%s of host %s is no plain file (%s)", f.Path(), f.Host, mode.Type()).WithHint("Move it away.")
}

// Write makes this the content of the file, all of it or nothing; without any, the file is removed. It is on disk when this
// returns. Nova reads it by the directory's group.
func (f File) Write(content []byte) (err error) {
	root, err := f.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if _, err := f.read(root); err != nil { // what is no plain file is not replaced either
		return err
	}
	if len(content) == 0 {
		err = root.Remove(Name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	} else {
		if err = f.prepare(root, content); err == nil {
			err = root.Rename(unfinished, Name)
		}
	}
	if err == nil {
		err = syncDir(root)
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// prepare writes the content beside the file.
func (f File) prepare(root *os.Root, content []byte) (err error) {
	if err := root.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an agent that was killed
		return err
	}
	file, err := root.OpenFile(unfinished, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Remove(unfinished))
		}
	}()
	_, err = file.Write(content)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = takeGroup(root, file)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// takeGroup gives a file the group of its directory.
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

func syncDir(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
