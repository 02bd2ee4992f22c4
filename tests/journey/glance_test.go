package journey_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestImagesFromGlance programs images from Glance on a host that has no
// credential of the cloud, with broken connections and an expired token. An
// image with a wrong checksum, or for another card, is refused before the card
// is touched.
func TestImagesFromGlance(t *testing.T) {
	t.Parallel()
	keystone, g := openstacktest.NewKeystone(t), glancetest.Start(t)
	keystone.Serve("image", g.URL)
	g.Trust(keystone.IsOwn)
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}, Env: []string{
		"CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL, "CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword, "CYBORG_IMAGES_MAX=1MiB",
	}})

	status, headers, _ := request(t, s, http.MethodPost, "/v1/accelerators", map[string]any{"name": "card"})
	require.Equal(t, http.StatusCreated, status)
	at := headers.Get("Location")

	program := func(source string) (int, map[string]any) {
		t.Helper()
		status, _, answer := request(t, s, http.MethodPatch, at+"/program", map[string]any{"image": map[string]any{"source": source}})
		return status, answer
	}

	requireLoaded := func(want any) {
		t.Helper()
		_, _, card := request(t, s, http.MethodGet, at, nil)
		require.Equal(t, want, card["bitstream_id"])
		require.Equal(t, "ready", card["status"])
		require.Nil(t, card["fence"])
	}

	bitstream := func(function string) []byte {
		return fake.MakeImage("FPGA", function, []byte(strings.Repeat("payload of "+function, 30_000)))
	}

	// The connection and the token fail. The download continues with a new token
	// where it was, and the records show the loaded image afterwards (L29).
	aes := g.Add(bitstream("aes"), map[string]any{"accel:function_id": "3AFB"})
	g.Fail(glancetest.Failure{}, glancetest.Failure{Cut: 100_000}, glancetest.Failure{Cut: 100_000})
	status, answer := program("glance:" + aes.String())
	require.Equal(t, http.StatusOK, status, answer)
	requireLoaded(aes.String())

	ranges := g.Ranges()
	require.Len(t, ranges, 3)
	require.Empty(t, ranges[0])

	for _, later := range ranges[1:] {
		require.True(t, strings.HasPrefix(later, "bytes=") && later != "bytes=0-", "a later request begins where the one before ended: %q", ranges)
	}

	// An image can be named by its function. An image that the host has in its
	// cache is not fetched again.
	sha := g.Add(bitstream("sha"), map[string]any{"accel:function_id": "SHA-3"})
	status, answer = program("glance:function:SHA-3")
	require.Equal(t, http.StatusOK, status, answer)
	requireLoaded(sha.String())

	before := len(g.Ranges())

	keystone.RevokeOwn()
	status, answer = program("glance:" + aes.String())
	require.Equal(t, http.StatusOK, status, answer)
	requireLoaded(aes.String())

	require.Len(t, g.Ranges(), before, "it was in the host's cache")

	// A refused image leaves the card as it is.
	wrong := g.Add(bitstream("evil"), map[string]any{"os_hash_value": strings.Repeat("ab", 64)})
	elsewhere := g.Add(bitstream("other"), map[string]any{"accel:region_id": "c0ffee"})
	large := g.Add(make([]byte, 2<<20), nil)
	noBitstream := g.Add([]byte("a virtual machine's disk"), nil)
	before = len(g.Ranges())
	for _, test := range []struct {
		source string
		status int
		kind   string
	}{
		{"glance:" + wrong.String(), http.StatusUnprocessableEntity, "image_rejected"},
		{"glance:" + noBitstream.String(), http.StatusUnprocessableEntity, "image_rejected"},
		{"glance:" + elsewhere.String(), http.StatusUnprocessableEntity, "image_rejected"},
		{"glance:" + large.String(), http.StatusRequestEntityTooLarge, "too_large"},
		{"glance:" + uuid.NewString(), http.StatusNotFound, "not_found"},
		{"glance:function:nosuch", http.StatusNotFound, "not_found"},
		{"glance:nosuch", http.StatusBadRequest, "invalid"},
	} {
		status, answer := program(test.source)
		require.Equal(t, test.status, status, "%s: %v", test.source, answer)
		require.Equal(t, test.kind, answer["kind"], test.source)
		requireLoaded(aes.String())
	}

	require.Len(t, g.Ranges(), before+2, "only images that could fit were fetched")
	harness.RequireSound(t, s)
}

// TestL18HostHasOneName binds on a host with a fully qualified name. The
// records, the agent and the requests use the same name, so the bind reaches
// the host.
func TestL18HostHasOneName(t *testing.T) {
	t.Parallel()
	const host = "compute-1.example.org"
	keystone, g := openstacktest.NewKeystone(t), glancetest.Start(t)
	keystone.Serve("image", g.URL)
	g.Trust(keystone.IsOwn)
	s := harness.Start(t, harness.Options{Hosts: []string{host + "=fake:1xfpga"}, Env: append(shortWaits(),
		"CYBORG_OPENSTACK_AUTH_URL="+keystone.URL, "CYBORG_OPENSTACK_PASSWORD="+openstacktest.OwnPassword)})

	card := s.Accelerators(t)[0]
	require.Equal(t, host, card.Host)

	_, err := s.API.MakeReady(t.Context(), card.UUID)
	require.NoError(t, err)

	image := g.Add(fake.MakeImage("FPGA", "aes", []byte("payload")), map[string]any{"accel:function_id": "aes"})
	profile(t, s, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": image.String()})
	arq := makeRequest(t, s, "image")
	_, status := patchRequest(t, s, arq, card, uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)

	requireResolved(t, s)
	require.Equal(t, cyborg.ARQBound, stateOf(t, s, arq))

	after, _, err := s.API.Accelerator(t.Context(), card.UUID)
	require.NoError(t, err)
	require.Equal(t, image.String(), after.BitstreamID)
}
