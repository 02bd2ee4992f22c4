package temporalclient

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestCertificatesAreReplacedWithoutARestart: a client of Temporal uses the
// certificate and the authorities that are in the files when it connects.
func TestCertificatesAreReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	older, newer := authority(t), authority(t)
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(path("fresh"), content, 0o600))
		require.NoError(t, os.Rename(path("fresh"), path(name)))
	}
	issue := func(a *pki.Authority, role identity.Role, name string) {
		certificate, key, err := a.IssuePair(pki.Leaf{
			Identity: identity.Identity{TrustDomain: "lab", Role: role, Name: name}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		})
		require.NoError(t, err)
		put(name, append(certificate, key...))
	}
	trust := func(name string, a *pki.Authority) { put(name, pki.EncodeCertificate(a.Certificate())) }

	issue(older, identity.Server, "temporal")
	issue(older, identity.Host, "agent")
	trust("clients", older)
	trust("servers", older)
	serving, err := pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: path("temporal"), Key: path("temporal"), CA: path("clients")}, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	require.NoError(t, err)

	// The server is healthy, and knows no more of Temporal than the names of its
	// calls.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(serving)))
	healthy := health.NewServer()
	healthy.SetServingStatus("temporal.api.workflowservice.v1.WorkflowService", grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(server, healthy)
	workflowservice.RegisterWorkflowServiceServer(server, workflowservice.UnimplementedWorkflowServiceServer{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	made, err := options(config.Temporal{
		Address: listener.Addr().String(), TLS: config.TemporalTLS{Cert: path("agent"), Key: path("agent"), CA: path("servers")},
	}, discard(), "me", nil)
	require.NoError(t, err)

	// Each question is asked over a connection of its own.
	ask := func() error {
		lazy, err := client.NewLazyClient(made)
		require.NoError(t, err)
		defer lazy.Close()
		_, err = lazy.CheckHealth(t.Context(), &client.CheckHealthRequest{})
		return err
	}
	require.NoError(t, ask())

	issue(newer, identity.Server, "temporal")
	trust("clients", newer)
	trust("servers", newer)
	issue(newer, identity.Host, "agent")
	require.NoError(t, ask())

	// Another host's certificate is of the same authority and has the address.
	issue(newer, identity.Host, "temporal")
	require.ErrorContains(t, ask(), "and that is not a server's")
}

// authority makes an authority in a new directory.
func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	return a
}
