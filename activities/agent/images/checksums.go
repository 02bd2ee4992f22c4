package images

import (
	"context"
	"crypto/sha256"
	"hash"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// checksums are what an image must hash to. The zero value is for an image
// without any known checksum.
type checksums struct {
	sha256 string
	other  cyborg.Checksum // by the algorithm that the image's registry uses
}

var sumFormat = regexp.MustCompile(`^[0-9a-f]{64}$`)

// wantedChecksums returns the checksums that an image must have. The error is
// of kind ErrInvalid.
func wantedChecksums(image cyborg.Image) (checksums, error) {
	want := checksums{sha256: strings.ToLower(image.SHA256), other: image.Checksum}
	if want.sha256 != "" && !sumFormat.MatchString(want.sha256) {
		return want, cyborg.Errorf(cyborg.ErrInvalid, "%.80q is not a SHA-256: write 64 hexadecimal digits", image.SHA256)
	}

	if want.other != "" {
		if _, err := want.other.Hash(); err != nil {
			return want, err
		}
	}

	return want, nil
}

// name is the file name of an image with these checksums; empty where there are
// none.
func (c checksums) name() string {
	if c.sha256 != "" || c.other == "" {
		return c.sha256
	}
	return c.other.Algorithm() + "-" + c.other.Value()
}

// sums computes the hashes of an image as it is written. The SHA-256 is always
// among them, because images are stored under it.
type sums struct{ sha256, other hash.Hash }

// begin returns the hashes to compute for these checksums.
func (c checksums) begin() (*sums, error) {
	s := &sums{sha256: sha256.New()}
	if c.other == "" {
		return s, nil
	}

	var err error
	s.other, err = c.other.Hash()
	return s, err
}

// Write adds a part of the image to all hashes. It never fails.
func (s *sums) Write(part []byte) (int, error) {
	if s.other != nil {
		s.other.Write(part)
	}
	return s.sha256.Write(part)
}

// reset begins the hashes anew, for an image that is fetched from its first
// byte again.
func (s *sums) reset() {
	s.sha256.Reset()
	if s.other != nil {
		s.other.Reset()
	}
}

// check compares the computed hashes with the wanted ones. The error is of kind
// ErrImageRejected.
func (s *sums) check(what string, want checksums) error {
	if got := hexOf(s.sha256); want.sha256 != "" && got != want.sha256 {
		return mismatch(what, "SHA-256", want.sha256, got)
	}

	if want.other == "" {
		return nil
	}

	if got := hexOf(s.other); got != want.other.Value() {
		return mismatch(what, want.other.Algorithm(), want.other.Value(), got)
	}

	return nil
}

// known returns an image that is already on this host. An image that must have
// another checksum than its SHA-256 is found through a symbolic link, which alias
// made when both checksums were verified. The SHA-256 alone does not say that the
// image has the other one, too.
func (s *Store) known(ctx context.Context, want checksums) (Image, error) {
	sum := want.sha256
	if want.other != "" {
		target, err := os.Readlink(filepath.Join(s.config.Dir, checksums{other: want.other}.name()))
		if err != nil || !sumFormat.MatchString(target) || sum != "" && sum != target {
			target = ""
		}
		sum = target
	}

	if sum == "" {
		return Image{}, cyborg.Errorf(cyborg.ErrNotFound, "the image is not on this host")
	}

	return s.Get(ctx, sum)
}

// alias makes the symbolic link from an image's other checksum to its SHA-256.
// A failure is only logged: without the link the image is fetched again.
func (s *Store) alias(ctx context.Context, want checksums, image Image) {
	link := filepath.Join(s.config.Dir, checksums{other: want.other}.name())
	if want.other == "" {
		return
	}

	err := os.Remove(link)
	if err == nil || os.IsNotExist(err) {
		err = os.Symlink(image.SHA256, link)
	}
	if err != nil {
		s.log.WarnContext(ctx, "an image is not found again under its other checksum", "link", link, "error", err)
	}
}
