// Package sysfs reads what the Linux kernel says about a host's PCI functions,
// finds out which of them the host itself needs and who uses them, and binds
// them to another kernel driver.
//
// Everything is read below a directory that stands for "/", so a recorded or
// simulated tree works as well as the host's own. A scan expects that files
// vanish while they are read, that names are unknown and that values are
// strange; none of that is an error. All changes of the host go through Kernel.
// The facts come from the kernel's Documentation/ABI/testing/sysfs-bus-pci
// unless a comment says otherwise.
//
// Names come from pcidb, the database library of ghw; docs/architecture.md says why not
// by ghw itself. The list of functions does not come from ghw: when ghw v0.26 cannot read one function (its modalias
// vanished, or its domain is above 1ffff), it returns no device at all and no
// error, and where pci.ids is missing it returns an error. The tests compare
// this package with ghw where ghw returns a result.
//
// The package imports the root package, kernelcall, pcidb, singleflight and the
// standard library.
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

// These directories are below the root, in the form that Kernel.Write takes.
const (
	devicesDir = "sys/bus/pci/devices"
	driversDir = "sys/bus/pci/drivers"
)

// maxText bounds how much of one file is read, in bytes. An attribute of sysfs
// has at most one page, but a mount table can be longer.
const maxText = 4 << 20

// sysfsMagic is SYSFS_MAGIC of linux/magic.h, the type of the file system in
// statfs(2).
const sysfsMagic = 0x62656572

// Tree reads the sysfs of one host, and what it needs of proc and dev. It keeps
// no open file, and remembers nothing. Its methods may be called from several goroutines.
type Tree struct {
	dir   string
	notes string // directory of the notes of package kernelcall; empty for none
	log   *slog.Logger
}

// NewTree returns the tree below dir, the directory that stands for "/".
func NewTree(dir string, log *slog.Logger) *Tree {
	return &Tree{dir: dir, log: log}
}

// NotingIn returns a tree of the same directory that the next process can follow: while
// it asks whether a function is there, a file in the directory notes, which outlives this
// process, says so.
func (t *Tree) NotingIn(notes string) *Tree {
	noting := NewTree(t.dir, t.log)
	noting.notes = notes
	return noting
}

// Live says whether the tree is the sysfs of the running kernel, and not a
// recorded or simulated one.
func (t *Tree) Live() bool {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path.Join(t.dir, "sys"), &stat); err != nil {
		return false
	}

	return int64(stat.Type) == sysfsMagic //nolint:unconvert // the field's type differs between architectures
}

// view is the tree while a call reads it. os.Root keeps every path below the
// directory. The links in sysfs are relative, so this loses nothing real, and a
// hostile recording cannot lead outside.
type view struct {
	root *os.Root
	log  *slog.Logger
	tree *Tree
	bus  map[string]bool // entries of devicesDir, once somebody has asked for one
}

// open opens the tree for one call, which must close the view.
func (t *Tree) open() (*view, error) {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the tree %s cannot be read: %w", t.dir, err)
	}

	return &view{root: root, log: t.log, tree: t}, nil
}

// close closes the view. Its error is ignored, because nothing was written.
func (v *view) close() { _ = v.root.Close() }

// text reads a file without the white space around its content.
func (v *view) text(name string) (string, error) { return readText(v.root, name) }

// readText reads a file below the root without the white space around its
// content.
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

// names lists the entries of a directory, sorted. A directory that does not
// exist has none.
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

// exists says whether the path exists; a dangling link does.
func (v *view) exists(name string) bool {
	_, err := v.root.Lstat(name)
	return err == nil
}

// target returns the path in the tree to which a link leads; "" where it is no
// link or leads outside. The target need not exist, because a recorded tree may
// lack it.
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

// isGone says whether the error only means that something does not exist any
// more.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) ||
		errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOTDIR)
}
