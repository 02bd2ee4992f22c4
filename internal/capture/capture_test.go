package capture_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// item is an entry of an archive made for a test.
type item struct {
	kind       byte
	name, text string // text: the content, or where a link leads
}

// archive writes a .tar.gz and returns its path.
func archive(tb testing.TB, items ...item) string {
	tb.Helper()

	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	writer := tar.NewWriter(compressed)

	for _, i := range items {
		header := &tar.Header{Typeflag: i.kind, Name: i.name, Mode: 0o777}
		switch i.kind {
		case tar.TypeReg:
			header.Size = int64(len(i.text))
		default:
			header.Linkname = i.text
		}
		require.NoError(tb, writer.WriteHeader(header))

		if i.kind == tar.TypeReg {
			_, err := io.WriteString(writer, i.text)
			require.NoError(tb, err)
		}
	}

	require.NoError(tb, writer.Close())
	require.NoError(tb, compressed.Close())

	name := filepath.Join(tb.TempDir(), "machine.tar.gz")
	require.NoError(tb, os.WriteFile(name, packed.Bytes(), 0o600))
	return name
}

// vendor is the vendor file of a PCI function. An archive with it has the
// directory sys, as a recording must.
func vendor(text string) item {
	return item{tar.TypeReg, "sys/devices/pci0000:00/0000:00:02.0/vendor", text}
}

func TestOpenUnpacks(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "machine")
	root, err := capture.Open(archive(t,
		item{tar.TypeDir, "./sys/", ""}, vendor("0x10de\n"),
		item{tar.TypeSymlink, "sys/bus/pci/devices/0000:00:02.0", "../../../devices/pci0000:00/0000:00:02.0"},
	), dir)
	require.NoError(t, err)
	require.Equal(t, dir, root)

	text, err := os.ReadFile(filepath.Join(root, "sys/bus/pci/devices/0000:00:02.0/vendor"))
	require.NoError(t, err)
	require.Equal(t, "0x10de\n", string(text))
}

// TestOpenReusesWhatItUnpacked: an agent that restarts must not unpack the same
// archive again, but must notice another one.
func TestOpenReusesWhatItUnpacked(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "machine")
	first, second := archive(t, vendor("0x10de\n")), archive(t, vendor("0x8086\n"))
	mark := filepath.Join(dir, "mark")

	_, err := capture.Open(first, dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(mark, nil, 0o600))
	_, err = capture.Open(first, dir)
	require.NoError(t, err)
	require.FileExists(t, mark, "the same archive is not unpacked again")

	_, err = capture.Open(second, dir)
	require.NoError(t, err)
	require.NoFileExists(t, mark, "another archive replaces all of it")
	text, err := os.ReadFile(filepath.Join(dir, "sys/devices/pci0000:00/0000:00:02.0/vendor"))
	require.NoError(t, err)
	require.Equal(t, "0x8086\n", string(text))
}

// TestOpenKeepsWhatItCannotReplace: an archive has a directory where the stamp of
// its recording belongs, so that it cannot be completed. What was unpacked before
// stays.
func TestOpenKeepsWhatItCannotReplace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "machine")
	first := archive(t, vendor("0x10de\n"))
	_, err := capture.Open(first, dir)
	require.NoError(t, err)

	_, err = capture.Open(archive(t, vendor("0x8086\n"), item{tar.TypeDir, ".cyborg-capture/", ""}), dir)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)

	_, err = capture.Open(first, dir)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "sys/devices/pci0000:00/0000:00:02.0/vendor"))
	require.NoError(t, err)
	require.Equal(t, "0x10de\n", string(text))
}

// TestOpenTakesDirectories: a recording may also be a directory, which is used
// where it is.
func TestOpenTakesDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := capture.Open(dir, t.TempDir())
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "an empty directory is no recording")

	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sys/devices"), 0o755))
	root, err := capture.Open(dir, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, dir, root)
}

// TestOpenRefuses: an archive that is no recording, or would write outside its
// directory, leaves nothing behind.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	occupied := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(occupied, "important"), nil, 0o600))
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no archive"), 0o600))
	fresh := func() string { return filepath.Join(t.TempDir(), "machine") }
	deep := strings.Repeat("d/", 70)

	for name, c := range map[string]struct {
		archive, dir string
		kind         cyborg.ErrorKind
		message      string
	}{
		"nothing there":      {"/nonexistent.tar.gz", fresh(), cyborg.ErrNotFound, "/nonexistent.tar.gz"},
		"no archive":         {text, fresh(), cyborg.ErrInvalid, "no .tar.gz"},
		"no tree":            {archive(t, item{tar.TypeReg, "etc/passwd", ""}), fresh(), cyborg.ErrInvalid, "no directory sys"},
		"occupied directory": {archive(t, vendor("")), occupied, cyborg.ErrInvalid, "holds something else"},
		"entry above":        {archive(t, vendor(""), item{tar.TypeReg, "../x", ""}), fresh(), cyborg.ErrInvalid, `"../x"`},
		"entry far above":    {archive(t, vendor(""), item{tar.TypeReg, "sys/../../x", ""}), fresh(), cyborg.ErrInvalid, `"sys/../../x"`},
		"absolute entry":     {archive(t, vendor(""), item{tar.TypeReg, "/x", ""}), fresh(), cyborg.ErrInvalid, `"/x"`},
		"deep entry":         {archive(t, vendor(""), item{tar.TypeReg, deep + "x", ""}), fresh(), cyborg.ErrInvalid, "d/d/d"},
		"large file":         {archive(t, vendor(strings.Repeat("\x00", 5<<20))), fresh(), cyborg.ErrTooLarge, "vendor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := capture.Open(c.archive, c.dir)
			require.Equal(t, c.kind, cyborg.ErrorKindOf(err), err)
			require.ErrorContains(t, err, c.message)
			require.NoDirExists(t, c.dir+".partial", "nothing half done stays")
		})
	}
	require.FileExists(t, filepath.Join(occupied, "important"))
}

// TestOpenBoundsWhatItUnpacks: a small archive could unpack to any size, so
// there is a limit.
func TestOpenBoundsWhatItUnpacks(t *testing.T) {
	t.Parallel()
	// The entry is of a kind that is not unpacked, because what is skipped must
	// count as well. Gzip allows the zeros to be packed once and appended often.
	const piece, pieces = 4 << 20, 40
	pack := func(write func(io.Writer)) []byte {
		var packed bytes.Buffer
		compressed := gzip.NewWriter(&packed)
		write(compressed)
		require.NoError(t, compressed.Close())
		return packed.Bytes()
	}
	bomb := pack(func(to io.Writer) {
		writer := tar.NewWriter(to)
		require.NoError(t, writer.WriteHeader(&tar.Header{Typeflag: 'Z', Name: "sys/zeros", Size: piece * pieces}))
	})
	zeros := pack(func(to io.Writer) {
		_, err := to.Write(make([]byte, piece))
		require.NoError(t, err)
	})
	bomb = append(bomb, bytes.Repeat(zeros, pieces)...)
	require.Less(t, len(bomb), 1<<20)

	name := filepath.Join(t.TempDir(), "bomb.tar.gz")
	require.NoError(t, os.WriteFile(name, bomb, 0o600))

	_, err := capture.Open(name, filepath.Join(t.TempDir(), "machine"))
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), err)
}

// TestOpenSkipsLinksOutside: links and special files of another machine must
// not lead into this one.
func TestOpenSkipsLinksOutside(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	root, err := capture.Open(archive(t, vendor(""),
		item{tar.TypeSymlink, "sys/absolute", outside},
		item{tar.TypeSymlink, "sys/above", "../../outside"},
		item{tar.TypeSymlink, "sys/inside", "devices"},
		item{tar.TypeLink, "sys/hard", "/etc/passwd"},
		item{tar.TypeChar, "sys/null", ""}, item{tar.TypeFifo, "sys/pipe", ""},
		// Each of these links stays inside, judged by its text alone, but the chain
		// leads outside.
		item{tar.TypeSymlink, "sys/a", "devices/b"},
		item{tar.TypeSymlink, "sys/devices/b", "../.."},
		item{tar.TypeSymlink, "sys/devices/c", "b/../.."},
	), filepath.Join(t.TempDir(), "machine"))
	require.NoError(t, err)

	for _, name := range []string{"absolute", "above", "hard", "null", "pipe"} {
		_, err := os.Lstat(filepath.Join(root, "sys", name))
		require.ErrorIs(t, err, fs.ErrNotExist, name)
	}

	_, err = os.Stat(filepath.Join(root, "sys/inside"))
	require.NoError(t, err)
}

// TestOpenCannotWriteThroughLinks: links of the archive itself must not lead a
// later entry outside.
func TestOpenCannotWriteThroughLinks(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "machine")

	_, err := capture.Open(archive(t, vendor(""),
		item{tar.TypeSymlink, "sys/deep/er/up", "../../.."}, // leads to the root itself
		item{tar.TypeSymlink, "sys/out", "deep/er/up/.."},   // looks like sys/deep/er, but is above the root
		item{tar.TypeReg, "sys/out/stolen", "x"},
	), dir)
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(parent, "stolen"))
}

// TestOpenReadsEachSnapshotOfGHW: the recordings of real machines that the
// tests have can all be opened.
func TestOpenReadsEachSnapshotOfGHW(t *testing.T) {
	t.Parallel()
	for _, name := range sysfstest.Recordings(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			root, err := capture.Open(name, filepath.Join(t.TempDir(), "machine"))
			require.NoError(t, err)
			require.DirExists(t, filepath.Join(root, "sys"))
		})
	}
}

// FuzzOpen looks for an archive that makes Open panic, or write or link outside
// its directory.
func FuzzOpen(f *testing.F) {
	for _, items := range [][]item{
		{vendor("0x10de\n")},
		{vendor(""), {tar.TypeReg, "../x", ""}},
		{vendor(""), {tar.TypeSymlink, "sys/up", "../.."}, {tar.TypeReg, "sys/up/x", ""}},
		{{tar.TypeDir, "sys", ""}, {tar.TypeSymlink, "sys", "elsewhere"}},
	} {
		packed, err := os.ReadFile(archive(f, items...))
		require.NoError(f, err)
		f.Add(packed)
	}

	f.Fuzz(func(t *testing.T, packed []byte) {
		parent := t.TempDir()
		name := filepath.Join(t.TempDir(), "machine.tar.gz")
		require.NoError(t, os.WriteFile(name, packed, 0o600))

		root, err := capture.Open(name, filepath.Join(parent, "machine"))
		entries, readErr := os.ReadDir(parent)
		require.NoError(t, readErr)

		if err != nil {
			require.Empty(t, entries)
			return
		}

		require.Len(t, entries, 1)
		require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type()&fs.ModeSymlink != 0 {
				target, err := os.Readlink(name)
				require.NoError(t, err)
				require.False(t, filepath.IsAbs(target))
			}
			return err
		}))
	})
}

// FuzzUnpack does the same as FuzzOpen with archives that are valid gzip: with
// arbitrary tar, and with entries of arbitrary names and links to anywhere.
func FuzzUnpack(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "sys/../../x", "sys/up/x", "./sys//x", "sys", "sys/devices/pci0000:00", ".cyborg-capture", strings.Repeat("a/", 70)+"x") {
		f.Add(text, text, []byte(nil))
		f.Add("sys/up", text, []byte(nil))
		f.Add("sys/up", "../..", []byte(text))
	}

	f.Fuzz(func(t *testing.T, name, target string, plain []byte) {
		var packed bytes.Buffer
		compressed := gzip.NewWriter(&packed)

		if plain != nil {
			_, err := compressed.Write(plain)
			require.NoError(t, err)
		} else {
			writer := tar.NewWriter(compressed)
			for _, header := range []*tar.Header{
				{Typeflag: tar.TypeReg, Name: "sys/vendor"},
				{Typeflag: tar.TypeSymlink, Name: name, Linkname: target},
				{Typeflag: tar.TypeLink, Name: name + "/hard", Linkname: target},
				{Typeflag: tar.TypeFifo, Name: name + "/pipe"},
				{Typeflag: tar.TypeReg, Name: name + "/x"},
				{Typeflag: tar.TypeDir, Name: name + "/y"},
			} {
				if writer.WriteHeader(header) != nil {
					return // tar cannot hold such a name
				}
			}
			require.NoError(t, writer.Close())
		}

		require.NoError(t, compressed.Close())

		parent := t.TempDir()
		archive := filepath.Join(t.TempDir(), "machine.tar.gz")
		require.NoError(t, os.WriteFile(archive, packed.Bytes(), 0o600))

		root, err := capture.Open(archive, filepath.Join(parent, "machine"))
		entries, readErr := os.ReadDir(parent)
		require.NoError(t, readErr)

		if err != nil {
			require.Contains(t, []cyborg.ErrorKind{cyborg.ErrInvalid, cyborg.ErrTooLarge}, cyborg.ErrorKindOf(err), "%v", err)
			require.Empty(t, entries)
			return
		}

		require.Len(t, entries, 1)

		inside, err := os.OpenRoot(root)
		require.NoError(t, err)
		defer inside.Close()

		require.NoError(t, fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type()&fs.ModeSymlink != 0 {
				_, err := inside.Stat(path)
				require.NotErrorIs(t, err, os.ErrPermission)
				require.False(t, err != nil && strings.Contains(err.Error(), "escapes"), "%s: %v", path, err)
				return nil
			}

			require.True(t, entry.IsDir() || entry.Type().IsRegular(), "%s is %s", path, entry.Type())
			return err
		}))
	})
}

// TestSparseFilesAreCounted: an archive of sparse files is small even when it
// is decompressed. What it unpacks to must be bounded all the same.
func TestSparseFilesAreCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sys"), 0o755))

	for i := range 40 {
		file := filepath.Join(dir, "sys", strconv.Itoa(i))
		require.NoError(t, os.WriteFile(file, []byte("0x10de"), 0o600))
		require.NoError(t, os.Truncate(file, 4<<20))
	}

	name := filepath.Join(t.TempDir(), "machine.tar.gz")
	text, err := exec.Command("tar", "--sparse", "--format=pax", "-C", dir, "-czf", name, "sys").CombinedOutput()
	require.NoError(t, err, "%s", text)

	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(1<<20))

	_, err = capture.Open(name, filepath.Join(t.TempDir(), "machine"))
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), "%v", err)
}
