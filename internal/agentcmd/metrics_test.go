package agentcmd

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestMetricsBeyondLoopback: an agent serves its metrics beyond loopback only to
// servers, admins and readers.
func TestMetricsBeyondLoopback(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	issue := func(leaf pki.Leaf) pki.Files {
		certificate, key, err := authority.IssuePair(leaf)
		require.NoError(t, err)
		path := filepath.Join(t.TempDir(), "leaf.pem")
		require.NoError(t, os.WriteFile(path, append(certificate, key...), 0o600))
		return pki.Files{Cert: path, Key: path, CA: authority.CertificateFile()}
	}
	as := func(domain string, role identity.Role) pki.Leaf {
		return pki.Leaf{Identity: identity.Identity{TrustDomain: domain, Role: role, Name: "one"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
	}

	own := issue(as("cyborg", identity.Host))
	log := slog.New(slog.DiscardHandler)
	listener, err := listenForMetrics(t.Context(), config.Agent{
		MetricsListen: "0.0.0.0:0", TLS: config.ClientTLS{Cert: own.Cert, Key: own.Key, CA: own.CA},
	}, "cyborg", log)
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- serveMetrics(t.Context(), listener, prometheus.NewRegistry(), log) }()
	t.Cleanup(func() { require.NoError(t, <-served) }) // the context of a test ends before its cleanup

	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	get := func(files pki.Files) error {
		client, err := pki.NewClient(pki.ClientOptions{Files: files})
		require.NoError(t, err)
		transport := &http.Transport{TLSClientConfig: client.Config()}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport}).Get("https://127.0.0.1:" + port + "/healthz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, "ok\n", string(text))
		return nil
	}

	for _, role := range []identity.Role{identity.Server, identity.Admin, identity.Reader} {
		require.NoError(t, get(issue(as("cyborg", role))), role)
	}
	for name, files := range map[string]pki.Files{
		"no certificate":       {CA: own.CA},
		"a host":               own,
		"a member":             issue(as("cyborg", identity.Member)),
		"another trust domain": issue(as("lab", identity.Admin)),
	} {
		require.ErrorContains(t, get(files), "remote error: tls", name)
	}
}
