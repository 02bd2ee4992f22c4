// Package disktest is a disk in memory whose power can be cut. It knows of each
// file what was written and what was synced, and the same of the names in its
// directory. So a test can cut the power at each operation in turn, and look at
// what a real disk may hold then: what was synced, and any part of the rest.
package disktest

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// ErrPower is the error of each operation from the power cut on.
var ErrPower = errors.New("the power is cut")

// sector is what a disk writes as a whole or not at all.
const sector = 512

// Disk is a disk with one directory. Its methods, and those of what it opens,
// must not be called by several goroutines at once.
type Disk struct {
	names   map[string]*inode // as processes see them
	durable map[string]*inode // as they were at the last sync of the directory
	pending []renaming        // since then

	// off is true from the power cut on.
	off bool
	// operations counts what changes the disk, syncs included.
	operations int
	cutAt      int
	failFrom   int
	failures   int
	failure    error
	effective  bool // what fails takes effect all the same
	opened     int
}

// renaming is one change of the names: from "" for a new file, to "" for a
// removed one.
type renaming struct {
	from, to string
	file     *inode
}

// inode is a file, whatever its names are.
type inode struct {
	content []byte // as processes see it
	durable []byte // as it was at the last sync
	pending []write
}

// write is one write at an offset or, without data, a cut at that length.
type write struct {
	offset int
	data   []byte
	// lost is true after a failed sync. The kernel drops what it could not write,
	// and a later sync does not try again.
	lost bool
}

// New returns an empty disk.
func New() *Disk { return &Disk{names: map[string]*inode{}, durable: map[string]*inode{}} }

// CutAt cuts the power in the middle of an operation, of which the first is 1.
func (d *Disk) CutAt(operation int) { d.cutAt = operation }

// FailAt lets a number of operations fail, from the given one on. A write that
// fails leaves its first half in the file, and what a failed sync did not write
// is never written by a later one.
func (d *Disk) FailAt(operation, failures int, err error) {
	d.failFrom, d.failures, d.failure = operation, failures, err
}

// FailWithEffectAt is FailAt for operations that do what they should, and
// answer with an error all the same: a file system over a network may have lost
// the answer.
func (d *Disk) FailWithEffectAt(operation, failures int, err error) {
	d.FailAt(operation, failures, err)
	d.effective = true
}

// Operations returns how many operations there were.
func (d *Disk) Operations() int { return d.operations }

// Opened returns how many files and directories are open.
func (d *Disk) Opened() int { return d.opened }

// Off reports whether the power was cut.
func (d *Disk) Off() bool { return d.off }

// Killed returns the disk as the next process finds it if the present one is
// killed now: it has all that was written, and of what was not synced a power
// cut may still take everything.
func (d *Disk) Killed() *Disk { return d.copied() }

// Cut returns the disk as it is after a power cut now. Without a source of
// random numbers that is only what was synced. With one it is also a part of
// what was not: of the names the first changes, as file systems keep these in
// order, and of each file any sectors, each whole.
func (d *Disk) Cut(random *rand.Rand) *Disk {
	after := d.copied()

	if random != nil {
		kept := random.IntN(len(after.pending) + 1)
		for _, r := range after.pending[:kept] {
			r.apply(after.durable)
		}
	}

	after.names, after.pending = after.durable, nil
	after.durable = map[string]*inode{}

	for name, file := range after.names {
		after.durable[name] = file
		file.survive(random)
	}

	return after
}

// copied returns a copy of the disk that shares nothing with it.
func (d *Disk) copied() *Disk {
	out, copies := New(), map[*inode]*inode{}

	of := func(file *inode) *inode {
		if copies[file] == nil {
			copies[file] = &inode{
				content: slices.Clone(file.content), durable: slices.Clone(file.durable), pending: slices.Clone(file.pending),
			}
		}
		return copies[file]
	}

	for name, file := range d.names {
		out.names[name] = of(file)
	}
	for name, file := range d.durable {
		out.durable[name] = of(file)
	}
	for _, r := range d.pending {
		out.pending = append(out.pending, renaming{from: r.from, to: r.to, file: of(r.file)})
	}

	return out
}

// apply changes names.
func (r renaming) apply(names map[string]*inode) {
	delete(names, r.from)
	if r.to != "" {
		names[r.to] = r.file
	}
}

// survive leaves of the file what was synced, and a random part of the rest.
func (f *inode) survive(random *rand.Rand) {
	for _, w := range f.pending {
		switch {
		case random == nil || random.IntN(4) == 0:
		case w.data == nil:
			f.durable = resized(f.durable, w.offset)
		default:
			f.keepSectors(w, random)
		}
	}

	f.content, f.pending = slices.Clone(f.durable), nil
}

// keepSectors makes some sectors of a write durable. The others have zeros then,
// where the file has grown over them.
func (f *inode) keepSectors(w write, random *rand.Rand) {
	prefix := random.IntN(2) == 0 // a torn write, in the order of its bytes

	for at := 0; at < len(w.data); {
		end := min(at+sector-(w.offset+at)%sector, len(w.data))
		if !w.lost && random.IntN(2) == 0 {
			f.durable = written(f.durable, w.offset+at, w.data[at:end])
		} else if prefix {
			return
		}
		at = end
	}

	if !prefix {
		f.durable = resized(f.durable, max(len(f.durable), w.offset+len(w.data)))
	}
}

// resized returns the content with another length, filled up with zeros.
func resized(content []byte, size int) []byte {
	if size <= len(content) {
		return content[:size:size]
	}
	return append(slices.Clip(content), make([]byte, size-len(content))...)
}

// written returns the content with the data at an offset.
func written(content []byte, offset int, data []byte) []byte {
	content = resized(content, max(len(content), offset+len(data)))
	content = slices.Clone(content)
	copy(content[offset:], data)
	return content
}

// change counts an operation. It returns the error with which the operation
// ends, and whether it takes effect all the same: what was under way when the
// power was cut may have reached the disk.
func (d *Disk) change() (effect bool, err error) {
	if d.off {
		return false, ErrPower
	}

	d.operations++
	if d.operations == d.cutAt {
		d.off = true
		return true, ErrPower
	}
	if d.operations >= d.failFrom && d.operations < d.failFrom+d.failures {
		return d.effective, d.failure
	}
	return true, nil
}

// sync counts a sync, and says whether it is to be done. One that is cut off by
// the power is not; Cut decides what the disk has of it.
func (d *Disk) sync() (effect bool, err error) {
	effect, err = d.change()
	return effect && !errors.Is(err, ErrPower), err
}

// OpenDir opens the only directory, under any path.
func (d *Disk) OpenDir(path string) (atomicfile.Dir, error) {
	if d.off {
		return nil, ErrPower
	}
	d.opened++
	return &dir{disk: d, path: path}, nil
}

// dir is the open directory.
type dir struct {
	disk *Disk
	path string
}

func (r *dir) Name() string { return r.path }

func (r *dir) ReadFile(name string) ([]byte, error) {
	if r.disk.off {
		return nil, ErrPower
	}

	file, ok := r.disk.names[name]
	if !ok {
		return nil, r.failed("open", name, fs.ErrNotExist)
	}
	return slices.Clone(file.content), nil
}

func (r *dir) OpenFile(name string, flag int, _ fs.FileMode) (atomicfile.File, error) {
	if r.disk.off {
		return nil, ErrPower
	}

	file, ok := r.disk.names[name]
	switch {
	case flag&os.O_APPEND == 0 || flag&os.O_TRUNC != 0:
		return nil, r.failed("open", name, errors.ErrUnsupported)
	case !ok && flag&os.O_CREATE == 0:
		return nil, r.failed("open", name, fs.ErrNotExist)
	case ok && flag&os.O_EXCL != 0:
		return nil, r.failed("open", name, fs.ErrExist)
	case !ok:
		file = &inode{}
		if err := r.change(renaming{to: name, file: file}); err != nil {
			return nil, r.failed("open", name, err)
		}
	}

	r.disk.opened++
	return &open{disk: r.disk, file: file}, nil
}

func (r *dir) Rename(from, to string) error {
	file, ok := r.disk.names[from]
	if !ok {
		return r.failed("rename", from, fs.ErrNotExist)
	}
	return r.change(renaming{from: from, to: to, file: file})
}

func (r *dir) Remove(name string) error {
	file, ok := r.disk.names[name]
	if !ok {
		return r.failed("remove", name, fs.ErrNotExist)
	}
	return r.change(renaming{from: name, file: file})
}

// change changes the names.
func (r *dir) change(change renaming) error {
	effect, err := r.disk.change()
	if effect {
		change.apply(r.disk.names)
		r.disk.pending = append(r.disk.pending, change)
	}
	return err
}

func (r *dir) Sync() error {
	effect, err := r.disk.sync()
	if !effect {
		return err
	}

	for _, change := range r.disk.pending {
		change.apply(r.disk.durable)
	}
	r.disk.pending = nil
	return err
}

func (r *dir) Close() error {
	r.disk.opened--
	return nil
}

// failed is the error of the directory's operations, as package os has it.
func (r *dir) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(r.path, name), Err: err}
}

// open is a file that is open for appending.
type open struct {
	disk   *Disk
	file   *inode
	closed bool
}

// change counts an operation of an open file.
func (o *open) change() (effect bool, err error) {
	if o.closed {
		return false, fs.ErrClosed
	}
	return o.disk.change()
}

func (o *open) Write(data []byte) (int, error) {
	effect, err := o.change()
	if !effect {
		if !errors.Is(err, o.disk.failure) {
			return 0, err
		}
		data = data[:len(data)/2]
	}

	f := o.file
	w := write{offset: len(f.content), data: slices.Clone(data)}
	f.pending = append(f.pending, w)
	f.content = append(f.content, data...)
	return len(data), err
}

func (o *open) Truncate(size int64) error {
	effect, err := o.change()
	if effect {
		o.file.pending = append(o.file.pending, write{offset: int(size)})
		o.file.content = resized(o.file.content, int(size))
	}
	return err
}

func (o *open) Sync() error {
	if o.closed {
		return fs.ErrClosed
	}

	f := o.file
	effect, err := o.disk.sync()
	if !effect {
		for i := range f.pending {
			f.pending[i].lost = f.pending[i].lost || errors.Is(err, o.disk.failure)
		}
		return err
	}

	for _, w := range f.pending {
		switch {
		case w.data == nil:
			f.durable = resized(f.durable, w.offset)
		case w.lost:
			f.durable = resized(f.durable, max(len(f.durable), w.offset+len(w.data)))
		default:
			f.durable = written(f.durable, w.offset, w.data)
		}
	}
	f.pending = nil
	return err
}

func (o *open) Chmod(fs.FileMode) error {
	_, err := o.change()
	return err
}

func (o *open) Close() error {
	if o.closed {
		return fs.ErrClosed
	}
	o.closed = true
	o.disk.opened--
	return nil
}
