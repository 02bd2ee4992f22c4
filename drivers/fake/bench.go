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

// Bench is the hand on the hardware: it reads and changes the cards of a park from outside, also while agents run.
// It works on the files of the park's directory and keeps nothing in memory, so any number may exist, in any process.
type Bench struct {
	dir string
}

// NewBench returns the bench of the park whose files are in the directory.
func NewBench(parkDir string) Bench { return Bench{dir: parkDir} }

// Card reads a card. A card that has no file is an error of kind ErrNotFound.
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

// Edit changes a card under its lock. A card that has no file is an error of kind ErrNotFound.
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

// Return puts a vanished card back: as any card that was without power, it has nothing attached.
func (b Bench) Return(ctx context.Context, identity string) error {
	return b.Edit(ctx, identity, func(card *Card) {
		if card.Vanished {
			card.eachHandle(func(h *Handle) { *h = Handle{} })
		}
		card.Vanished = false
	})
}

// Use makes somebody use a handle of the card; an empty name ends it.
func (b Bench) Use(ctx context.Context, identity, handle, by string) error {
	var found bool
	err := b.Edit(ctx, identity, func(card *Card) {
		for _, state := range card.Deployables {
			if h := state.Handles[handle]; h != nil {
				h.InUseBy, found = by, true
			}
		}
	})
	if err == nil && !found {
		err = cyborg.Errorf(cyborg.ErrNotFound, "fake card %s has no handle %q", identity, handle)
	}
	return err
}

func (b Bench) path(identity string) string { return filepath.Join(b.dir, identity+".json") }

// read returns the card and its file's text. The file of somebody who writes it in place may be met half written; it is
// read again for a second.
func (b Bench) read(ctx context.Context, identity string) (*Card, []byte, error) {
	const patience, pause = time.Second, 20 * time.Millisecond
	start := time.Now()
	for {
		text, err := os.ReadFile(b.path(identity))
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
		if !broken || time.Since(start) > patience {
			return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: %w", b.path(identity), err).
				WithHint("Correct the file, or delete it for a card as new.")
		}
		if err := pauseFor(ctx, pause); err != nil {
			return nil, nil, err
		}
	}
}

// update lets change work on the card under its lock and writes it back where that made a difference, also where
// change fails: a scripted failure is used up by failing.
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

// write replaces a card's file so that a crash at any point leaves the old one or the new one. The caller has the lock.
func (b Bench) write(identity string, text []byte) (err error) {
	defer func() {
		if err != nil {
			err = cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be written: %w", identity, err)
		}
	}()
	fresh := filepath.Join(b.dir, "."+identity+".new")
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, b.path(identity)); err != nil {
		return err
	}
	dir, err := os.Open(b.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// lock takes the card's lock from every other process and goroutine: an flock belongs to the open file, not to the
// process. It is not on the card's file itself since that is replaced.
func (b Bench) lock(ctx context.Context, identity string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(b.dir, "."+identity+".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be locked: %w", identity, err)
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing a file opened only to lock it loses nothing
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(cyborg.Errorf(cyborg.ErrUnavailable, "fake card %s cannot be locked: %w", identity, err), file.Close())
		}
		if err := pauseFor(ctx, 2*time.Millisecond); err != nil {
			_ = file.Close()
			return nil, err
		}
	}
}

// pauseFor waits, or returns the interruption.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return interruption(ctx)
	}
}

// interruption is the error of a call whose context has ended, of kind ErrCancelled or ErrTimeout; nil while it has not.
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
