package fake

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Bench reads and changes the cards of a park from outside the driver, also
// while agents run. It stands for the person who pulls a card out or starts a
// program that uses one. It works on the files in the park's directory and
// keeps nothing in memory, so any number of benches may exist in any process.
//
// It opens each file through os.Root, and its files are for their owner alone:
// agents run as root, and a link that somebody has planted in the directory
// must not lead them out of it.
type Bench struct {
	dir string
}

// NewBench returns the bench for the park whose files are in the directory.
func NewBench(parkDir string) Bench { return Bench{dir: parkDir} }

// Card reads a card. The error is of kind ErrNotFound where the card has no
// file, and of kind ErrInvalid where the identity is not a PCI address: the
// identity becomes part of a path.
func (b Bench) Card(ctx context.Context, identity string) (Card, error) {
	if _, err := cyborg.ParsePCIAddress(identity); err != nil {
		return Card{}, err
	}

	card, _, err := b.read(ctx, identity)
	if err != nil {
		return Card{}, err
	}

	return *card, nil
}

// Edit changes a card under its lock. The error is of kind ErrNotFound where
// the card has no file.
func (b Bench) Edit(ctx context.Context, identity string, edit func(card *Card)) error {
	if _, err := cyborg.ParsePCIAddress(identity); err != nil {
		return err
	}

	return b.update(ctx, identity, false, func(card *Card) error {
		edit(card)
		return nil
	})
}

// Vanish takes a card off the bus, as a surprise removal does.
func (b Bench) Vanish(ctx context.Context, identity string) error {
	return b.Edit(ctx, identity, func(card *Card) { card.Vanished = true })
}

// Return puts a vanished card back. As the card was without power, it is whole, nothing
// is attached to it and nobody uses it.
func (b Bench) Return(ctx context.Context, identity string) error {
	return b.Edit(ctx, identity, func(card *Card) {
		if card.Vanished {
			card.losePower()
		}
		card.Vanished = false
	})
}

// Exchange puts another card into the place of one, where it has the same identity:
// one with this serial number, and of this model, which is a PCI product id. Where
// one of them is empty, it is that of the park's card.
func (b Bench) Exchange(ctx context.Context, identity, product, serial string) error {
	if err := checkProduct(product); err != nil {
		return err
	}
	return b.Edit(ctx, identity, func(card *Card) { card.exchange(product, serial) })
}

// Divide divides a card that can be divided, as somebody with another tool does. The
// error is of kind ErrInvalid where its parts do not fit together.
func (b Bench) Divide(ctx context.Context, identity string, layout cyborg.Layout) error {
	if err := checkLayout(layout); err != nil {
		return err
	}
	next := layout.Normal()
	if len(next) == 0 {
		next = nil
	}
	return b.Edit(ctx, identity, func(card *Card) { card.divide(next, next, false) })
}

// Use lets somebody use a handle of the card; an empty name ends the use. The
// error is of kind ErrNotFound where the card has no such handle.
func (b Bench) Use(ctx context.Context, identity, handle, by string) error {
	return b.editHandle(ctx, identity, handle, func(_ *Card, h *Handle) { h.InUseBy = by })
}

// Leave has somebody leave something on a handle, in registers and stored, as whoever
// has it without the driver's doing does. A name like that of cyborg.Holder.String tells
// the tripwire whose it is. The error is of kind ErrNotFound where the card has no such
// handle.
func (b Bench) Leave(ctx context.Context, identity, handle, by string) error {
	return b.editHandle(ctx, identity, handle, func(_ *Card, h *Handle) { h.leave(by) })
}

// editHandle changes a handle under its card's lock. The error is of kind
// ErrNotFound where the card has no such handle.
func (b Bench) editHandle(ctx context.Context, identity, handle string, edit func(card *Card, h *Handle)) error {
	var found bool
	err := b.Edit(ctx, identity, func(card *Card) {
		for _, state := range card.Deployables {
			if h := state.Handles[handle]; h != nil {
				edit(card, h)
				found = true
			}
		}
	})
	if err == nil && !found {
		err = cyborg.Errorf(cyborg.ErrNotFound, "fake card %s has no handle %q", identity, handle)
	}
	return err
}

// fileOf returns the name of the card's file in the park's directory.
func fileOf(identity string) string { return identity + ".json" }

// path returns the path of the card's file, for messages.
func (b Bench) path(identity string) string { return filepath.Join(b.dir, fileOf(identity)) }

// stats returns the stat of each card's file. It is nil where the file cannot
// be read.
func (b Bench) stats(slots []*slot) []fs.FileInfo {
	stats := make([]fs.FileInfo, len(slots))
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return stats
	}
	defer root.Close()

	for i, s := range slots {
		if info, err := root.Stat(fileOf(s.identity())); err == nil {
			stats[i] = info
		}
	}
	return stats
}

// text returns the content of the card's file.
func (b Bench) text(identity string) ([]byte, error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	return root.ReadFile(fileOf(identity))
}

// read returns the card and the text of its file. A person may edit the file in
// place, so read may find it half written. It then tries again for one second
// before it returns an error.
func (b Bench) read(ctx context.Context, identity string) (*Card, []byte, error) {
	const retryFor, retryEvery = time.Second, 20 * time.Millisecond
	start := time.Now()

	for {
		text, err := b.text(identity)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil, cyborg.Errorf(cyborg.ErrNotFound, "there is no fake card %s in %s", identity, b.dir)
		case err != nil:
			return nil, nil, cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be read: %w", identity, err)
		}

		card, broken, err := readCard(text)
		if err == nil {
			return card, text, nil
		}

		if !broken || time.Since(start) > retryFor {
			return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: %w", b.path(identity), err).
				WithHint("Correct the file, or delete it for a card as new.")
		}

		if err := sleep(ctx, retryEvery); err != nil {
			return nil, nil, err
		}
	}
}

// update calls change with the card, under the card's lock, and writes the card
// back if it was changed. It writes also where change fails, because a scripted
// failure is used up by that failure. With create, a card without a file starts
// as a new card.
func (b Bench) update(ctx context.Context, identity string, create bool, change func(card *Card) error) error {
	unlock, err := b.lock(ctx, identity)
	if err != nil {
		return err
	}
	defer unlock()

	card, before, err := b.read(ctx, identity)
	if create && cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		card, err = newCard(), nil
	}

	if err != nil {
		return err
	}

	changeErr := change(card)
	after, err := card.text()
	if err == nil && !bytes.Equal(before, after) {
		err = b.write(identity, after)
	}

	if err != nil {
		return err
	}
	return changeErr
}

// write replaces the file of a card in such a way that a crash at any point
// leaves either the old file or the new one: it writes and syncs a second file,
// renames it, and syncs the directory. The caller holds the card's lock.
func (b Bench) write(identity string, text []byte) (err error) {
	defer func() {
		if err != nil {
			err = cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be written: %w", identity, err)
		}
	}()

	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return err
	}
	defer root.Close()

	// What a write that was killed has left goes first, so that nobody else's file
	// is ever written into.
	fresh := "." + identity + ".new"
	if err := root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	file, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}

	if err := root.Rename(fresh, fileOf(identity)); err != nil {
		return err
	}

	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// lock takes the card's lock, which excludes other processes and other
// goroutines alike: an flock belongs to the open file, not to the process. The
// lock is on a file of its own, because the card's file is replaced by each
// write. It polls instead of blocking in flock(2), so that it returns when ctx
// ends.
func (b Bench) lock(ctx context.Context, identity string) (unlock func(), err error) {
	root, err := os.OpenRoot(b.dir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be locked: %w", identity, err)
	}
	defer root.Close()

	file, err := root.OpenFile("."+identity+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be locked: %w", identity, err)
	}

	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing the file releases the lock; nothing was written that could be lost
		}

		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be locked: %w", identity, err), file.Close())
		}

		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
}

// sleep waits for that long, or returns the error of interruption when ctx ends
// first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return interruption(ctx)
	}
}

// interruption returns an error of kind ErrCancelled or ErrTimeout where ctx
// has ended, and nil where it has not.
func interruption(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return cyborg.Errorf(cyborg.ErrTimeout, "the fake card was not done in time: %w", err)
	default:
		return cyborg.Errorf(cyborg.ErrCancelled, "the call was cancelled: %w", err)
	}
}
