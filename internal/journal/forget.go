package journal

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// Content is what an agent would no longer know without its journal.
type Content struct {
	Attachments []Attachment
	Cleanings   []Cleaning
	Layouts     []Layout
	Loaded      []Loaded
	// Unfinished are the steps that began, and neither ended nor were undone.
	Unfinished []Step
	// Assignment is the highest assignment number that was seen.
	Assignment int64
	// Damage says why the journal cannot be read, and then the rest is empty.
	Damage string
}

// Inspect reads the journal in a directory, which nobody may have open, and
// changes nothing. The error is of kind ErrNotFound if there is none.
func Inspect(dir string) (Content, error) {
	path := filepath.Join(dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Content{}, cyborg.Errorf(cyborg.ErrNotFound, "there is no journal in %s", dir)
	}
	if err != nil {
		return Content{}, cyborg.Errorf(cyborg.ErrUnavailable, "the journal %s cannot be read: %w", path, err)
	}

	j := &Journal{log: slog.New(slog.DiscardHandler), state: newState()}
	if _, err := replay(text, j.state.apply); err != nil {
		return Content{Damage: err.Error()}, nil //nolint:nilerr // it is what was asked for
	}

	content := Content{
		Attachments: j.Attachments(), Cleanings: j.Cleanings(), Layouts: j.Layouts(), Loaded: slices.SortedFunc(maps.Values(j.state.loaded), byRegion),
		Assignment: j.Assignment(),
	}
	for _, step := range j.state.stepsByTime() {
		if step.State == Started {
			content.Unfinished = append(content.Unfinished, step)
		}
	}

	return content, nil
}

// Forget moves the journal in a directory aside, which nobody may have open, and
// returns where it is then. The agent that starts next has an empty one, as if
// it had been lost: it takes no step before a conductor has told it which
// assignment numbers count. The copy is never read again.
func Forget(dir string, now time.Time) (kept string, err error) {
	path := filepath.Join(dir, fileName)
	kept = path + ".forgotten-" + now.UTC().Format("20060102T150405.000000000Z")

	// A link, unlike a rename, never replaces what was kept before.
	if err := os.Link(path, kept); err != nil {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "the journal cannot be kept aside: %w", err)
	}
	if err := errors.Join(os.Remove(path), atomicfile.SyncDir(dir)); err != nil {
		return kept, cyborg.Errorf(cyborg.ErrUnavailable, "the journal cannot be removed: %w", err)
	}

	return kept, nil
}
