package engine_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority returns a new authority.
func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{cert: cert, key: key}
}

// sign returns a certificate for the names and its key, both as PEM.
func (a authority) sign(t *testing.T, usage x509.ExtKeyUsage, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	who, err := url.Parse("spiffe://cyborg/server/test")
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		URIs:         []*url.URL{who},
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, a.cert, private.Public(), a.key)
	require.NoError(t, err)

	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// pem returns the authority's own certificate.
func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// files writes the PEM of each into a file.
func files(t *testing.T, cert, key, ca []byte) engine.TLS {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	return engine.TLS{CertFile: write("cert", cert), KeyFile: write("key", key), ClientCAFile: write("ca", ca)}
}

// TestEngineBeyondLoopbackNeedsCertificates: an engine that other machines can
// reach takes only clients with a certificate of its authority.
func TestEngineBeyondLoopbackNeedsCertificates(t *testing.T) {
	t.Parallel()
	_, server := database(t)

	ours := newAuthority(t)
	cert, key := ours.sign(t, x509.ExtKeyUsageServerAuth, "temporal.test")
	cfg := config(server)
	cfg.Listen = "0.0.0.0:0"
	cfg.TLS = files(t, cert, key, ours.pem())

	e := start(t, cfg, t.Output())
	require.True(t, strings.HasPrefix(e.FrontendAddress(), "127.0.0.1:"))
	runGreeting(t, e, "inside")
	requireUI(t, e)

	servers := x509.NewCertPool()
	servers.AddCert(ours.cert)

	connect := func(within time.Duration, certificates ...tls.Certificate) error {
		c, err := client.DialContext(t.Context(), client.Options{
			HostPort: e.FrontendAddress(), Namespace: e.Namespace(), Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
			ConnectionOptions: client.ConnectionOptions{
				TLS:                  &tls.Config{RootCAs: servers, ServerName: "temporal.test", Certificates: certificates, MinVersion: tls.VersionTLS12},
				GetSystemInfoTimeout: within,
			},
		})
		if err == nil {
			c.Close()
		}
		return err
	}

	pair := func(from authority) tls.Certificate {
		certificate, err := tls.X509KeyPair(from.sign(t, x509.ExtKeyUsageClientAuth))
		require.NoError(t, err)
		return certificate
	}

	require.NoError(t, connect(time.Minute, pair(ours)))
	require.Error(t, connect(2*time.Second))
	require.Error(t, connect(2*time.Second, pair(newAuthority(t))))
}

// TestCertificatesAreRefused: certificates that cannot work are refused at the
// start, with the reason.
func TestCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	cert, key := ours.sign(t, x509.ExtKeyUsageServerAuth, "temporal.test")
	nameless, namelessKey := ours.sign(t, x509.ExtKeyUsageServerAuth)

	for want, given := range map[string]engine.TLS{
		"needs all of a certificate, a key and a client CA": {CertFile: "cert"},
		"cannot be used":                         files(t, cert, namelessKey, ours.pem()),
		"names neither a host nor an IP address": files(t, nameless, namelessKey, ours.pem()),
		"holds no certificate":                   files(t, cert, key, key),
	} {
		_, err := engine.Start(t.Context(), engine.Config{Listen: "127.0.0.1:0", UIListen: "127.0.0.1:0", TLS: given}, slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, want)
	}
}
