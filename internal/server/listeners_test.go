package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// nothingRevoked are records of no revocation.
type nothingRevoked struct{}

func (nothingRevoked) RevokedHosts(context.Context) (map[string]int64, error) {
	return map[string]int64{}, nil
}

func (nothingRevoked) RestoreRevocations(context.Context, map[string]int64) error { return nil }

// TestAuthoritiesOfListenersAreReplaced: the agents' listener takes new
// authorities without a restart, keeps the old ones while the file is broken, and
// speaks TLS 1.3 only.
func TestAuthoritiesOfListenersAreReplaced(t *testing.T) {
	t.Parallel()
	older, newer := newAuthority(t), newAuthority(t)
	authorities := filepath.Join(t.TempDir(), "clients.crt")
	put := func(text []byte) {
		require.NoError(t, os.WriteFile(authorities+".fresh", text, 0o600))
		require.NoError(t, os.Rename(authorities+".fresh", authorities))
	}
	put(pki.EncodeCertificate(older.Certificate()))

	serving := issue(t, older, identity.Server)
	c := config.Default()
	c.Server.Roles = []config.Role{config.RoleConductor}
	c.AgentEndpoint.Listen = "127.0.0.1:0"
	c.AgentEndpoint.TLS = config.ServerTLS{Cert: serving.Cert, Key: serving.Key, ClientCA: authorities}

	listeners, err := Listen(t.Context(), c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listeners.Close()) })
	require.NoError(t, listeners.Revocations().Load(t.Context(), nothingRevoked{}))

	of := func(a *pki.Authority) pki.Files {
		files := issue(t, a, identity.Host)
		files.CA = serving.CA
		return files
	}
	first, second := of(older), of(newer)
	require.NoError(t, shake(t, listeners.agents, first))
	require.Error(t, shake(t, listeners.agents, second))

	put([]byte("-----BEGIN CERTIFICATE-----\nhalf"))
	require.NoError(t, shake(t, listeners.agents, first), "the old ones stay in use")

	put(bytes.Join([][]byte{pki.EncodeCertificate(older.Certificate()), pki.EncodeCertificate(newer.Certificate())}, nil))
	require.NoError(t, shake(t, listeners.agents, first))
	require.NoError(t, shake(t, listeners.agents, second))

	put(pki.EncodeCertificate(newer.Certificate()))
	require.Error(t, shake(t, listeners.agents, first))
	require.NoError(t, shake(t, listeners.agents, second))
}

// TestUnusableCertificatesAreRefused: the error of the start names the listener.
func TestUnusableCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	one, two := newAuthority(t), newAuthority(t)
	for name, given := range map[string]config.ServerTLS{
		"no certificate":   {Cert: "/nowhere", Key: "/nowhere"},
		"another's key":    {Cert: issue(t, one, identity.Server).Cert, Key: issue(t, two, identity.Server).Key},
		"no authorities":   {Cert: issue(t, one, identity.Server).Cert, Key: issue(t, one, identity.Server).Key, ClientCA: "/nowhere"},
		"a key for a cert": {Cert: one.CertificateFile(), Key: one.CertificateFile()},
	} {
		c := config.Default()
		c.API.Listen, c.AgentEndpoint.Listen, c.AgentEndpoint.TLS = "127.0.0.1:0", "127.0.0.1:0", given
		_, err := Listen(t.Context(), c, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, "agent_endpoint.listen: ", name)
	}
}

// newAuthority makes an authority in a new directory.
func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	return a
}

// issue makes a certificate for loopback.
func issue(t *testing.T, a *pki.Authority, role identity.Role) pki.Files {
	t.Helper()
	certificate, key, err := a.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "cyborg", Role: role, Name: "one"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "leaf.pem")
	require.NoError(t, os.WriteFile(path, append(certificate, key...), 0o600))
	return pki.Files{Cert: path, Key: path, CA: a.CertificateFile()}
}

// shake makes one connection to the listener, and returns why the listener's end
// of it, or the client's, has failed.
func shake(t *testing.T, listener net.Listener, files pki.Files) error {
	t.Helper()
	client, err := pki.NewClient(pki.ClientOptions{Files: files, TrustDomain: "cyborg"})
	require.NoError(t, err)

	served := make(chan error, 1)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			served <- err
			return
		}
		defer connection.Close()
		served <- connection.(*tls.Conn).Handshake()
	}()

	connection, err := tls.Dial("tcp", listener.Addr().String(), client.Config())
	if err == nil {
		require.Equal(t, uint16(tls.VersionTLS13), connection.ConnectionState().Version)
		defer connection.Close()
	}
	if refused := <-served; refused != nil {
		return refused
	}
	return err
}

// TestTheAgentEndpointNeedsTheCertificateOfAServer: with that of a host or a person,
// every agent would refuse the server. Callers of the API look at names only.
func TestTheAgentEndpointNeedsTheCertificateOfAServer(t *testing.T) {
	t.Parallel()
	for _, role := range []identity.Role{identity.Host, identity.Admin} {
		files := issue(t, newAuthority(t), role)
		c := config.Default()
		c.API.Listen, c.API.TLS = "127.0.0.1:0", config.ServerTLS{Cert: files.Cert, Key: files.Key}
		c.AgentEndpoint.Listen = "127.0.0.1:0"
		listeners, err := Listen(t.Context(), c, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.NoError(t, listeners.Close())
		require.NoError(t, c.CheckCertificates(config.ProcessServer))

		c.AgentEndpoint.TLS = c.API.TLS
		_, err = Listen(t.Context(), c, slog.New(slog.DiscardHandler))
		says := ".tls.cert " + files.Cert + " is the certificate of spiffe://cyborg/" + string(role) + "/"
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, "agent_endpoint"+says)
		require.ErrorContains(t, c.CheckCertificates(config.ProcessServer), "agent_endpoint"+says)
		require.ErrorContains(t, c.CheckCertificates(config.ProcessStandalone), "agent_endpoint"+says)

		c.Standalone.TemporalTLS = config.ServerTLS{Cert: files.Cert, Key: files.Key, ClientCA: files.CA}
		require.ErrorContains(t, c.CheckCertificates(config.ProcessTemporal), "standalone.temporal_"+says[1:])
	}
}
