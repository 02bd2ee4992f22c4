package images_test

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
)

// sha512Of returns the checksum that an image registry has of a content.
func sha512Of(content []byte) cyborg.Checksum {
	sum := sha512.Sum512(content)
	return cyborg.MakeChecksum("sha512", hex.EncodeToString(sum[:]))
}

// once stages an image from a one-time URL. Only a checksum other than SHA-256
// is known of the image.
func (r *rig) once(t *testing.T, image []byte, fetch string) (images.Image, error) {
	t.Helper()
	return r.Stage(t.Context(), images.Request{
		Image: cyborg.Image{Source: "glance:x", Checksum: sha512Of(image)}, Fetch: fetch, Once: true,
	}, func(int64, int64) {})
}

// An image that has only its registry's checksum is resumed after a break,
// verified and found again. Its one-time URL is given back.
func TestDownloadWithTheRegistrysChecksum(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	image := content(300_000, 'g')
	r.source.image, r.source.breakAt = image, 100_000
	_, err := r.once(t, image, "/a?key=1")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Empty(t, r.source.back, "it is not here yet")

	r.open(t, 1<<20, 1<<20) // a later process goes on
	r.source.breakAt = 0
	staged, err := r.once(t, image, "/a?key=1")
	require.NoError(t, err)
	require.Equal(t, sum(image), staged.SHA256, "it is kept under its SHA-256")
	require.Equal(t, []int64{0, 100_000}, r.source.offsets)
	require.Equal(t, []string{"/a?key=1", "/a?key=1"}, r.source.paths)
	require.Equal(t, []string{"/a?key=1"}, r.source.back)

	r.source.deaf = errors.New("nobody listens")
	staged, err = r.once(t, image, "/b?key=2")
	require.NoError(t, err)
	require.Equal(t, sum(image), staged.SHA256)
	require.Len(t, r.source.paths, 2, "it is here already")
	require.Equal(t, []string{"/a?key=1", "/b?key=2"}, r.source.back, "a URL that is not needed is given back as well")
}

// An image is not known by its SHA-256 alone where its registry has another
// checksum: the SHA-256 may be that of another image on this host.
func TestBothChecksumsMustBeKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	image, other := content(5000, 'g'), content(5000, 'x')
	r.source.image = other
	_, err := r.once(t, other, "/other")
	require.NoError(t, err)
	r.source.image = image
	_, err = r.once(t, image, "/a")
	require.NoError(t, err)

	wrong := cyborg.Image{Source: "glance:x", SHA256: sum(other), Checksum: sha512Of(image)}
	_, err = r.stage(t, wrong)
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err))

	fetched := len(r.source.paths)
	both := cyborg.Image{Source: "glance:x", SHA256: sum(image), Checksum: sha512Of(image)}
	staged, err := r.stage(t, both)
	require.NoError(t, err)
	require.Equal(t, sum(image), staged.SHA256)
	require.Len(t, r.source.paths, fetched, "it is here already")
}

// A checksum's link in the cache that leads elsewhere, or to an image that is
// gone, does not count as an image.
func TestInvalidChecksumLinkIsIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	image := content(5000, 'g')
	r.source.image = image
	staged, err := r.once(t, image, "/a")
	require.NoError(t, err)

	require.NoError(t, os.Remove(staged.Path))
	_, err = r.once(t, image, "/a")
	require.NoError(t, err, "it is fetched again")
	require.Len(t, r.source.paths, 2)

	link := filepath.Join(r.dir, "sha512-"+sha512Of(image).Value())
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/etc/hostname", link))
	staged, err = r.once(t, image, "/a")
	require.NoError(t, err)
	require.Len(t, r.source.paths, 3)

	got, err := os.ReadFile(staged.Path)
	require.NoError(t, err)
	require.Equal(t, image, got)
}

// An image whose content does not have the registry's checksum is rejected, and
// nothing of it is kept.
func TestWrongRegistryChecksumIsRejected(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1<<20, 1<<20)
	r.source.image = content(5000, 'x')
	_, err := r.once(t, content(5000, 'g'), "/a")
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "sha512")
	require.Empty(t, r.there(t))
	require.Empty(t, r.source.back)

	_, err = r.stage(t, cyborg.Image{Source: "glance:x", Checksum: "crc32:00"})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	_, err = r.stage(t, cyborg.Image{Source: "glance:x", SHA256: sum(r.source.image), Checksum: sha512Of(content(5000, 'g'))})
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "both count")
}

// The size of the cache is bounded, whichever algorithm the checksums have.
func TestChecksumLinksCountTowardsTheCacheSize(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1000, 2000)
	old := time.Now().Add(-time.Hour)

	for seed := range byte(20) {
		r.source.image = content(900, seed)
		staged, err := r.once(t, r.source.image, "/a")
		require.NoError(t, err)
		require.NoError(t, os.Chtimes(staged.Path, old, old))
	}

	total := int64(0)
	for _, name := range r.there(t) {
		info, err := os.Stat(filepath.Join(r.dir, name))
		if err == nil && info.Mode().IsRegular() && len(name) == 64 {
			total += info.Size()
		}
	}

	require.LessOrEqual(t, total, int64(2000))
}
