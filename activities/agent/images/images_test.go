package images_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
)

const childEnv = "IMAGES_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(childFillsDisk(os.Args[1]))
	}
	os.Exit(m.Run())
}

// conductor is a source of one image. It may break off in the middle, and it
// may be unable to resume there.
type conductor struct {
	mu      sync.Mutex
	image   []byte
	breakAt int // the offset at which it breaks off; 0 for never
	noRange bool
	noSize  bool
	err     error
	deaf    error // the error of GiveBack
	offsets []int64
	paths   []string
	back    []string
}

func (c *conductor) Image(_ context.Context, path string, offset int64) (images.Download, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paths = append(c.paths, path)
	c.offsets = append(c.offsets, offset)

	if c.err != nil {
		return images.Download{}, c.err
	}
	if c.noRange {
		offset = 0
	}

	var body io.Reader = bytes.NewReader(c.image[offset:])
	if c.breakAt > 0 {
		body = io.MultiReader(bytes.NewReader(c.image[offset:c.breakAt]), broken{})
	}

	size := int64(len(c.image))
	if c.noSize {
		size = -1
	}
	return images.Download{ReadCloser: io.NopCloser(body), Offset: offset, Size: size}, nil
}

func (c *conductor) GiveBack(_ context.Context, path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.back = append(c.back, path)
	return c.deaf
}

// broken is the end of a body whose connection breaks.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

// rig is a store of images with its directories and its source.
type rig struct {
	*images.Store
	dir, imageDir string
	source        *conductor
	needed        map[string]bool
}

// newRig opens a store on new directories.
func newRig(t testing.TB, maxBytes, cacheBytes int64) *rig {
	t.Helper()
	r := &rig{dir: filepath.Join(t.TempDir(), "cache"), imageDir: t.TempDir(), source: &conductor{}, needed: map[string]bool{}}
	r.open(t, maxBytes, cacheBytes)
	return r
}

// open opens the store on the rig's directories, as a new process does.
func (r *rig) open(t testing.TB, maxBytes, cacheBytes int64) {
	t.Helper()
	var err error
	r.Store, err = images.Open(images.Config{
		Dir: r.dir, ImageDir: r.imageDir, MaxBytes: maxBytes, CacheBytes: cacheBytes, Source: r.source,
		Needed: func() map[string]bool { return r.needed },
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
}

// stage stages an image, and downloads it from the same path each time.
func (r *rig) stage(t *testing.T, image cyborg.Image) (images.Image, error) {
	t.Helper()
	return r.Stage(t.Context(), images.Request{Image: image, Fetch: "/image"}, func(done, all int64) {
		require.LessOrEqual(t, done, max(all, done))
	})
}

// there returns the names of the files in the cache.
func (r *rig) there(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(r.dir)
	require.NoError(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// local puts a file into the image directory.
func (r *rig) local(t *testing.T, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(r.imageDir, name), content, 0o644))
}

// sum returns the SHA-256 of a content.
func sum(content []byte) string {
	s := sha256.Sum256(content)
	return hex.EncodeToString(s[:])
}

// content returns n bytes that depend on the seed.
func content(n int, seed byte) []byte { return bytes.Repeat([]byte{seed, seed + 1, 7}, n/3+1)[:n] }

// A local image is found by any path below the image directory. Once it is in
// the cache, a change of the local file does not matter to those who name its
// checksum.
func TestLocalImages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 1<<20)
	image := content(500, 'a')
	require.NoError(t, os.Mkdir(filepath.Join(r.imageDir, "sub"), 0o755))
	r.local(t, "sub/x.bin", image)

	for _, source := range []string{"sub/x.bin", "file:sub/x.bin", "file:./sub/../sub/x.bin"} {
		staged, err := r.stage(t, cyborg.Image{Source: source})
		require.NoError(t, err, source)
		require.Equal(t, sum(image), staged.SHA256)
		require.Equal(t, int64(500), staged.Size)
		got, err := os.ReadFile(staged.Path)
		require.NoError(t, err)
		require.Equal(t, image, got)
	}

	r.local(t, "sub/x.bin", content(500, 'b'))
	staged, err := r.stage(t, cyborg.Image{Source: "sub/x.bin", SHA256: strings.ToUpper(sum(image))})
	require.NoError(t, err, "it has that one already")
	require.Equal(t, sum(image), staged.SHA256)
	_, err = r.Get(t.Context(), sum(image))
	require.NoError(t, err)
}

// Images outside of the image directory, images that are too large, and images
// without the expected checksum are refused and leave nothing behind.
func TestInvalidImagesAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 1<<20)
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(r.imageDir, "link")))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(r.imageDir, "dirlink")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(r.imageDir, "pipe"), 0o600))
	r.local(t, "big", content(1001, 'a'))
	r.local(t, "fits", content(1000, 'a'))
	r.source.image = content(1001, 'z')

	for _, test := range []struct {
		image cyborg.Image
		kind  cyborg.ErrorKind
		text  string
	}{
		{cyborg.Image{Source: "../secret"}, cyborg.ErrInvalid, "cannot be opened below"},
		{cyborg.Image{Source: "file:" + outside}, cyborg.ErrInvalid, "cannot be opened below"},
		{cyborg.Image{Source: outside}, cyborg.ErrInvalid, "cannot be opened below"},
		{cyborg.Image{Source: "link"}, cyborg.ErrInvalid, "cannot be opened below"},
		{cyborg.Image{Source: "dirlink/secret"}, cyborg.ErrInvalid, "cannot be opened below"},
		{cyborg.Image{Source: "pipe"}, cyborg.ErrInvalid, "not a regular file"},
		{cyborg.Image{Source: "."}, cyborg.ErrInvalid, "not a regular file"},
		{cyborg.Image{Source: ""}, cyborg.ErrInvalid, "not a regular file"},
		{cyborg.Image{Source: "nothing"}, cyborg.ErrNotFound, `no image "nothing"`},
		{cyborg.Image{Source: "big"}, cyborg.ErrTooLarge, "larger than the 1000 bytes"},
		{cyborg.Image{Source: "fits", SHA256: sum([]byte("x"))}, cyborg.ErrImageRejected, "has the SHA-256 " + sum(content(1000, 'a'))},
		{cyborg.Image{Source: "fits", SHA256: "abc"}, cyborg.ErrInvalid, "is not a SHA-256"},
		{cyborg.Image{Source: "fits", SHA256: "../" + sum(nil)[3:]}, cyborg.ErrInvalid, "is not a SHA-256"},
		{cyborg.Image{Source: "https://x/y"}, cyborg.ErrInvalid, "its SHA-256 must be given"},
		{cyborg.Image{Source: "glance://y"}, cyborg.ErrInvalid, "its SHA-256 must be given"},
		{cyborg.Image{Source: "https://x/y", SHA256: sum(r.source.image)}, cyborg.ErrTooLarge, "larger than the 1000 bytes"},
	} {
		_, err := r.stage(t, test.image)
		require.Equal(t, test.kind, cyborg.ErrorKindOf(err), "%s: %v", test.image.Source, err)
		require.ErrorContains(t, err, test.text)
		require.Empty(t, r.there(t), "nothing is left of it")
	}

	r.source.noSize = true
	_, err := r.stage(t, cyborg.Image{Source: "https://x/y", SHA256: sum(r.source.image)})
	require.Equal(t, cyborg.ErrTooLarge, cyborg.ErrorKindOf(err), "also where the size is unknown")
	require.Empty(t, r.there(t))

	r.imageDir = filepath.Join(r.imageDir, "missing")
	r.open(t, 1000, 1000)
	_, err = r.stage(t, cyborg.Image{Source: "fits"})
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "a retry would not help")
	require.ErrorContains(t, err, "missing does not exist")

	r.imageDir = ""
	r.open(t, 1000, 1000)
	_, err = r.stage(t, cyborg.Image{Source: "fits"})
	require.ErrorContains(t, err, "has no image directory")
}

// A download that breaks off goes on where it stopped, also in a later process.
func TestRemoteImages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	r.source.image = content(300_000, 'q')
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(r.source.image)}

	r.source.breakAt = 100_000
	_, err := r.stage(t, image)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	r.source.breakAt = 200_000
	r.open(t, 1<<20, 1<<20) // a later process goes on
	_, err = r.stage(t, image)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	r.source.breakAt = 0
	staged, err := r.stage(t, image)
	require.NoError(t, err)
	require.Equal(t, int64(300_000), staged.Size)
	require.Equal(t, []int64{0, 100_000, 200_000}, r.source.offsets)
	require.Equal(t, []string{image.SHA256}, r.there(t))

	got, err := os.ReadFile(staged.Path)
	require.NoError(t, err)
	require.Equal(t, r.source.image, got)
}

func TestDownloadRestartsWithoutRangeSupport(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	r.source.image = content(3000, 'q')
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(r.source.image)}

	r.source.breakAt, r.source.noRange = 1000, true
	_, err := r.stage(t, image)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	r.source.breakAt = 0
	_, err = r.stage(t, image)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 1000}, r.source.offsets)
}

// A proxy may cut a download off without an error. The checksum shows it even
// if the size is unknown.
func TestTruncatedDownload(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	whole := content(3000, 'q')
	r.source.image = whole[:1000]
	r.source.noSize = true
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(whole)}
	_, err := r.stage(t, image)
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "the size was unknown")
	require.Empty(t, r.there(t))
}

// A partial download that does not belong to the image is discarded and the
// image is downloaded from its beginning.
func TestWrongPartialDownloadIsDiscarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	r.source.image = content(3000, 'q')
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(r.source.image)}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, ".partial-"+image.SHA256), content(1000, 'x'), 0o600))

	_, err := r.stage(t, image)
	require.NoError(t, err)
	require.Equal(t, []int64{1000, 0}, r.source.offsets)

	wrong := cyborg.Image{Source: "https://images.example/q", SHA256: sum([]byte("something else"))}
	_, err = r.stage(t, wrong)
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err))
	require.Equal(t, []string{image.SHA256}, r.there(t))

	r.source.err = cyborg.Errorf(cyborg.ErrNotFound, "no such image")
	_, err = r.stage(t, wrong)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}

func TestCancelledDownloadIsResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 8<<20, 16<<20)
	r.source.image = content(4<<20, 'q')
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(r.source.image)}

	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err := r.Stage(ctx, images.Request{Image: image}, func(done, all int64) {
		require.Equal(t, int64(4<<20), all)
		if done > 0 {
			cancel(enough)
		}
	})
	require.ErrorIs(t, err, enough)

	_, err = r.stage(t, image)
	require.NoError(t, err)
	require.Greater(t, r.source.offsets[1], int64(1<<19))
}

func TestDamagedImageIsDownloadedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 1000)
	image := content(100, 'a')
	r.local(t, "x", image)
	staged, err := r.stage(t, cyborg.Image{Source: "x"})
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(staged.Path, content(100, 'b'), 0o600))
	_, err = r.stage(t, cyborg.Image{Source: "x", SHA256: staged.SHA256})
	require.NoError(t, err, "it is staged again")
	_, err = r.Get(t.Context(), staged.SHA256)
	require.NoError(t, err)
}

// A new image displaces the one that was not used for longest. Images that are
// needed or were just used stay, even if the cache then is too large.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 1000)
	sums := map[string]string{}
	for n, name := range []string{"a", "b", "c"} {
		image := content(300, name[0])
		r.local(t, name, image)
		staged, err := r.stage(t, cyborg.Image{Source: name})
		require.NoError(t, err)
		sums[name] = staged.SHA256
		old := time.Now().Add(time.Duration(n-10) * time.Hour)
		require.NoError(t, os.Chtimes(staged.Path, old, old))
	}

	r.needed[sums["a"]] = true
	r.local(t, "d", content(300, 'd'))
	_, err := r.stage(t, cyborg.Image{Source: "d"})
	require.NoError(t, err)
	require.NotContains(t, r.there(t), sums["b"], "it was not used for longest, and nobody needs it")
	require.Contains(t, r.there(t), sums["a"])
	require.Contains(t, r.there(t), sums["c"])

	_, err = r.Get(t.Context(), sums["c"])
	require.NoError(t, err)

	r.local(t, "e", content(900, 'e'))
	_, err = r.stage(t, cyborg.Image{Source: "e"})
	require.NoError(t, err)
	require.Contains(t, r.there(t), sums["c"], "it was used this very moment, so it may be needed")
	require.Contains(t, r.there(t), sums["a"], "what is needed stays, even where it does not fit")
}

func TestConcurrentRequestsShareOneDownload(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	r.source.image = content(30_000, 'q')
	image := cyborg.Image{Source: "https://images.example/q", SHA256: sum(r.source.image)}

	var all sync.WaitGroup
	failures := make(chan error, 10)
	for range 10 {
		all.Go(func() {
			_, err := r.Stage(t.Context(), images.Request{Image: image}, func(int64, int64) {})
			failures <- err
		})
	}

	all.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}

	require.Len(t, r.source.offsets, 1)
}

func TestLeftoverFilesAreRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 1000)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, ".copy-123"), content(900, 'x'), 0o600))

	stale := filepath.Join(r.dir, ".partial-"+sum([]byte("old")))
	require.NoError(t, os.WriteFile(stale, content(900, 'x'), 0o600))
	old := time.Now().Add(-48 * time.Hour)
	require.NoError(t, os.Chtimes(stale, old, old))

	r.open(t, 1000, 1000)
	r.local(t, "x", content(500, 'a'))
	_, err := r.stage(t, cyborg.Image{Source: "x"})
	require.NoError(t, err)
	require.Len(t, r.there(t), 1)
}

// A child process stages an image under a limit on the size of its files, which
// stands for a full disk.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0], t.TempDir())
	child.Env = append(os.Environ(), childEnv+"=full")
	output, err := child.CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// childFillsDisk is the child process of TestFullDisk, and returns its exit
// code. Each code but 0 stands for another failure.
func childFillsDisk(dir string) int {
	signal.Ignore(syscall.SIGXFSZ) // the write then fails instead

	image := content(300_000, 'a')
	store, err := images.Open(images.Config{
		Dir: filepath.Join(dir, "cache"), MaxBytes: 1 << 20, CacheBytes: 1 << 20, Source: &conductor{image: image},
		Needed: func() map[string]bool { return nil },
	}, slog.New(slog.NewTextHandler(os.Stdout, nil)))
	if err != nil {
		return 1
	}

	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 100_000, Max: 1 << 20}); err != nil {
		return 2
	}

	_, err = store.Stage(context.Background(), images.Request{Image: cyborg.Image{Source: "http://x/y", SHA256: sum(image)}}, func(int64, int64) {})
	if cyborg.ErrorKindOf(err) != cyborg.ErrUnavailable || !strings.Contains(err.Error(), "no space is left") {
		return 3
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "cache")); err != nil || len(entries) > 0 {
		return 4 // an unfinished download must not keep the disk full
	}

	return 0
}
