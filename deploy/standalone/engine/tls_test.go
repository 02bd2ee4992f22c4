package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// newAuthority returns a new authority with its files.
func newAuthority(t testing.TB) *pki.Authority {
	t.Helper()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	return authority
}

// pool returns what trusts the authorities.
func pool(authorities ...*pki.Authority) *x509.CertPool {
	trusted := x509.NewCertPool()
	for _, authority := range authorities {
		trusted.AddCert(authority.Certificate())
	}
	return trusted
}

// files writes a new certificate for temporal.test, its key and the authority
// into the directory.
func files(t testing.TB, authority *pki.Authority, dir string) pki.Files {
	t.Helper()
	cert, key, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "temporal"}, DNS: []string{"temporal.test"},
	})
	require.NoError(t, err)

	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path+".new", content, 0o600))
		require.NoError(t, os.Rename(path+".new", path))
		return path
	}
	return pki.Files{
		Key: write("key", key), Cert: write("cert", cert), CA: write("ca", pki.EncodeCertificate(authority.Certificate())),
	}
}

// connect asks the frontend something with a certificate of the authority from,
// if there is one.
func connect(t *testing.T, e *engine.Engine, server, from *pki.Authority) error {
	t.Helper()
	config := &tls.Config{RootCAs: pool(server), ServerName: "temporal.test", MinVersion: tls.VersionTLS12}
	within := time.Minute
	if from != server {
		within = 2 * time.Second // until the client gives up
	}
	if from != nil {
		cert, key, err := from.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Server, Name: "s1"}})
		require.NoError(t, err)
		made, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		config.Certificates = []tls.Certificate{made}
	}

	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: e.FrontendAddress(), Namespace: e.Namespace(), Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{TLS: config, GetSystemInfoTimeout: within},
	})
	if err == nil {
		c.Close()
	}
	return err
}

// TestEngineBeyondLoopback: also on an address that other machines can reach, an
// engine takes only clients with a certificate of its authority. A replaced
// authority and certificate count without a restart, and no certificate of this
// process is good for a client outside.
func TestEngineBeyondLoopback(t *testing.T) {
	t.Parallel()
	_, server := database(t)
	ours, foreign, next, dir := newAuthority(t), newAuthority(t), newAuthority(t), t.TempDir()
	cfg := config(t, server)
	cfg.Listen, cfg.TLS = fmt.Sprintf("0.0.0.0:%d", porttest.Ports(t, 1)[0]), files(t, ours, dir)

	e := start(t, cfg, t.Output())
	require.True(t, strings.HasPrefix(e.FrontendAddress(), "127.0.0.1:"))
	runGreeting(t, e, "inside")
	requireUI(t, e)

	require.NoError(t, connect(t, e, ours, ours))
	require.Error(t, connect(t, e, ours, nil))
	require.Error(t, connect(t, e, ours, foreign))

	files(t, next, dir)
	require.NoError(t, connect(t, e, next, next))
	require.Error(t, connect(t, e, next, ours))
	runGreeting(t, e, "inside again")
	requireUI(t, e)
}

// TestNoPortWithoutCertificate: whatever port of this process a user of the
// machine finds, none answers a call without a certificate, nor with one for the
// frontend that is shown elsewhere. It runs alone: other tests have services without
// certificates in this process.
func TestNoPortWithoutCertificate(t *testing.T) { //nolint:paralleltest // see above
	g := startGuarded(t)
	cert, key, err := g.authority.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "lab", Role: identity.Admin, Name: "ann"}})
	require.NoError(t, err)
	admin, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)

	ports := listening(t)
	require.GreaterOrEqual(t, len(ports), 4, "Temporal has three services that listen, and a Web UI")
	for _, port := range ports {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		for name, creds := range map[string]credentials.TransportCredentials{
			"plain": insecure.NewCredentials(),
			"TLS":   credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}),
			"with the name of this process": credentials.NewTLS(&tls.Config{
				InsecureSkipVerify: true, ServerName: "temporal.cyborg.internal", Certificates: []tls.Certificate{admin},
			}),
		} {
			require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, health(t, address, creds), "%s, %s", address, name)
		}

		// The certificate of an admin is good at the frontend, and nowhere else.
		if address != g.FrontendAddress() {
			creds := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{admin}})
			require.Contains(t, []codes.Code{codes.Unavailable, codes.DeadlineExceeded}, health(t, address, creds), address)
		}
	}

	creds := credentials.NewTLS(&tls.Config{RootCAs: pool(g.authority), ServerName: "temporal.test", Certificates: []tls.Certificate{admin}})
	require.Equal(t, codes.OK, healthWithin(t, 5*time.Minute, g.FrontendAddress(), creds, grpc.WaitForReady(true)))
}

// health returns how a call of the service's health ends.
func health(t *testing.T, address string, creds credentials.TransportCredentials) codes.Code {
	t.Helper()
	return healthWithin(t, 20*time.Second, address, creds)
}

// healthWithin is health with another limit, and with options of the call.
func healthWithin(t *testing.T, limit time.Duration, address string, creds credentials.TransportCredentials, options ...grpc.CallOption) codes.Code {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	defer conn.Close()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	request := &grpc_health_v1.HealthCheckRequest{Service: "temporal.api.workflowservice.v1.WorkflowService"}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, request, options...)
	return status.Code(err)
}

// listening returns the TCP ports on which this process listens.
func listening(t *testing.T) []int {
	t.Helper()
	ours := map[string]bool{} // the inodes of this process's sockets
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, file := range open {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", file.Name()))
		if err == nil && strings.HasPrefix(target, "socket:[") {
			ours[strings.Trim(strings.TrimPrefix(target, "socket:"), "[]")] = true
		}
	}

	// proc_net_tcp(5): the local address in hexadecimal digits is the second column,
	// the state the fourth, where 0A is LISTEN, and the inode the tenth.
	table, err := os.Open("/proc/self/net/tcp")
	require.NoError(t, err)
	defer table.Close()

	var ports []int
	for lines := bufio.NewScanner(table); lines.Scan(); {
		columns := strings.Fields(lines.Text())
		if len(columns) < 10 || columns[3] != "0A" || !ours[columns[9]] {
			continue
		}
		var ip, port int
		_, err := fmt.Sscanf(columns[1], "%X:%X", &ip, &port)
		require.NoError(t, err)
		ports = append(ports, port)
	}
	return ports
}

// TestCertificatesAreRefused: certificates that cannot work are refused at the
// start, with the reason.
func TestCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	good, other := files(t, ours, t.TempDir()), files(t, ours, t.TempDir())

	cert, key, err := ours.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "lab", Role: identity.Admin, Name: "ann"}})
	require.NoError(t, err)
	admin := filepath.Join(t.TempDir(), "admin.pem")
	require.NoError(t, os.WriteFile(admin, append(cert, key...), 0o600))

	for want, given := range map[string]pki.Files{
		"is the certificate of spiffe://lab/admin/ann, and this process needs one of spiffe://lab/server/NAME": {Cert: admin, Key: admin, CA: good.CA},
		"needs all of a certificate, a key and a client CA":                                                    {},
		"needs all of a certificate": {Cert: good.Cert},
		"cannot be used":             {Cert: good.Cert, Key: other.Key, CA: good.CA},
		"holds no certificate":       {Cert: good.Cert, Key: good.Key, CA: good.Key},
	} {
		_, err := engine.Start(t.Context(), engine.Config{Listen: "127.0.0.1:0", UIListen: "127.0.0.1:0", TLS: given}, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, want)
	}
}
