package glance_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
)

// content is that of the images.
var content = bytes.Repeat([]byte("0123456789"), 1000)

// byID asks for the image with an id.
func byID(id uuid.UUID) cyborg.GlanceQuery { return cyborg.GlanceQuery{ID: id} }

// newImages returns a client that takes images of up to 1 MiB.
func newImages(g *glancetest.Glance) *glance.Images {
	return glance.New(g, glance.Options{Max: 1 << 20})
}

// TestFind: an image is found by its id, by its function, and by the id of its
// bitstream.
func TestFind(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	images := newImages(g)

	property := uuid.New()
	id := g.Add(content, map[string]any{
		"accel:function_id": "3AFB", "accel:region_id": "fa00", "accel:vendor_id": "8086", "accel:product_id": "09c4",
		"accel:bitstream_id": property.String(),
	})

	other := g.Add([]byte("other"), map[string]any{"region_uuid": "c0de"})
	sum := sha512.Sum512(content)
	want := glance.Image{
		ID: id, Checksum: cyborg.MakeChecksum("sha512", hex.EncodeToString(sum[:])), Size: 10_000,
		Function: "3AFB", Region: "fa00", VendorID: "8086", ProductID: "09c4",
	}

	for name, query := range map[string]cyborg.GlanceQuery{
		"by its id": byID(id), "by its function": {Function: "3AFB"}, "by the bitstream's id": byID(property),
	} {
		found, err := images.Find(t.Context(), query)
		require.NoError(t, err, name)
		require.Equal(t, want, found, name)
	}

	found, err := images.Find(t.Context(), byID(other))
	require.NoError(t, err)
	require.Equal(t, "c0de", found.Region, "as the specification of bitstreams' metadata calls it")
	require.Empty(t, found.Function, "an image need not have one")
}

// TestFindRefuses: an image that is not active, or has no checksum that can be
// trusted, is refused with the reason.
func TestFindRefuses(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	md5 := map[string]any{"os_hash_algo": nil, "os_hash_value": nil}
	g.Add(content, map[string]any{"accel:function_id": "twice"})
	g.Add(content, map[string]any{"accel:function_id": "twice"})
	g.Add(content, map[string]any{"accel:function_id": "queued", "status": "queued"})

	for name, test := range map[string]struct {
		query cyborg.GlanceQuery
		kind  cyborg.ErrorKind
		text  string
	}{
		"unknown":          {byID(uuid.New()), cyborg.ErrNotFound, "none with that id"},
		"no such function": {cyborg.GlanceQuery{Function: "nosuch"}, cyborg.ErrNotFound, `accel:function_id "nosuch"`},
		"several":          {cyborg.GlanceQuery{Function: "twice"}, cyborg.ErrInvalid, "several images"},
		"only active ones": {cyborg.GlanceQuery{Function: "queued"}, cyborg.ErrNotFound, "no active image"},
		"queued":           {byID(g.Add(content, map[string]any{"status": "queued", "size": nil})), cyborg.ErrImageRejected, "is queued in Glance"},
		"deactivated":      {byID(g.Add(content, map[string]any{"status": "deactivated"})), cyborg.ErrImageRejected, "is deactivated"},
		"empty":            {byID(g.Add(nil, nil)), cyborg.ErrImageRejected, "is empty"},
		"too large":        {byID(g.Add(content, map[string]any{"size": 1<<20 + 1})), cyborg.ErrTooLarge, "1048577 bytes, more than 1048576"},
		"MD5 only":         {byID(g.Add(content, md5)), cyborg.ErrImageRejected, "glance.allow_md5"},
		"MD5 as its hash":  {byID(g.Add(content, map[string]any{"os_hash_algo": "md5", "os_hash_value": strings.Repeat("ab", 16)})), cyborg.ErrImageRejected, "can be trusted"},
		"unknown hash":     {byID(g.Add(content, map[string]any{"os_hash_algo": "whirlpool", "os_hash_value": "ab"})), cyborg.ErrImageRejected, "whirlpool"},
		"no hash":          {byID(g.Add(content, map[string]any{"os_hash_value": "abc"})), cyborg.ErrImageRejected, "no checksum"},
	} {
		_, err := newImages(g).Find(t.Context(), test.query)
		require.Equal(t, test.kind, cyborg.ErrorKindOf(err), "%s: %v", name, err)
		require.Contains(t, err.Error()+cyborg.AsError(err).Hint, test.text, name)
	}

	lenient := glance.New(g, glance.Options{Max: 1 << 20, AllowMD5: true})
	found, err := lenient.Find(t.Context(), byID(g.Add(content, md5)))
	require.NoError(t, err)
	require.Equal(t, "md5", found.Checksum.Algorithm())

	_, err = lenient.Find(t.Context(), byID(g.Add(content, map[string]any{"os_hash_algo": nil, "checksum": nil})))
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "there is none at all")
}

// TestL28ExpiredTokensAreRenewed: OpenStack Cyborg fetched images with the
// caller's token, which a long job outlived. Ours is renewed, between two
// requests and between two parts of an image.
func TestL28ExpiredTokensAreRenewed(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	images := newImages(g)
	id := g.Add(content, nil)

	g.Expire()
	_, err := images.Find(t.Context(), byID(id))
	require.NoError(t, err)

	var got []byte
	for len(got) < len(content) {
		g.Fail(glancetest.Failure{Cut: 3_000})
		body, err := images.Open(t.Context(), cyborg.GlanceImage(id), int64(len(content)), int64(len(got)))
		require.NoError(t, err)
		part, err := io.ReadAll(body)
		require.Equal(t, len(got)+len(part) < len(content), err != nil, "each connection breaks off, and says so: %v", err)
		require.NoError(t, body.Close())
		require.NotEmpty(t, part)
		got = append(got, part...)
		g.Expire()
	}

	require.Equal(t, content, got)
}

// TestGlanceUnavailable: an error that may pass has a kind that is retried.
func TestGlanceUnavailable(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	images := newImages(g)
	id := g.Add(content, nil)
	for _, status := range []int{
		http.StatusServiceUnavailable, http.StatusInternalServerError, http.StatusForbidden, http.StatusTooManyRequests,
		http.StatusConflict, http.StatusPreconditionFailed, http.StatusRequestEntityTooLarge, http.StatusGone, http.StatusNoContent,
	} {
		g.Fail(glancetest.Failure{Status: status})
		_, err := images.Find(t.Context(), byID(id))
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%d: %v", status, err)
		g.Fail(glancetest.Failure{Status: status})
		_, err = images.Open(t.Context(), cyborg.GlanceImage(id), 10_000, 0)
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%d: %v", status, err)
	}

	g.Fail(glancetest.Failure{Status: http.StatusBadRequest})
	_, err := images.Find(t.Context(), cyborg.GlanceQuery{Function: "3AFB"})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "what Glance does not understand now it never will")

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	g.Fail(glancetest.Failure{Stall: time.Minute})
	_, err = images.Find(ctx, byID(id))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	away := glance.New(nowhere{}, glance.Options{Max: 1 << 20})
	_, err = away.Find(t.Context(), byID(id))
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	_, err = away.Open(t.Context(), cyborg.GlanceImage(id), 1, 0)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}

// nowhere is a session with a Keystone that is away.
type nowhere struct{}

func (nowhere) Service(context.Context, string) (*gophercloud.ServiceClient, error) {
	return nil, errors.New("connection refused")
}

// TestOpen: an image can be read from any offset, and a part is never taken for
// the whole.
func TestOpen(t *testing.T) {
	t.Parallel()
	g := glancetest.Start(t)
	images := newImages(g)
	id := g.Add(content, nil)

	read := func(offset int64) ([]byte, error) {
		body, err := images.Open(t.Context(), cyborg.GlanceImage(id), 10_000, offset)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return io.ReadAll(body)
	}

	got, err := read(0)
	require.NoError(t, err)
	require.Equal(t, content, got)

	g.Expire()
	got, err = read(9_990)
	require.NoError(t, err, "the token ended meanwhile")
	require.Equal(t, content[9_990:], got)

	g.Fail(glancetest.Failure{NoRange: true})
	got, err = read(5_000)
	require.NoError(t, err)
	require.Equal(t, content[5_000:], got, "where Glance cannot begin in the middle, what comes before is passed over")
	require.Equal(t, []string{"", "bytes=9990-", "bytes=5000-"}, g.Ranges())

	g.Fail(glancetest.Failure{Cut: 100})
	got, err = read(0)
	require.Error(t, err, "a part is never taken for the whole")
	require.LessOrEqual(t, len(got), 100)

	_, err = read(10_000)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	g.Replace(id, content[:9_000], nil)
	_, err = read(0)
	require.Equal(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "it has another size than when it was found")

	g.Remove(id)
	_, err = read(0)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	_, err = images.Open(t.Context(), cyborg.Image{Source: "https://x/y"}, 1, 0)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}
