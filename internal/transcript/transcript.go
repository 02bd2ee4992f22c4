// Package transcript collects what a test's log or a command writes, so that
// the test can read it while more is being written. Only tests may import it.
package transcript

import (
	"bytes"
	"sync"
)

// Text is the text that has been written so far. Its methods are safe for
// concurrent use; the zero value is empty.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the text; it never fails.
func (t *Text) Write(part []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(part)
}

// String returns the text that has been written so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
