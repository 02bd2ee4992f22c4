package config

import (
	"crypto/tls"
	"crypto/x509"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Files returns where the listener's certificates are.
func (t ServerTLS) Files() pki.Files { return pki.Files{Cert: t.Cert, Key: t.Key, CA: t.ClientCA} }

// Files returns where the certificates for Temporal are.
func (t TemporalTLS) Files() pki.Files { return pki.Files{Cert: t.Cert, Key: t.Key, CA: t.CA} }

// CheckCertificates returns an error of kind ErrInvalid where the process could not
// use the certificates, keys and authorities in its files: Load looks only whether
// the files can be read.
func (c *Config) CheckCertificates(process Process) error {
	type section struct {
		setting string
		files   pki.Files
		own     identity.Identity // what the certificate must say, if anything; zero for no demand
	}
	server := identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Server}

	var used []section
	if process == ProcessServer || process == ProcessStandalone {
		used = append(used, section{"api.tls", c.API.TLS.Files(), identity.Identity{}}, section{"agent_endpoint.tls", c.AgentEndpoint.TLS.Files(), server})
	}
	if process == ProcessStandalone || process == ProcessTemporal {
		used = append(used, section{"standalone.temporal_tls", c.Standalone.TemporalTLS.Files(), identity.Identity{Role: identity.Server}})
	}
	if process == ProcessAgent {
		host := identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Host, Name: c.Agent.Host}
		used = append(used, section{"agent.tls", c.Agent.TLS.Files(), host})
	}
	if process == ProcessAgent || process == ProcessServer {
		used = append(used, section{"temporal.tls", c.Temporal.TLS.Files(), identity.Identity{}})
	}

	for _, one := range used {
		if err := one.files.Check(); err != nil {
			return cyborg.Errorf(cyborg.ErrInvalid, "%s: %w", one.setting, err)
		}
		if one.own == (identity.Identity{}) {
			continue
		}
		if err := one.files.CheckOwn(one.setting+".cert", one.own); err != nil {
			return err
		}
	}
	return nil
}

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
