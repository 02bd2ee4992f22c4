package harness

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestReplacedAuthority replaces the authority of a server that runs. Its clients
// go on, and who has a certificate of the old one is shut out; while both count,
// he is not.
func TestReplacedAuthority(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := certificates(t, filepath.Join(dir, "authority"), filepath.Join(dir, "certificates"))
	require.NoError(t, c.ownCA())
	config, err := pki.Server(pki.ServerOptions{Files: c.Of(t, identity.Server, "server"), ClientAuth: tls.RequireAndVerifyClientCert})
	require.NoError(t, err)

	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = config
	server.StartTLS()
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c.Client(t, identity.Reader, "client"), DisableKeepAlives: true}}
	answered := func() {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}

	answered()
	for range 2 {
		require.NoError(t, c.ReplaceAuthority(func() error { answered(); return nil }))
		answered()
		require.NoError(t, c.shutOut(t.Context(), server.URL))
	}

	c.former, err = tls.X509KeyPair(func() (certificate, key []byte) {
		certificate, key, err := c.pair(identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Reader, Name: "present"})
		require.NoError(t, err)
		return certificate, key
	}())
	require.NoError(t, err)
	require.ErrorContains(t, c.shutOut(t.Context(), server.URL), "that was replaced", "one that counts is answered")
}
