package images_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzStage asks for an image at any path. Only regular files below the image
// directory are staged, and no path makes it hang.
func FuzzStage(f *testing.F) {
	parent := f.TempDir()
	dir := filepath.Join(parent, "images")
	secret := filepath.Join(parent, "secret")
	require.NoError(f, os.WriteFile(secret, []byte("a secret"), 0o600))
	require.NoError(f, os.MkdirAll(filepath.Join(dir, "sub"), 0o755))
	require.NoError(f, os.WriteFile(filepath.Join(dir, "a.bin"), []byte("an image"), 0o600))

	for link, to := range map[string]string{
		"out": "../secret", "absolute": secret, "up": "..", "here": "a.bin", "loop": "loop", "device": "/dev/zero", "proc": "/proc/self/root", "sub/back": "../../secret",
	} {
		require.NoError(f, os.Symlink(to, filepath.Join(dir, link)))
	}
	require.NoError(f, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))

	r := newRig(f, 1000, 1<<20)
	r.imageDir = dir
	r.open(f, 1000, 1<<20)

	for _, text := range append(fuzztest.Texts(), "a.bin", "file:a.bin", "file://a.bin", "file:///etc/passwd", "here", "out", "absolute", "up/secret", "up/images/a.bin", "loop", "device", "pipe",
		"proc/etc/passwd", "proc"+secret, "sub/back", "sub/../a.bin", "./a.bin", "a.bin/", "sub", "https://h/x", "FILE:a.bin", "file:file:a.bin", "/dev/stdin", "a.bin\x00") {
		f.Add(text, "")
		f.Add(text, strings.Repeat("a", 64))
	}

	f.Fuzz(func(t *testing.T, source, checksum string) {
		staged, err := r.stage(t, cyborg.Image{Source: source, SHA256: checksum})
		if err != nil {
			kind := cyborg.ErrorKindOf(err)
			require.Contains(t, []cyborg.ErrorKind{cyborg.ErrInvalid, cyborg.ErrNotFound, cyborg.ErrImageRejected, cyborg.ErrTooLarge}, kind, "%v", err)
			require.LessOrEqual(t, len(err.Error()), fuzztest.LongestMessage+len(dir), "%v", err)
			return
		}

		content, err := os.ReadFile(staged.Path)
		require.NoError(t, err)
		require.Equal(t, "an image", string(content), "%q", source)
	})
}
