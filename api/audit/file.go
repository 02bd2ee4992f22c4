package audit

import (
	"context"
	"encoding/json"
	"os"

	"github.com/cyborg-project/cyborg"
)

// write appends a line to the file. If another file has taken its place, as log
// rotation does, the new file is opened first.
func (t *Trail) write(event Event) error {
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	if t.replaced() {
		if err := t.open(); err != nil {
			return err
		}
	}

	_, err = t.file.Write(append(line, '\n'))
	return err
}

// replaced reports whether the open file is not the one at the path. The caller
// holds mu.
func (t *Trail) replaced() bool {
	if t.file == nil {
		return true
	}

	there, err := os.Stat(t.path)
	if err != nil {
		return true
	}

	ours, err := t.file.Stat()
	return err != nil || !os.SameFile(there, ours)
}

// open opens the file, and closes the previous one. The caller holds mu.
func (t *Trail) open() error {
	if t.file != nil {
		t.file.Close()
		t.file = nil
	}

	file, err := os.OpenFile(t.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "audit.file: %w", err)
	}

	t.file = file
	return nil
}

// Close writes what is still counted, and closes the file if there is one.
func (t *Trail) Close() error {
	t.writeLines(context.Background(), t.unknown.end())

	t.mu.Lock()
	defer t.mu.Unlock()

	if t.file == nil {
		return nil
	}

	return t.file.Close()
}

// short makes a text of the request fit for the trail: printable, and not too
// long.
func short(text string) string { return cyborg.Sanitize(text, longestField) }
