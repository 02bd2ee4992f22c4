// Package transcript keeps what a test's log says, or a command prints, where the test can read it while more is written.
// Only tests may import it.
package transcript

import (
	"bytes"
	"sync"
)

// Text is what has been written so far. Its methods may be called at once; the zero value is empty.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to the text; it never fails.
func (t *Text) Write(part []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(part)
}

// String is the text.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
