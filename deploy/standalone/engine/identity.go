package engine

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"log/slog"
	"time"

	"github.com/temporalio/ui-server/v2/server/config"
	"go.temporal.io/server/common/rpc/encryption"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/temporalauth"
	trust "github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// insideName is the name by which this process asks the frontend for the
// certificate that only this process trusts. No client outside has a certificate
// that is good there. The domain .internal is nobody's.
const insideName = "temporal.cyborg.internal"

// identity holds the certificates of the engine. Those of the frontend for
// clients outside are in files. All others are made at each start, and their keys
// never leave the process: Temporal's own parts show one, the Web UI another, and
// each client in this process one with its identity.
type identity struct {
	frontend *tls.Config // of the frontend's listener
	services *tls.Config // of the listeners of Temporal's other services, which accept only this process
	self     *tls.Config // of Temporal's own parts as clients

	ui     config.TLS     // of the Web UI, which is a client that only reads
	inside *pki.Authority // signs for clients in this process
	server *x509.CertPool // those clients trust it

	checksum [sha256.Size]byte // of the certificate of Temporal's own parts
	sealKey  []byte            // see temporalauth
}

var _ encryption.TLSConfigProvider = (*identity)(nil)

// load reads the files and makes the certificates of this process. The error is
// of kind ErrInvalid if a file is missing or cannot be used.
func load(cfg Config, log *slog.Logger) (*identity, error) {
	files := cfg.TLS
	if files.Cert == "" || files.Key == "" || files.CA == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "TLS for Temporal needs all of a certificate, a key and a client CA")
	}

	options := pki.ServerOptions{Files: files, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12, Log: log}
	if cfg.Revocations != nil {
		options.Refuse = cfg.Revocations.Check
	}
	outside, err := pki.Server(options)
	if err != nil {
		return nil, err
	}

	id := &identity{server: x509.NewCertPool()}
	if id.sealKey, err = sealKeyOf(files); err != nil {
		return nil, err
	}

	// The authority of Temporal's own parts signs nothing else, so that only they
	// are clients of its services.
	own, err := pki.Temporary()
	if err != nil {
		return nil, err
	}
	if id.inside, err = pki.Temporary(); err != nil {
		return nil, err
	}
	id.server.AddCert(own.Certificate())

	self, err := pair(own, pki.Leaf{
		Identity: trust.Identity{TrustDomain: cfg.TrustDomain, Role: trust.Server, Name: "temporal"}, DNS: []string{insideName},
	})
	if err != nil {
		return nil, err
	}
	id.checksum = sha256.Sum256(self.Leaf.Raw)
	id.self = id.clientWith(self)

	id.services = listenerTLS(self, own)
	id.frontend = outside.Clone()
	id.frontend.GetConfigForClient = chooseByName(listenerTLS(self, own, id.inside), outside)

	return id, id.addUI(cfg, own)
}

// sealKeyOf derives the key that seals the tokens of steps from the server's
// private key. So it is the same after a restart, and nobody has to keep another
// secret. Where the server gets a new key, steps that were polled before are
// given out once more.
func sealKeyOf(files pki.Files) ([]byte, error) {
	server, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Temporal's certificate %s and key %s cannot be used: %w", files.Cert, files.Key, err)
	}

	// Clients take no Temporal that shows the certificate of a host or a person.
	if err := trust.CheckOwn("Temporal's certificate "+files.Cert, server.Leaf, trust.Identity{Role: trust.Server}); err != nil {
		return nil, err
	}

	private, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the key of Temporal's certificate cannot be used: %w", err)
	}
	return hkdf.Key(sha256.New, private, nil, "cyborg: seal of task tokens", temporalauth.SealKeyLength)
}

// pair makes a certificate with its key.
func pair(authority *pki.Authority, leaf pki.Leaf) (tls.Certificate, error) {
	certificate, key, err := authority.IssuePair(leaf)
	if err != nil {
		return tls.Certificate{}, err
	}

	made, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tls.Certificate{}, cyborg.Errorf(cyborg.ErrInternal, "a certificate that was just made cannot be used: %w", err)
	}
	return made, nil
}

// listenerTLS returns the configuration of a listener that takes only clients
// with a certificate of the authorities.
func listenerTLS(server tls.Certificate, clients ...*pki.Authority) *tls.Config {
	pool := x509.NewCertPool()
	for _, authority := range clients {
		pool.AddCert(authority.Certificate())
	}

	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, SessionTicketsDisabled: true,
	}
}

// chooseByName has clients of this process and those outside get a configuration
// each. Neither's certificates are good for the other's.
func chooseByName(inside, outside *tls.Config) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if hello.ServerName == insideName {
			return inside, nil
		}
		return outside.GetConfigForClient(hello)
	}
}

// clientWith returns the configuration of a client in this process; nil where
// Temporal speaks plain gRPC.
func (id *identity) clientWith(certificate tls.Certificate) *tls.Config {
	if unguarded {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, RootCAs: id.server, ServerName: insideName,
	}
}

// client returns the configuration of a client in this process with an identity.
func (id *identity) client(who trust.Identity) (*tls.Config, error) {
	certificate, err := pair(id.inside, pki.Leaf{Identity: who})
	if err != nil {
		return nil, err
	}
	return id.clientWith(certificate), nil
}

// refuse returns what is asked about the certificate of a client. Those in this
// process have theirs from here, and no revocation is about them.
func (id *identity) refuse(outside Revocations) func(*x509.Certificate) error {
	if outside == nil {
		return nil
	}
	return func(certificate *x509.Certificate) error {
		if bytes.Equal(certificate.AuthorityKeyId, id.inside.Certificate().SubjectKeyId) {
			return nil
		}
		return outside.Check(certificate)
	}
}

// addUI makes the certificate of the Web UI. Whatever the UI sends, Temporal
// refuses what its role may not do.
func (id *identity) addUI(cfg Config, own *pki.Authority) error {
	if unguarded {
		return nil
	}

	who := trust.Identity{TrustDomain: cfg.TrustDomain, Role: trust.Reader, Name: "temporal-ui"}
	if cfg.UIWrites {
		who.Role = trust.Admin
	}

	certificate, key, err := id.inside.IssuePair(pki.Leaf{Identity: who})
	if err != nil {
		return err
	}

	encode := base64.StdEncoding.EncodeToString
	id.ui = config.TLS{
		CertData: encode(certificate), KeyData: encode(key), CaData: encode(pki.EncodeCertificate(own.Certificate())),
		ServerName: insideName, EnableHostVerification: true,
	}
	return nil
}

// GetInternodeServerConfig returns the configuration of services that only
// other services connect to.
func (id *identity) GetInternodeServerConfig() (*tls.Config, error) { return id.services, nil }

// GetInternodeClientConfig returns the configuration that services use to
// connect to each other.
func (id *identity) GetInternodeClientConfig() (*tls.Config, error) { return id.self, nil }

// GetFrontendServerConfig returns the configuration of the frontend.
func (id *identity) GetFrontendServerConfig() (*tls.Config, error) { return id.frontend, nil }

// GetFrontendClientConfig returns the configuration that Temporal's own workers
// use to connect to the frontend.
func (id *identity) GetFrontendClientConfig() (*tls.Config, error) { return id.self, nil }

// GetRemoteClusterClientConfig returns the configuration for connections to
// other clusters. There are none, but Temporal also connects to its own cluster
// with it.
func (id *identity) GetRemoteClusterClientConfig(string) (*tls.Config, error) { return id.self, nil }

// GetExpiringCerts returns nothing: it only serves metrics that are not
// collected here.
func (id *identity) GetExpiringCerts(time.Duration) (expiring, expired encryption.CertExpirationMap, err error) {
	return nil, nil, nil
}
