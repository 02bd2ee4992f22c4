package harness

import (
	"errors"
	"os"
	"path/filepath"
)

// replaceFile gives a file new content in one step, so that a reader gets
// either the old text or the new one, and never a part. Several callers may
// replace the same file at once, because each writes a temporary file of its
// own before the rename.
func replaceFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	fresh, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}

	_, err = fresh.WriteString(text)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(fresh.Name()))
	}
	return nil
}
