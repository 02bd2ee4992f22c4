package openstack_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// TestImagesInGlance programs images of a real Glance by each of their ids, and
// refuses images that do not fit or do not exist. It also reads an image from
// different offsets.
func TestImagesInGlance(t *testing.T) {
	t.Parallel()
	const host = "glance-cpu1"
	c := start(t, cloudOptions{part: rig.Glance, hosts: []string{host}, cards: 1, handles: 1})
	card := c.waitReady(t, 1, 1)[0].UUID

	bitstream := uuid.NewString()
	aes := c.image(t, cyborg.DeviceTypeFPGA, "aes", object{"accel:function_id": "aes-" + bitstream, "accel:bitstream_id": bitstream})
	elsewhere := c.image(t, cyborg.DeviceTypeFPGA, "elsewhere", object{"accel:region_id": "c0ffee"})

	for source, recorded := range map[string]string{
		"glance:" + aes: aes, "glance:function:aes-" + bitstream: aes, "glance:" + bitstream: bitstream,
	} {
		_, err := c.API.Program(t.Context(), card, cyborg.Image{Source: source})
		require.NoError(t, err, source)
		after, _, err := c.API.Accelerator(t.Context(), card)
		require.NoError(t, err)
		require.Equal(t, recorded, after.BitstreamID, source)
	}

	for source, kind := range map[string]cyborg.ErrorKind{
		"glance:" + elsewhere: cyborg.ErrImageRejected, "glance:" + uuid.NewString(): cyborg.ErrNotFound, "glance:function:nosuch": cyborg.ErrNotFound,
	} {
		_, err := c.API.Program(t.Context(), card, cyborg.Image{Source: source})
		require.Equal(t, kind, cyborg.ErrorKindOf(err), "%s: %v", source, err)
	}

	own := config.Default().OpenStack
	own.AuthURL, own.Password, own.Region = c.rig.Keystone, config.Secret(c.rig.Password), c.rig.Region

	session, err := openstack.New(own, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(session.Close)

	images := glance.New(session, glance.Options{Max: 1 << 20})
	found, err := images.Find(t.Context(), cyborg.GlanceQuery{ID: uuid.MustParse(aes)})
	require.NoError(t, err)

	content := fake.MakeImage(cyborg.DeviceTypeFPGA, "aes", []byte("payload"))
	require.Equal(t, int64(len(content)), found.Size)

	sum, err := found.Checksum.Hash()
	require.NoError(t, err)
	for _, offset := range []int64{0, 10, found.Size - 1} {
		body, err := images.Open(t.Context(), cyborg.GlanceImage(found.ID), found.Size, offset)
		require.NoError(t, err)

		got, err := io.ReadAll(body)
		require.NoError(t, err)
		require.NoError(t, body.Close())
		require.True(t, bytes.Equal(content[offset:], got), "from %d on: %q", offset, got)

		if offset == 0 {
			sum.Write(got)
			require.Equal(t, found.Checksum, cyborg.MakeChecksum(found.Checksum.Algorithm(), hex.EncodeToString(sum.Sum(nil))))
		}
	}
	_, err = images.Open(t.Context(), cyborg.GlanceImage(found.ID), found.Size, found.Size+5)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
}
