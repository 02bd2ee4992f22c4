package engine

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/temporalio/ui-server/v2/server/config"
	"go.temporal.io/server/common/rpc/encryption"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/temporalauth"
	trust "github.com/cyborg-project/cyborg/internal/identity"
)

// TLS configures mutual TLS on the frontend. All three files are PEM, and all
// are needed. The identity in a client's certificate says what it may do.
type TLS struct {
	CertFile string // the server's certificate, followed by its intermediates
	KeyFile  string // the private key of the certificate
	// ClientCAFile holds the authorities that sign the certificates of clients.
	ClientCAFile string
}

// on reports whether TLS is configured.
func (t TLS) on() bool { return t != TLS{} }

// identity holds the TLS configurations of everything in the engine. Temporal's
// own services and the clients in this process show a certificate that is made
// at each start and whose key never leaves the process, and the Web UI another
// one. So operators do not have to provide a client certificate.
type identity struct {
	server    *tls.Config // for the frontend
	internode *tls.Config // for Temporal's other services, which accept only this process
	client    *tls.Config // for clients in this process
	ui        config.TLS  // for the Web UI, which is a client that only reads

	self    [sha256.Size]byte // checksum of the certificate of clients in this process
	sealKey []byte            // see temporalauth
}

var _ encryption.TLSConfigProvider = (*identity)(nil)

// load reads the files. It returns nil if TLS is not configured. The error is
// of kind ErrInvalid if a file is missing or cannot be used.
func (t TLS) load(cfg Config) (*identity, error) {
	if !t.on() {
		return nil, nil //nolint:nilnil // no TLS is a configuration, too
	}

	if t.CertFile == "" || t.KeyFile == "" || t.ClientCAFile == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "TLS for Temporal needs all of a certificate, a key and a client CA")
	}

	server, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's certificate %s and key %s cannot be used: %w", t.CertFile, t.KeyFile, err)
	}
	name, err := nameOf(server.Leaf)
	if err != nil {
		return nil, err
	}

	authorities, err := os.ReadFile(t.ClientCAFile)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's client CA cannot be read: %w", err)
	}
	mayConnect := x509.NewCertPool()
	if !mayConnect.AppendCertsFromPEM(authorities) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's client CA %s holds no certificate", t.ClientCAFile)
	}

	sealKey, err := sealKeyOf(server)
	if err != nil {
		return nil, err
	}

	inside, _, err := ephemeral(nil)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot make a certificate: %w", err)
	}
	mayConnect.AddCert(inside.Leaf)

	// Whatever the UI sends, Temporal refuses what its role may not do.
	who := trust.Identity{TrustDomain: cfg.TrustDomain, Role: trust.Reader, Name: "temporal-ui"}
	if cfg.UIWrites {
		who.Role = trust.Admin
	}
	ui, keyPEM, err := ephemeral(who.URI())
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "cannot make a certificate: %w", err)
	}
	mayConnect.AddCert(ui.Leaf)

	onlyUs := x509.NewCertPool()
	onlyUs.AddCert(inside.Leaf)
	onlyServer := x509.NewCertPool()
	onlyServer.AddCert(server.Leaf)

	encode := base64.StdEncoding.EncodeToString
	return &identity{
		server:    serverConfigTLS(server, mayConnect),
		internode: serverConfigTLS(server, onlyUs),
		client: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{inside}, RootCAs: onlyServer, ServerName: name,
		},
		ui: config.TLS{
			CertData: encode(certificatePEM(ui.Leaf)), KeyData: encode(keyPEM), CaData: encode(certificatePEM(server.Leaf)),
			ServerName: name, EnableHostVerification: true,
		},
		self: sha256.Sum256(inside.Leaf.Raw), sealKey: sealKey,
	}, nil
}

// sealKeyOf derives the key that seals the tokens of steps from the server's
// private key. So it is the same after a restart, and nobody has to keep another
// secret. Where the server gets a new key, steps that were polled before are
// given out once more.
func sealKeyOf(server tls.Certificate) ([]byte, error) {
	private, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the key of Temporal's certificate cannot be used: %w", err)
	}
	return hkdf.Key(sha256.New, private, nil, "cyborg: seal of task tokens", temporalauth.SealKeyLength)
}

// serverConfigTLS returns the configuration of a listener that requires a
// certificate of the authorities in clients.
func serverConfigTLS(cert tls.Certificate, clients *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}
}

// nameOf returns a name that the certificate is valid for. Clients in this
// process connect to an IP address and need to know which name to expect.
func nameOf(cert *x509.Certificate) (string, error) {
	switch {
	case len(cert.DNSNames) > 0:
		return strings.Replace(cert.DNSNames[0], "*", "temporal", 1), nil
	case len(cert.IPAddresses) > 0:
		return cert.IPAddresses[0].String(), nil
	default:
		return "", cyborg.Errorf(cyborg.ErrInvalid, "Temporal's certificate (%s) names neither a host nor an IP address: make one with a subject alternative name", cert.Subject)
	}
}

// ephemeral makes a certificate for clients in this process, with the URI if it
// is not nil, and also returns its key in PEM. The certificate is valid for 20 years, which is longer than
// the process runs.
func ephemeral(uri *url.URL) (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	var uris []*url.URL
	if uri != nil {
		uris = append(uris, uri)
	}

	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		URIs:         uris,
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "cyborg-standalone"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(20, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "cyborg-standalone"}}, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	cert := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), nil
}

// certificatePEM returns the certificate in PEM.
func certificatePEM(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// clientConfig returns the configuration for clients in this process, or nil
// without TLS.
func (id *identity) clientConfig() *tls.Config {
	if id == nil {
		return nil
	}
	return id.client.Clone()
}

// GetInternodeServerConfig returns the configuration of services that only
// other services connect to.
func (id *identity) GetInternodeServerConfig() (*tls.Config, error) { return id.internode, nil }

// GetInternodeClientConfig returns the configuration that services use to
// connect to each other.
func (id *identity) GetInternodeClientConfig() (*tls.Config, error) { return id.client, nil }

// GetFrontendServerConfig returns the configuration of the frontend.
func (id *identity) GetFrontendServerConfig() (*tls.Config, error) { return id.server, nil }

// GetFrontendClientConfig returns the configuration that Temporal's own workers
// use to connect to the frontend.
func (id *identity) GetFrontendClientConfig() (*tls.Config, error) { return id.client, nil }

// GetRemoteClusterClientConfig returns the configuration for connections to
// other clusters. There are none, but Temporal also connects to its own cluster
// with it.
func (id *identity) GetRemoteClusterClientConfig(string) (*tls.Config, error) { return id.client, nil }

// GetExpiringCerts returns nothing: it only serves metrics that are not
// collected here.
func (id *identity) GetExpiringCerts(time.Duration) (expiring, expired encryption.CertExpirationMap, err error) {
	return nil, nil, nil
}
