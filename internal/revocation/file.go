package revocation

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// File is the path of a file that has, by host, through which enrollment its
// certificates were revoked. Several processes may share it. If the path is empty,
// nothing is kept.
type File string

// Read returns what the file has; nothing, where there is none. The error is of kind
// ErrInvalid for a file that cannot be read: it may have what nobody else knows.
func (f File) Read() (map[string]int64, error) {
	kept := map[string]int64{}
	if f == "" {
		return kept, nil
	}

	text, err := os.ReadFile(string(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return kept, nil
	case err == nil:
		err = json.Unmarshal(text, &kept)
	}

	if err == nil && kept == nil {
		err = errors.New("it has the value null")
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "what was revoked cannot be read from %s: %w", string(f), err).
			WithHint("Correct it: an object of JSON that has a number for each host. Without it, revoke again what was revoked since the records' last restore.")
	}
	return kept, nil
}

// Add keeps what the file does not have yet. It waits for no lock, because who holds
// one would keep the caller from the next revocation. The error is of kind
// ErrUnavailable while another process has it.
func (f File) Add(revoked map[string]int64) error {
	if f == "" {
		return nil
	}

	unlock, err := pki.TryLock(filepath.Dir(string(f)))
	if err != nil {
		return err
	}
	defer unlock()

	kept, err := f.Read()
	if err != nil {
		return err
	}

	text, err := json.MarshalIndent(union(kept, revoked), "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(string(f), append(text, '\n'), 0o600)
}
