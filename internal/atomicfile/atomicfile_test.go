package atomicfile_test

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/atomicfile/disktest"
)

// only requires that the file has this content and mode, and is the only one in
// its directory.
func only(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(text))

	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, mode, info.Mode())

	beside, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, beside, 1)
}

// TestWrite: a file is replaced as a whole, also after a process was killed in
// the middle.
func TestWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, atomicfile.Write(path, []byte("one, which is longer"), 0o600))
	only(t, path, "one, which is longer", 0o600)

	require.NoError(t, atomicfile.Write(path, []byte("two"), 0o666))
	only(t, path, "two", 0o666)

	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".file.new"), []byte("a process was killed here"), 0o400))
	require.NoError(t, atomicfile.Write(path, []byte("three"), 0o600))
	only(t, path, "three", 0o600)

	err := atomicfile.Write(filepath.Join(filepath.Dir(path), "nowhere", "file"), nil, 0o600)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestErrorsNameTheFile: an error names the file with its whole path, although
// what failed may be the hidden file beside it.
func TestErrorsNameTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "entry"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(path), ".file.new", "entry"), 0o700))

	err := atomicfile.Write(path, nil, 0o600)
	require.ErrorIs(t, err, syscall.ENOTEMPTY)
	require.ErrorContains(t, err, path)

	root, err := os.OpenRoot(filepath.Dir(path))
	require.NoError(t, err)
	defer root.Close()

	err = atomicfile.RemoveIn(root, filepath.Base(path))
	require.ErrorIs(t, err, syscall.ENOTEMPTY)
	require.ErrorContains(t, err, path)
	require.NoError(t, atomicfile.RemoveIn(root, "nowhere"))
}

// TestLinksAreReplaced: a link in the place of the file, or of the hidden file
// that becomes it, is replaced. What the link points to stays as it is.
func TestLinksAreReplaced(t *testing.T) {
	t.Parallel()
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("untouched"), 0o640))

	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.Symlink(victim, path))
	require.NoError(t, os.Symlink(victim, filepath.Join(filepath.Dir(path), ".file.new")))

	require.NoError(t, atomicfile.Write(path, []byte("one"), 0o600))
	only(t, path, "one", 0o600)

	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "untouched", string(text))
}

// TestReplace: the file can be written on after it has its name.
func TestReplace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	dir, err := atomicfile.OpenDir(filepath.Dir(path))
	require.NoError(t, err)
	defer dir.Close()

	file, err := atomicfile.Replace(dir, "file", []byte("one"), 0o600)
	require.NoError(t, err)
	_, err = file.Write([]byte(", two"))
	require.NoError(t, err)
	require.NoError(t, file.Close())
	only(t, path, "one, two", 0o600)
}

// TestPowerCut cuts the power at each operation of the disk while a file is
// replaced. Whatever the disk has kept of what was not synced, there is the old
// file or the new one, and the new one if Replace has returned no error.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	older, newer := strings.Repeat("older ", 500), strings.Repeat("the newer ", 500)
	old := disktest.New()
	_, err := replace(old, older)
	require.NoError(t, err)

	for cut, done := 1, false; !done; cut++ {
		for seed := range uint64(20) {
			disk := old.Killed()
			disk.CutAt(cut)
			_, err := replace(disk, newer)
			done = err == nil

			random := rand.New(rand.NewPCG(seed, 0))
			if seed == 0 {
				random = nil
			}
			after := disk.Cut(random)
			text := read(t, after)
			require.True(t, text == newer || text == older && !done, "cut at operation %d, seed %d: %.40q", cut, seed, text)
			_, err = replace(after, older)
			require.NoError(t, err, "what was cut off is in nobody's way")
		}
	}
}

// replace replaces a file of the disk. It says whether Replace has returned the
// new file.
func replace(disk *disktest.Disk, text string) (returned bool, err error) {
	dir, err := disk.OpenDir("state")
	if err != nil {
		return false, err
	}
	defer dir.Close()

	file, err := atomicfile.Replace(dir, "file", []byte(text), 0o600)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	return file != nil, err
}

// read returns the file of the disk, as processes see it.
func read(t *testing.T, disk *disktest.Disk) string {
	t.Helper()
	dir, err := disk.OpenDir("state")
	require.NoError(t, err)
	defer dir.Close()
	text, err := dir.ReadFile("file")
	require.NoError(t, err)
	return string(text)
}

// TestEachOperationMayFail: the disk answers an operation with an error,
// whether it has done it or not. Replace returns the new file if that may be in
// its place, so that its caller does not go on with the old one; and nothing
// stays open or in the way.
func TestEachOperationMayFail(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(d *disktest.Disk, operation, failures int, err error){
		"without effect": (*disktest.Disk).FailAt, "with effect": (*disktest.Disk).FailWithEffectAt,
	} {
		old := disktest.New()
		_, err := replace(old, "old")
		require.NoError(t, err)
		clean := old.Killed()
		_, err = replace(clean, "new")
		require.NoError(t, err)

		for failing := 1; failing <= clean.Operations(); failing++ {
			for failures := 1; failures <= 2; failures++ {
				disk := old.Killed()
				fail(disk, failing, failures, syscall.EIO)
				returned, err := replace(disk, "new")
				require.Zero(t, disk.Opened())
				require.ErrorIs(t, err, syscall.EIO, "%s, operation %d", name, failing)
				is := read(t, disk)
				require.True(t, is == "old" || returned, "%s, operation %d: the new file is in its place", name, failing)
				require.True(t, is == "new" || !returned || failures == 2, "%s, operation %d: the old file is in its place", name, failing)

				if _, err := replace(disk, "newer"); err != nil { // the second failure
					_, err = replace(disk, "newer")
					require.NoError(t, err)
				}
				require.Equal(t, "newer", read(t, disk.Cut(nil)))
			}
		}
	}
}

// TestInADirectory: if the new file cannot get the right owner, the old one
// stays.
func TestInADirectory(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer root.Close()

	path := filepath.Join(root.Name(), "file")
	owned := func(file *os.File) error { return file.Chown(-1, -1) }

	require.NoError(t, atomicfile.WriteIn(root, "file", []byte("one"), 0o640, owned))
	only(t, path, "one", 0o640)

	refused := errors.New("refused")
	require.ErrorIs(t, atomicfile.WriteIn(root, "file", []byte("two"), 0o640, func(*os.File) error { return refused }), refused)
	only(t, path, "one", 0o640)

	require.NoError(t, atomicfile.RemoveIn(root, "file"))
	require.NoFileExists(t, path)
	require.NoError(t, atomicfile.RemoveIn(root, "file"))
}

// TestKeep: a finished file gets its final name, and is closed.
func TestKeep(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	part, err := os.Create(path + ".part")
	require.NoError(t, err)

	_, err = part.WriteString("one")
	require.NoError(t, err)
	require.NoError(t, part.Chmod(0o600))

	require.NoError(t, atomicfile.Keep(part, path))
	only(t, path, "one", 0o600)
	require.ErrorIs(t, atomicfile.Keep(part, path), fs.ErrClosed)
}
