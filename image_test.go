package cyborg_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestGlanceSources: a source names an image in Glance by its id or by its
// function, and anything malformed is refused.
func TestGlanceSources(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	image := cyborg.GlanceImage(id)
	require.True(t, image.InGlance())
	query, err := image.GlanceQuery()
	require.NoError(t, err)
	require.Equal(t, cyborg.GlanceQuery{ID: id}, query)

	query, err = cyborg.GlanceFunction("3AFB").GlanceQuery()
	require.NoError(t, err)
	require.Equal(t, cyborg.GlanceQuery{Function: "3AFB"}, query)

	require.False(t, cyborg.Image{Source: "file:glance:x"}.InGlance())
	for _, source := range []string{
		"glance:", "glance:x", "glance:function:", "glance:function:a\nb", "glance:{" + id.String() + "}", "glance:urn:uuid:" + id.String(),
		"glance:" + uuid.Nil.String(), "glance:function:" + strings.Repeat("x", 256), id.String(), "glance://" + id.String(),
	} {
		_, err := cyborg.Image{Source: source}.GlanceQuery()
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), source)
	}
}

// TestChecksums: a checksum of each algorithm has a hash that agrees with it on
// the empty content, in whichever case both are given. A wrong length, an
// unknown algorithm and a malformed text are refused.
func TestChecksums(t *testing.T) {
	t.Parallel()
	for algorithm, empty := range map[string]string{
		"md5":      "d41d8cd98f00b204e9800998ecf8427e",
		"sha256":   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		"sha384":   "38b060a751ac96384cd9327eb1b1e36a21fdb71114be07434c0cc7bf63f6e1da274edebfe76f65fbd51ad2f14898b95b",
		"sha512":   "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e",
		"sha3_256": "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a",
		"sha3_384": "0c63a75b845e4f7d01107d852e4c2485c51a50aaaa94fc61995e71bbee983a2ac3713831264adb47fb6bd1e058d5f004",
		"sha3_512": "a69f73cca23a9ac5c8b567dc185a756e97c982164fe25859e0d1dcc1475c80a615b2123af1f5f94c11e3e9402c3ac558f500199d95b6d3e301758586281dcd26",
	} {
		sum := cyborg.MakeChecksum(strings.ToUpper(algorithm), strings.ToUpper(empty))
		h, err := sum.Hash()
		require.NoError(t, err, algorithm)
		require.Equal(t, empty, hex.EncodeToString(h.Sum(nil)), algorithm)
		require.Equal(t, algorithm, sum.Algorithm())
		require.Equal(t, empty, sum.Value())

		_, err = cyborg.MakeChecksum(algorithm, empty[2:]).Hash()
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "it is too short")
	}

	for _, bad := range []cyborg.Checksum{"", "sha512", "sha512:", "crc32:00000000", "sha256:zz", ":00", "sha512:" + cyborg.Checksum(strings.Repeat("AB", 64))} {
		_, err := bad.Hash()
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), string(bad))
	}
}

func TestShowSource(t *testing.T) {
	t.Parallel()
	for source, shown := range map[string]string{
		"": "", "a/b.bin": "a/b.bin", "file:a?b": "file:a?b", "glance:function:x": "glance:function:x",
		"https://h:1/a": "https://h:1/a", "https://h/a?s=1#x": "https://h/a?…", "https://h?s=1/x@y": "https://h?…", "https://h/a#s": "https://h/a",
		"https://u:p@h/a@b?s": "https://…@b?…", "http://u@h": "http://h", "http://%zz?s": "http://%zz?…",
	} {
		require.Equal(t, shown, cyborg.ShowSource(source), source)
		require.Equal(t, shown, cyborg.ShowSource(shown), "it can be shown again")
		require.False(t, cyborg.Image{Source: source}.QueryHidden(), source)
	}
}

// An image is stored without the query of its URL, and with all the rest.
func TestImagesWithoutQueries(t *testing.T) {
	t.Parallel()
	for source, stored := range map[string]string{
		"": "", "a/b.bin": "a/b.bin", "file:a?b": "file:a?b", "glance:function:x": "glance:function:x",
		"https://h:1/a": "https://h:1/a", "https://h/a?s=1#x": "https://h/a?…", "https://h?s=1/x@y": "https://h?…", "https://h/a#s?x": "https://h/a",
		"https://registry.example/aes@1.2/a.bin":     "https://registry.example/aes@1.2/a.bin",
		"https://registry.example/aes@1.2/a.bin?s=1": "https://registry.example/aes@1.2/a.bin?…",
	} {
		image := cyborg.Image{Source: source, ID: "x"}.WithoutQuery()
		require.Equal(t, cyborg.Image{Source: stored, ID: "x"}, image)
		require.Equal(t, image, image.WithoutQuery())
		require.False(t, cyborg.Image{Source: source}.QueryHidden(), source)
		require.Equal(t, strings.HasSuffix(stored, "…"), image.QueryHidden(), stored)
	}
}

// A password may have characters that end it for a URL. It is not shown all the
// same.
func TestPasswordsOfSourcesAreNotShown(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"canary", "/canary", "12/canary", "can@ary", "canary@canary", "?canary", "#canary", "canary?x", "canary#x", "12/@canary/"} {
		for _, rest := range []string{"images.example/a.bin", "images.example:8443/a.bin?x=1", "images.example"} {
			require.NotContains(t, cyborg.ShowSource("https://u:"+password+"@"+rest), "canary", password+"@"+rest)
		}
	}

	for source, shown := range map[string]string{
		"https://u:p@images.example/a.bin":      "https://images.example/a.bin",
		"https://images.example:8443/a?m=a@b":   "https://images.example:8443/a?…",
		"https://[2001:db8::1]/a?m=a@b":         "https://[2001:db8::1]/a?…",
		"https://images.example/v@1/a.bin?x#at": "https://…@1/a.bin?…",
		"glance:some":                           "glance:some",
		"a/b@c.bin":                             "a/b@c.bin",
	} {
		require.Equal(t, shown, cyborg.ShowSource(source))
	}
}
