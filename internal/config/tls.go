package config

import (
	"crypto/tls"
	"crypto/x509"
	"slices"

	"github.com/cyborg-project/cyborg/internal/pki"
)

// Files returns where the listener's certificates are.
func (t ServerTLS) Files() pki.Files { return pki.Files{Cert: t.Cert, Key: t.Key, CA: t.ClientCA} }

// Names returns the names and addresses in the listener's certificate, by which
// callers may address it; none without a certificate that can be read.
func (t ServerTLS) Names() []string {
	if t.Cert == "" {
		return nil
	}

	loaded, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil || loaded.Leaf == nil {
		return nil // whoever listens says what is wrong with it
	}

	names := slices.Clone(loaded.Leaf.DNSNames)
	for _, ip := range loaded.Leaf.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// Files returns where the client's certificates are.
func (t ClientTLS) Files() pki.Files { return pki.Files{Cert: t.Cert, Key: t.Key, CA: t.CA} }

// Authorities returns the authorities whose certificates OpenStack's services
// may show. Nil means those of the system. The error is of kind ErrInvalid.
func (o OpenStack) Authorities() (*x509.CertPool, error) {
	if o.CAFile == "" {
		return nil, nil //nolint:nilnil // the system's have no pool of their own
	}

	return pki.ReadPool(o.CAFile)
}
