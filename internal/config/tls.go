package config

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Listener returns the TLS configuration of a listener, or nil if no
// certificate is configured. If ClientCA is set, auth selects how certificates
// of clients are treated; otherwise none are requested. A certificate that is
// replaced on disk is used from the next connection on. The error is of kind
// ErrInvalid.
func (t ServerTLS) Listener(auth tls.ClientAuthType) (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil //nolint:nilnil // no TLS is a configuration, too
	}

	// Loading the pair now reports a bad certificate at the start, and not at the
	// first connection.
	pair := &keyPair{cert: t.Cert, key: t.Key}
	if _, err := pair.load(); err != nil {
		return nil, err
	}

	listener := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.load() },
	}

	if t.ClientCA != "" {
		pool, err := authorities(t.ClientCA)
		if err != nil {
			return nil, err
		}
		listener.ClientCAs, listener.ClientAuth = pool, auth
	}

	return listener, nil
}

// Names returns the names and addresses in the listener's certificate, by which
// callers may address it; none without a certificate that can be read.
func (t ServerTLS) Names() []string {
	if t.Cert == "" {
		return nil
	}

	loaded, err := (&keyPair{cert: t.Cert, key: t.Key}).load()
	if err != nil || loaded.Leaf == nil {
		return nil // Listener says what is wrong with it
	}

	names := slices.Clone(loaded.Leaf.DNSNames)
	for _, ip := range loaded.Leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// Client returns the TLS configuration for connections to a Cyborg server. A
// certificate that is replaced on disk is used from the next connection on. The
// error is of kind ErrInvalid.
func (t ClientTLS) Client() (*tls.Config, error) {
	client := &tls.Config{MinVersion: tls.VersionTLS13}

	if t.Cert != "" {
		pair := &keyPair{cert: t.Cert, key: t.Key}
		if _, err := pair.load(); err != nil {
			return nil, err
		}
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.load() }
	}

	if t.CA != "" {
		pool, err := authorities(t.CA)
		if err != nil {
			return nil, err
		}
		client.RootCAs = pool
	}

	return client, nil
}

// keyPair is a certificate and its private key in two files. It reads them
// again after they have changed, so that a renewed certificate needs no
// restart.
type keyPair struct {
	cert, key string

	mu       sync.Mutex       // guards the fields below; handshakes run in parallel
	loaded   *tls.Certificate // nil until a pair was read
	modified [2]time.Time     // of the two files, when loaded was read
}

// load returns the pair, and reads it again if a file has changed. If the new
// files cannot be used, load returns the last good pair: somebody may be
// replacing the two files one after the other, and until then they do not
// match. The next call tries again.
func (p *keyPair) load() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	var modified [2]time.Time
	for i, path := range []string{p.cert, p.key} {
		if info, err := os.Stat(path); err == nil {
			modified[i] = info.ModTime()
		}
	}

	if p.loaded != nil && modified == p.modified {
		return p.loaded, nil
	}

	pair, err := tls.LoadX509KeyPair(p.cert, p.key)
	switch {
	case err == nil:
		p.loaded, p.modified = &pair, modified
	case p.loaded == nil:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the certificate %s and the key %s cannot be used: %w", p.cert, p.key, err)
	}

	return p.loaded, nil
}

// Authorities returns the authorities whose certificates OpenStack's services
// may show. Nil means those of the system. The error is of kind ErrInvalid.
func (o OpenStack) Authorities() (*x509.CertPool, error) {
	if o.CAFile == "" {
		return nil, nil //nolint:nilnil // the system's have no pool of their own
	}

	return authorities(o.CAFile)
}

// authorities reads a file of certificates in PEM format.
func authorities(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the authorities' certificates cannot be read: %w", err)
	}

	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the file %s holds no certificate in PEM format", path)
	}

	return pool, nil
}
