package temporalauth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/server/common/rpc/encryption"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// internode is a TLS configuration of Temporal's own services.
type internode struct {
	encryption.TLSConfigProvider

	config *tls.Config
}

func (i internode) GetInternodeServerConfig() (*tls.Config, error) { return i.config, nil }

// temporary returns an authority, and a certificate of its own that is good for both sides.
func temporary(t *testing.T) (*x509.CertPool, tls.Certificate) {
	t.Helper()
	authority, err := pki.Temporary()
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(authority.Certificate())

	certificate, key, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "temporal"}, DNS: []string{"temporal", "refused"},
	})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	return pool, pair
}

// TestInsideServicesWithoutTLS: where Temporal's services show each other nothing, all
// connections are alike, and none is closed in favour of another.
func TestInsideServicesWithoutTLS(t *testing.T) {
	t.Parallel()
	listener, err := boundInside(pipes{}, tellsHandshakes{internode{}})
	require.NoError(t, err)
	require.Equal(t, pipes{}, listener)

	listener, err = boundInside(pipes{}, tellsHandshakes{internode{config: &tls.Config{MinVersion: tls.VersionTLS13}}})
	require.NoError(t, err)
	require.IsType(t, &connections{}, listener)
}

// TestHandshakesOfInsideServices: a service that only Temporal calls closes the
// connections of whoever shows nothing, and not those of Temporal.
func TestHandshakesOfInsideServices(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	c := &connections{Listener: listener, limit: 2}

	authority, own := temporary(t)
	server, err := tellsHandshakes{internode{config: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, ClientCAs: authority, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			if state.ServerName == "refused" {
				return errors.New("refused")
			}
			return nil
		},
	}}}.GetInternodeServerConfig()
	require.NoError(t, err)

	connect := func(name string) (*connection, error) {
		dialed, err := net.Dial("tcp", listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = dialed.Close() })
		accepted := c.open(t)
		if name == "" {
			return accepted, nil
		}

		done := make(chan error, 1)
		go func() { done <- tls.Server(accepted, server).Handshake() }()
		client := tls.Client(dialed, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, RootCAs: authority, ServerName: name})
		_ = client.Handshake() // the server says it
		return accepted, <-done
	}

	known, err := connect("temporal")
	require.NoError(t, err)
	refused, err := connect("refused")
	require.Error(t, err)
	silent, err := connect("")
	require.NoError(t, err)

	require.True(t, known.isOpen())
	require.False(t, refused.isOpen(), "it was the oldest without a handshake")
	require.True(t, silent.isOpen())
}
