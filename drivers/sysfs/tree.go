// Package sysfs reads what the Linux kernel says of a host's PCI functions, tells which of them the host itself lives
// on and who uses them, and rebinds them to another kernel driver.
//
// Everything is read below a directory that stands for "/", so that a recorded tree or a simulated one serves as well
// as the host's own. Files vanish while they are read, names are unknown, values are strange: none of that is an error
// of a scan. What changes the host goes through Kernel. The facts are those of the kernel's
// Documentation/ABI/testing/sysfs-bus-pci unless a comment says otherwise.
//
// Names come from pcidb, the database library of ghw. The listing is not ghw's own: ghw v0.26 answers with no device
// at all, and no error, when it cannot read one function (its modalias vanished, or its domain is above 1ffff), and with an
// error where pci.ids is missing. The tests compare this package with ghw wherever ghw answers.
//
// The package imports the root package, pcidb and the standard library.
package sysfs

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/cyborg-project/cyborg"
)

// Directories below the root, in the form that Kernel.Write takes.
const (
	devicesDir = "sys/bus/pci/devices"
	driversDir = "sys/bus/pci/drivers"
)

// maxText bounds what is read of one attribute; sysfs itself gives at most a page, a mount table is longer.
const maxText = 4 << 20

// sysfsMagic is SYSFS_MAGIC of linux/magic.h.
const sysfsMagic = 0x62656572

// Tree reads the sysfs of one host, and the little of proc and dev that belongs to it. It keeps no state and no open
// file; its methods may be called from several goroutines.
type Tree struct {
	dir string
	log *slog.Logger
}

// NewTree returns the tree below dir, the directory that stands for "/".
func NewTree(dir string, log *slog.Logger) *Tree {
	return &Tree{dir: dir, log: log}
}

// Live says whether the tree is a running kernel's own sysfs, and not a recorded or simulated one.
func (t *Tree) Live() bool {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path.Join(t.dir, "sys"), &stat); err != nil {
		return false
	}
	return int64(stat.Type) == sysfsMagic //nolint:unconvert // the field's type differs between architectures
}

// view is the tree while it is looked at. os.Root keeps every path below the directory: links of sysfs are relative,
// so nothing real is lost, and a hostile recording cannot lead outside.
type view struct {
	root *os.Root
	log  *slog.Logger
}

func (t *Tree) open() (*view, error) {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the tree %s cannot be read: %w", t.dir, err)
	}
	return &view{root: root, log: t.log}, nil
}

// close ends the look; a file that was only read has nothing to lose.
func (v *view) close() { _ = v.root.Close() }

// text reads an attribute without the white space around it.
func (v *view) text(name string) (string, error) { return readText(v.root, name) }

func readText(root *os.Root, name string) (string, error) {
	file, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxText))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(content)), nil
}

// names lists a directory, sorted; one that is not there is empty.
func (v *view) names(dir string) ([]string, error) {
	file, err := v.root.Open(dir)
	if err != nil {
		if isGone(err) {
			return nil, nil
		}
		return nil, err
	}
	defer file.Close()
	names, err := file.Readdirnames(-1)
	if err != nil && !isGone(err) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// exists says whether the path itself is there, be it a dangling link.
func (v *view) exists(name string) bool {
	_, err := v.root.Lstat(name)
	return err == nil
}

// target is where a link leads, as a path in the tree; "" where it is no link or leads outside. A recorded tree may
// lack what the link points to.
func (v *view) target(name string) string {
	link, err := v.root.Readlink(name)
	if err != nil {
		return ""
	}
	if path.IsAbs(link) {
		return ""
	}
	to := path.Join(path.Dir(name), link)
	if to == ".." || strings.HasPrefix(to, "../") {
		return ""
	}
	return to
}

// gone says that the error only means that something is no longer there.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) ||
		errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOTDIR)
}
