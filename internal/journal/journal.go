// Package journal is an agent's record of what it has done, or was about to do,
// to its host's hardware. It is written before the hardware is touched, and a
// change is on disk when Write returns: a step that is repeated after a crash
// finds out what the first try did.
//
// The journal is one append-only file of changes, each with a checksum. From
// time to time it is rewritten as the shortest list of changes that leads to
// the same state. It imports the root package, internal/atomicfile, uuid and
// the standard library.
package journal

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

const (
	fileName = "journal"

	// sequenceBlock is how many sequence numbers one write reserves, so that most
	// of them cost no write to the disk.
	sequenceBlock = 4096
	// compactFrom is the file size in bytes below which rewriting saves too little.
	compactFrom = 256 << 10
	// compactFactor is how many times its size after the last rewrite the file may
	// reach.
	compactFactor = 4
)

// Options configure a journal. Every field but BootID may be left zero.
type Options struct {
	// BootID identifies this boot of the machine. It is stored with every step,
	// attachment, clean and layout, since a boot undoes attachments and layouts.
	BootID string
	// Log receives warnings; nil discards them.
	Log *slog.Logger
	// Now returns the time of day; nil means time.Now.
	Now func() time.Time
	// OpenDir opens the directory of the journal; nil means atomicfile.OpenDir.
	OpenDir func(path string) (atomicfile.Dir, error)
}

// Journal is an open journal. Its methods may be called from several
// goroutines.
type Journal struct {
	path   string
	bootID string
	log    *slog.Logger
	now    func() time.Time

	// mu guards everything below. It is held while the disk is written: changes
	// reach the file in the order in which they take effect.
	mu  sync.Mutex
	dir atomicfile.Dir
	// file is the journal, open for appending.
	file   atomicfile.File
	closed bool
	// size is how many bytes of the file are known to be good.
	size int64
	// compactedSize is the size of the file after it was last rewritten.
	compactedSize int64
	// damaged is set when a write has failed, or a rewrite that may have replaced
	// the file. The content of the disk is unknown then, so the file is rewritten
	// before the next write.
	damaged bool
	state   state
	// next is the sequence number to return next.
	next int64
	// raised are the assignment numbers that are not on the disk yet; see Raise.
	raised map[Subject]int64
	// opening names this process in positions, and told says that a conductor knows
	// one of these; see Position and Told.
	opening uuid.UUID
	told    bool
}

// Open opens the journal in a directory, or begins a new one. It drops a record
// that a kill or a power cut has cut off at the end of the file: Write never
// returned for it, so nobody relies on it. Damage anywhere else is an error of
// kind ErrInvalid that says what to do; so is the journal of a newer release.
func Open(dir string, options Options) (*Journal, error) {
	j := &Journal{
		path: filepath.Join(dir, fileName), bootID: options.BootID, opening: uuid.New(), log: options.Log, now: options.Now, state: newState(),
		raised: map[Subject]int64{},
	}

	if j.log == nil {
		j.log = slog.New(slog.DiscardHandler)
	}
	if j.now == nil {
		j.now = time.Now
	}

	openDir := options.OpenDir
	if openDir == nil {
		openDir = atomicfile.OpenDir
	}

	var err error
	if j.dir, err = openDir(dir); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of the journal %s cannot be opened: %w", j.path, err)
	}

	if err := j.read(); err != nil {
		return nil, errors.Join(err, j.Close())
	}

	// All reserved numbers may have been given out. The clock keeps the numbers
	// growing even where the journal was lost.
	j.next = max(j.state.sequence, j.now().UnixMilli())
	return j, nil
}

// read reads the file and opens it for appending, or begins a new one.
func (j *Journal) read() error {
	text, err := j.dir.ReadFile(fileName)
	if errors.Is(err, os.ErrNotExist) {
		return j.rewrite()
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the journal %s cannot be read: %w", j.path, err)
	}

	good, err := replay(text, j.state.apply)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the journal %s is unusable: %w", j.path, err).
			WithHint("%s", damagedHint)
	}

	j.file, err = j.dir.OpenFile(fileName, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the journal %s cannot be opened: %w", j.path, err)
	}

	if cut := int64(len(text)) - good; cut > 0 {
		j.log.Warn("the journal ends in a record that was cut off; it is dropped", "journal", j.path, "bytes", cut)
		err = j.file.Truncate(good)
	}

	// A process that was killed may have synced neither the last record nor the
	// name of a rewritten file. From here on both are relied on.
	if err := errors.Join(err, j.file.Sync(), j.dir.Sync()); err != nil {
		return unwritable(j.path, err)
	}

	j.size, j.compactedSize = good, good
	if good > compactFrom {
		j.tryRewrite()
	}

	return nil
}

// Close closes the file. Writes fail afterwards: another process may have the
// journal by then.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}

	j.closed = true
	err := j.dir.Close()
	if j.file != nil { // nil where Open has failed
		err = errors.Join(err, j.file.Close())
	}

	return err
}

// BootID returns the boot in which the journal was opened.
func (j *Journal) BootID() string { return j.bootID }

// Write makes a change, all of it or none. The change is on disk when Write
// returns nil. An error is of kind ErrUnavailable and means that the change has
// not been made: this journal does not know it, and what of it had reached the
// file was taken back. Where the disk refused that as well, the journal that is
// opened next may find the change made. Steps, attachments, cleans, layouts and images
// without a boot id or a time get the present ones.
func (j *Journal) Write(change Change) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.write(change)
}

// write is Write for a caller that holds mu.
func (j *Journal) write(change Change) error {
	change.stamp(j.bootID, j.now())
	change.Assigned = listAssigned(j.raised)
	change.Position = Position{Opening: j.opening, Writes: j.state.writesOf(j.opening) + 1, Told: change.Told}
	record, err := encode(change)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a journal record cannot be encoded: %w", err)
	}

	if j.closed {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the journal %s is closed", j.path)
	}

	if !j.damaged && j.size > compactFrom && j.size > compactFactor*j.compactedSize {
		j.tryRewrite()
	}

	if j.damaged {
		if err := j.rewrite(); err != nil {
			return err
		}
	}

	// What the disk has after a failed write is unknown, so the next write rewrites
	// the file.
	if err := j.append(record); err != nil {
		j.damaged = true
		return unwritable(j.path, errors.Join(err, j.takeBack()))
	}

	j.size += int64(len(record))
	j.state.apply(change)
	clear(j.raised)
	return nil
}

// append writes a record to the end of the file and syncs it.
func (j *Journal) append(record []byte) error {
	if _, err := j.file.Write(record); err != nil {
		return err
	}
	return j.file.Sync()
}

// takeBack cuts off what a failed write has left: part of a record, or a whole
// one, which the next process would take for written. The disk may have that
// even where the sync has failed, so the cut is synced.
func (j *Journal) takeBack() error {
	if err := j.file.Truncate(j.size); err != nil {
		return err
	}
	return j.file.Sync()
}

// tryRewrite rewrites the file to save space. Where that fails, the old file is
// still good and only goes on growing, unless rewrite has replaced it and set
// damaged.
func (j *Journal) tryRewrite() {
	if err := j.rewrite(); err != nil {
		j.log.Warn("the journal could not be rewritten; it goes on growing", "journal", j.path, "error", err)
	}
}

// rewrite replaces the file with the shortest one that leads to the present
// state. It writes a new file and renames it, so that a crash leaves the old
// journal or the new one.
func (j *Journal) rewrite() error {
	j.state.prune(j.now())

	text := []byte(header)
	for change := range j.state.changes() {
		record, err := encode(change)
		if err != nil {
			return cyborg.Errorf(cyborg.ErrInternal, "a journal record cannot be encoded: %w", err)
		}
		text = append(text, record...)
	}

	file, err := atomicfile.Replace(j.dir, fileName, text, 0o600)
	if file == nil {
		return unwritable(j.path, err)
	}
	// From here on the new file is the journal, or may be: the old one must not be
	// written any more.
	if j.file != nil {
		_ = j.file.Close() // the old file was replaced; nothing in it is needed
	}

	j.file, j.size, j.compactedSize, j.damaged = file, int64(len(text)), int64(len(text)), false

	// Until the directory is synced, the old file may be in its place, now or after
	// a power cut, so nothing may be written to the new one alone.
	if err != nil {
		j.damaged = true
		return unwritable(j.path, err)
	}

	return nil
}

// Exceed makes all further sequence numbers greater than the given one. It
// returns false where they were already.
func (j *Journal) Exceed(sequence int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next > sequence {
		return false
	}

	j.next = sequence + 1
	return true
}

// NextSequence returns a number that is greater than every earlier one, those
// of earlier processes included. That also holds where the journal was lost,
// unless the clock went back; Exceed covers that case. The error is of kind
// ErrUnavailable.
func (j *Journal) NextSequence() (int64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The reservation is on disk before the first of its numbers is used: a later
	// process begins behind it.
	if j.next >= j.state.sequence {
		if err := j.write(Change{Sequence: j.next + sequenceBlock}); err != nil {
			return 0, err
		}
	}

	number := j.next
	j.next++
	return number, nil
}

// Step returns what is known of a step.
func (j *Journal) Step(key StepKey) (Step, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	step, ok := j.state.steps[key]
	return step, ok
}

// Attachment returns what is known of a handle's attachment.
func (j *Journal) Attachment(key AttachmentKey) (Attachment, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	attachment, ok := j.state.attachments[key]
	return attachment, ok
}

// Attachments lists all attachments, sorted by backend and handle.
func (j *Journal) Attachments() []Attachment {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.state.attachments), func(a, b Attachment) int { return a.Key().compare(b.Key()) })
}

// Cleaning returns what is known of a clean of the handle that has not ended.
func (j *Journal) Cleaning(key AttachmentKey) (Cleaning, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	cleaning, ok := j.state.cleanings[key]
	return cleaning, ok
}

// Cleanings lists all cleans that have not ended, sorted by backend and handle.
func (j *Journal) Cleanings() []Cleaning {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.state.cleanings), byHandle)
}

// Layout returns what is known of how a device was divided.
func (j *Journal) Layout(key DeviceKey) (Layout, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	layout, ok := j.state.layouts[key]
	return layout, ok
}

// Layouts lists all layouts, sorted by backend and device.
func (j *Journal) Layouts() []Layout {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.state.layouts), byDevice)
}

// Loaded returns the image that was last loaded into a region.
func (j *Journal) Loaded(key RegionKey) (Loaded, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	loaded, ok := j.state.loaded[key]
	return loaded, ok
}

// Staged returns the image that was staged for an operation.
func (j *Journal) Staged(operation uuid.UUID) (Staged, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	staged, ok := j.state.staged[operation]
	return staged, ok
}

// Images returns the checksums of the images that may be needed again: loaded
// ones, those that undoing a step needs, and those staged since the given time.
func (j *Journal) Images(stagedSince time.Time) map[string]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state.images(stagedSince)
}

// Lost reports whether the attachment was made before the machine's last boot,
// which undid it.
func (j *Journal) Lost(attachment Attachment) bool {
	return attachment.State == Attached && !attachment.HandedOut && attachment.BootID != j.bootID
}

// unwritable is the error of a failed write, which names a full disk as such.
func unwritable(path string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left for the journal %s, so nothing is changed on this host: %w", path, err).
			WithHint("Free some space on the disk of the agent's state directory.")
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "the journal %s cannot be written, so nothing is changed on this host: %w", path, err)
}

// damagedHint tells an operator what to do about a damaged journal.
const damagedHint = "The disk, or another program, changed it. Run cyborg-agent forget-journal, which keeps a copy, and start the agent again: " +
	"it then knows nothing of attachments, and Reconcile compares the records with the hardware."
