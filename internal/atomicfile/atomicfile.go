// Package atomicfile replaces files so that a crash, of the process or of the
// machine, leaves the old file or the new one, and never a part of either. The
// new content is written next to the file under a hidden name and synced, then
// it gets the file's name, and the directory is synced. It imports only the
// standard library.
//
// Two callers must not replace the same file at once: the hidden name is fixed,
// so that what a killed process left there is removed by the next one.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. It gets exactly that mode, whatever the
// umask is. The change is durable when Write returns nil. After an error the
// old file is still there, unless the error was that of the rename, of the sync
// of the directory or of the close of the new file. The error names the file with its whole path, or the
// directory if that cannot be opened.
func Write(path string, content []byte, mode fs.FileMode) error {
	dir, err := OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // what was changed in it is durable, or its error is returned

	return closed(Replace(dir, filepath.Base(path), content, mode))
}

// WriteIn is Write for a file in an open directory. Own is called with the new
// file before it is synced, and may change its owner.
func WriteIn(root *os.Root, name string, content []byte, mode fs.FileMode, own func(*os.File) error) error {
	return closed(replace(osDir{root}, name, content, mode, func(file File) error {
		return own(file.(*os.File)) //nolint:forcetypeassert // an osDir opens nothing else
	}))
}

// closed closes the file, where there is one.
func closed(file File, err error) error {
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	return err
}

// Replace is Write for a file in an open directory, for a caller that goes on
// appending to the new file, and closes it. Replace returns the file together
// with an error if it is in its place, or may be, and a power cut may bring the
// old one back: the directory could not be synced; or the rename answered with
// an error, and the hidden file is not there any more.
func Replace(dir Dir, name string, content []byte, mode fs.FileMode) (File, error) {
	return replace(dir, name, content, mode, func(File) error { return nil })
}

// replace returns the new file, open for appending, as soon as it may have its
// name.
func replace(dir Dir, name string, content []byte, mode fs.FileMode, own func(File) error) (File, error) {
	file, err := put(dir, name, content, mode, own)
	if err == nil {
		err = dir.Sync()
	}

	return file, withPath(dir, "replace", name, err)
}

// withPath returns the error with the whole path of the file. Errors of an open
// directory name only what is in it, and often the hidden name.
func withPath(dir Dir, op, name string, err error) error {
	if err == nil {
		return nil
	}

	return &fs.PathError{Op: op, Path: filepath.Join(dir.Name(), name), Err: err}
}

// HiddenName is the name that the new content has until the file gets it. A
// process that is killed leaves it behind, until the file is replaced again.
func HiddenName(name string) string { return "." + name + ".new" }

// put writes the content to the hidden file, syncs it, and gives it its name.
// The directory is not synced yet.
func put(dir Dir, name string, content []byte, mode fs.FileMode, own func(File) error) (File, error) {
	fresh := HiddenName(name)
	if err := dir.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	// O_EXCL follows no link that somebody may have put there since.
	file, err := dir.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, mode)
	if err != nil {
		return nil, err
	}

	_, err = file.Write(content)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = own(file)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), dir.Remove(fresh))
	}

	// A rename that answers with an error may have been done, such as over a
	// network. Only if the hidden file could be removed it was not.
	if err := dir.Rename(fresh, name); err != nil {
		removed := dir.Remove(fresh)
		if removed == nil {
			return nil, errors.Join(err, file.Close())
		}
		if !errors.Is(removed, fs.ErrNotExist) {
			err = errors.Join(err, removed)
		}
		return file, err
	}

	return file, nil
}

// Keep closes a complete file and gives it its final path in the same
// directory. The change is durable when Keep returns nil. After an error the
// file may still have its old name.
func Keep(file *os.File, path string) error {
	err := file.Sync()
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return err
	}

	return SyncDir(filepath.Dir(path))
}

// RemoveIn removes a file from an open directory. The change is durable when
// RemoveIn returns nil; a file that is not there is no error.
func RemoveIn(root *os.Root, name string) error {
	dir := osDir{root}
	err := dir.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = dir.Sync()
	}

	return withPath(dir, "remove", name, err)
}

// SyncDir makes durable what was renamed, made or removed in a directory.
func SyncDir(path string) error {
	dir, err := OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
