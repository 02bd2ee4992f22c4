package pki

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// ServerOptions say how a server proves who it is, and whom it serves.
type ServerOptions struct {
	Files Files // Cert and Key must be set

	// ClientAuth says how certificates of clients are treated; without Files.CA
	// none are requested.
	ClientAuth tls.ClientAuthType

	// TrustDomain is that of the identities that Allow gets.
	TrustDomain string
	// Allow is asked in the handshake about each client that shows a certificate;
	// an error ends the connection. Nil lets every client in whose certificate an
	// authority has signed, whomever it names.
	Allow func(identity.Identity) error

	// Refuse is asked in the handshake about the verified certificate of each client; an
	// error ends the connection. Nil refuses none.
	Refuse func(*x509.Certificate) error

	// Enrolls is the directory of an authority by which clients enroll here; empty
	// for none. Who says in the handshake that this is what it wants is let in
	// without a certificate, or with any, and is shown that of the authority: nothing
	// else may be served to whom has no verified one.
	Enrolls string

	// MinVersion is the oldest version of TLS; zero means 1.3.
	MinVersion uint16

	// Log is told of replaced files that cannot be used; nil for nobody.
	Log *slog.Logger
}

// Server returns the TLS configuration of a server. Certificate, key and
// authorities that are replaced on disk are used from the next connection on. No
// session is resumed, so that each connection is one that was verified now. The
// error is of kind ErrInvalid.
func Server(o ServerOptions) (*tls.Config, error) {
	pair, err := o.Files.pair(o.Log)
	if err != nil {
		return nil, err
	}
	pool, err := o.Files.pool(o.Log)
	if err != nil {
		return nil, err
	}

	config := &tls.Config{
		MinVersion:             max(cmp.Or(o.MinVersion, tls.VersionTLS13), tls.VersionTLS12),
		NextProtos:             []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.current() },
	}
	if pool == nil {
		return config, nil
	}

	config.ClientAuth = o.ClientAuth
	if config.ClientCAs, err = pool.current(); err != nil {
		return nil, err
	}

	if o.Allow != nil || o.Refuse != nil {
		config.VerifyConnection = o.verify
	}

	// The copy is made before GetConfigForClient is set, so that it has none.
	perConnection := config.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if o.Enrolls != "" && slices.Contains(hello.SupportedProtos, enrollProtocol) {
			return enrolling(perConnection, pair, o.Enrolls), nil
		}

		authorities, err := pool.current()
		if err != nil {
			return nil, err
		}

		current := perConnection.Clone()
		current.ClientCAs = authorities
		return current, nil
	}

	return config, nil
}

// verify decides about a client whose certificate was verified.
func (o ServerOptions) verify(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil // ClientAuth has decided whether it needs one
	}

	if o.Allow != nil {
		who, err := identity.OfConnection(&state, o.TrustDomain)
		if err != nil {
			return err
		}
		if err := o.Allow(who); err != nil {
			return err
		}
	}

	if o.Refuse != nil {
		return o.Refuse(state.PeerCertificates[0])
	}
	return nil
}

// ClientOptions say how a client proves who it is, and which servers it trusts.
type ClientOptions struct {
	Files Files

	// TrustDomain is that of our own servers. Empty for servers that are not ours:
	// then the URIs in their certificates mean nothing.
	TrustDomain string

	// MinVersion is the oldest version of TLS; zero means 1.3.
	MinVersion uint16

	// Log is told of replaced files that cannot be used; nil for nobody.
	Log *slog.Logger
}

// Client makes the TLS configurations of a client. It may be used concurrently.
type Client struct {
	pair        *reloaded[*tls.Certificate] // nil for a client without a certificate
	pool        *reloaded[*x509.CertPool]   // nil for the authorities of the system
	trustDomain string
	minVersion  uint16
	enrolls     bool // says so to the server
}

// NewClient reads the files. The error is of kind ErrInvalid.
func NewClient(o ClientOptions) (*Client, error) {
	c := &Client{trustDomain: o.TrustDomain, minVersion: cmp.Or(o.MinVersion, tls.VersionTLS13)}
	var err error
	if o.Files.Cert != "" {
		if c.pair, err = o.Files.pair(o.Log); err != nil {
			return nil, err
		}
	}

	c.pool, err = o.Files.pool(o.Log)
	return c, err
}

// Config returns the configuration for the next connection. A certificate that
// is replaced on disk is used by it, too; authorities only by the next Config,
// because crypto/tls has no way to exchange those of a client.
//
// A server's certificate must be for the name or address that the client asked
// for, as always. If it also names an identity, then it must be that of a server:
// the certificate of a host or of a person is none, whatever name is in it.
func (c *Client) Config() *tls.Config {
	config := &tls.Config{MinVersion: max(c.minVersion, tls.VersionTLS12), RootCAs: c.authorities()}
	if c.pair != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.pair.current() }
	}

	if c.enrolls {
		config.NextProtos = []string{enrollProtocol, "http/1.1"}
	}

	if c.trustDomain == "" {
		return config
	}

	config.VerifyConnection = func(state tls.ConnectionState) error { return checkServer(&state, c.trustDomain) }
	return config
}

// authorities returns those of now; nil for the system's.
func (c *Client) authorities() *x509.CertPool {
	if c.pool == nil {
		return nil
	}

	pool, err := c.pool.current()
	if err != nil {
		return x509.NewCertPool() // cannot be: NewClient has read them, and current keeps them
	}
	return pool
}

// Transport returns a transport like base for connections with this client's
// certificate and authorities. Each request goes over a connection whose server
// the authorities of its start have signed; requests in flight go on after these
// were replaced. A client without a certificate shows those of base. base is not used any more by its caller.
func (c *Client) Transport(base *http.Transport) http.RoundTripper {
	return &transport{client: c, base: base}
}

// transport is an http.Transport that is made anew when the authorities were
// replaced.
type transport struct {
	client *Client
	base   *http.Transport // the pattern, never used itself

	mu      sync.Mutex // guards the fields below
	now     *http.Transport
	trusted *x509.CertPool // by now
}

// RoundTrip sends the request over a connection with the certificates of now.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.current().RoundTrip(r)
}

// CloseIdleConnections closes the connections that nobody uses. http.Client calls
// it.
func (t *transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.CloseIdleConnections()
	}
}

// current returns the transport that trusts the authorities of now.
func (t *transport) current() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()

	config := t.client.Config()
	if t.now != nil && config.RootCAs == t.trusted {
		return t.now
	}
	if t.now != nil {
		t.now.CloseIdleConnections()
	}

	t.now, t.trusted = t.base.Clone(), config.RootCAs
	if own := t.base.TLSClientConfig; own != nil && t.client.pair == nil {
		config.Certificates = own.Certificates
	}
	t.now.TLSClientConfig = config
	return t.now
}
