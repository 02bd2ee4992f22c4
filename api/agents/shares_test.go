package agents

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// One peer does not have all bytes of reports that may wait, unless it may be
// many agents.
func TestHeldIsSharedAmongPeers(t *testing.T) {
	t.Parallel()
	h := newHeld(100, 40)
	take := func(peer string, shared bool, bytes int64) (func(), bool) {
		w := httptest.NewRecorder()
		release, err := h.take(w, peer, shared, bytes)
		if err != nil {
			require.Equal(t, cyborg.ErrOverloaded, cyborg.ErrorKindOf(err))
			require.NotEmpty(t, w.Header().Get("Retry-After"))
		}
		return release, err == nil
	}

	first, ok := take("h1", false, 30)
	require.True(t, ok)
	_, ok = take("h1", false, 11)
	require.False(t, ok, "of its own, it has 10 left")
	second, ok := take("h1", false, 10)
	require.True(t, ok)

	third, ok := take("127.0.0.1", true, 60)
	require.True(t, ok, "it may be several agents")
	_, ok = take("h2", false, 1)
	require.False(t, ok, "of all, nothing is left")

	first()
	_, ok = take("h2", false, 1000)
	require.False(t, ok, "of all, 30 are left")
	fourth, ok := take("h2", false, 30)
	require.True(t, ok)

	for _, release := range []func(){second, third, fourth} {
		release()
	}

	// One that is alone is never too large: it could not be sent at all.
	for _, shared := range []bool{false, true} {
		release, ok := take("h1", shared, 1000)
		require.True(t, ok)
		release()
	}
	require.Zero(t, h.bytes)
	require.Empty(t, h.byPeer)
}

// A host fetches so many images at once, and no more; another one is not
// affected.
func TestTransfersOfOneHost(t *testing.T) {
	t.Parallel()
	all := &transfers{limit: 2, byHost: map[string]int{}}
	w := httptest.NewRecorder()

	var ends []func()
	for _, host := range []string{"h1", "h1", "h2"} {
		end, err := all.begin(w, host)
		require.NoError(t, err)
		ends = append(ends, end)
	}

	_, err := all.begin(w, "h1")
	require.Equal(t, cyborg.ErrOverloaded, cyborg.ErrorKindOf(err))
	require.NotEmpty(t, w.Header().Get("Retry-After"))

	for _, end := range ends {
		end()
	}
	require.Empty(t, all.byHost)
}

// Hosts of one network that enroll at once wait for each other. Somebody without a
// certificate cannot have more wait than that, and others go on meanwhile.
func TestDoorsOfOneAddressAreBounded(t *testing.T) {
	t.Parallel()
	doors := newDoors(time.Minute)
	w := httptest.NewRecorder()
	for range 64 {
		require.NotNil(t, doors.enter("192.0.2.1"))
	}

	_, err := doors.acquire(t.Context(), w, "192.0.2.1")
	require.Error(t, err)
	require.Equal(t, cyborg.ErrOverloaded, cyborg.ErrorKindOf(err))
	require.NotEmpty(t, w.Header().Get("Retry-After"))

	release, err := doors.acquire(t.Context(), w, "192.0.2.2")
	require.NoError(t, err)
	release()
	doors.leave("192.0.2.1")
	release, err = doors.acquire(t.Context(), w, "192.0.2.1")
	require.NoError(t, err, "one has left")
	release()
}

// All certificates of a host are one peer, and so are all addresses of a network
// of IPv6: who has many of them has no larger share.
func TestPeer(t *testing.T) {
	t.Parallel()
	of := func(raw, uri string) *http.Request {
		request := httptest.NewRequest(http.MethodPost, ReportsPath, nil)
		id, err := url.Parse(uri)
		require.NoError(t, err)
		request.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Raw: []byte(raw), URIs: []*url.URL{id}}}}}
		return request
	}

	first, again, other := of("1", "spiffe://cyborg/host/h1"), of("2", "spiffe://cyborg/host/h1"), of("3", "spiffe://cyborg/host/h2")
	require.Equal(t, peer(first), peer(again))
	require.NotEqual(t, peer(first), peer(other))
	require.True(t, told(first))

	stranger := httptest.NewRequest(http.MethodPost, ReportsPath, nil)
	stranger.RemoteAddr = "[2001:db8::1]:1234"
	neighbour := httptest.NewRequest(http.MethodPost, ReportsPath, nil)
	neighbour.RemoteAddr = "[2001:db8::2]:1234"
	require.Equal(t, peer(stranger), peer(neighbour))
	require.False(t, told(stranger))
}
