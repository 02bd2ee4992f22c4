package harness

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Certificates are what processes prove by who they are.
type Certificates struct {
	dir       string
	authority *pki.Authority
}

// certificates returns the authority in a directory, which it makes if it is
// missing. The certificates that it signs go into the directory dir.
func certificates(t testing.TB, authority, dir string) *Certificates {
	t.Helper()
	made, err := pki.Make(authority)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return &Certificates{dir: dir, authority: made}
}

// Authority returns the directory of the authority.
func (c *Certificates) Authority() string { return filepath.Dir(c.authority.CertificateFile()) }

// Environ returns what a process needs in its environment to show the certificate
// of an identity to Temporal.
func (c *Certificates) Environ(t testing.TB, role identity.Role, name string) []string {
	t.Helper()
	return settings("CYBORG_TEMPORAL_TLS", "CA", c.Of(t, role, name))
}

// Of makes a certificate of the identity, for this machine's loopback address,
// and returns the files with it, its key and the authority.
func (c *Certificates) Of(t testing.TB, role identity.Role, name string) pki.Files {
	t.Helper()
	certificate, key, err := c.authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: role, Name: name}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)

	at := filepath.Join(c.dir, string(role)+"-"+name)
	files := pki.Files{Cert: at + ".crt", Key: at + ".key", CA: c.authority.CertificateFile()}
	require.NoError(t, os.WriteFile(files.Cert, certificate, 0o600))
	require.NoError(t, os.WriteFile(files.Key, key, 0o600))
	return files
}

// Client returns the TLS configuration of a client with this identity.
func (c *Certificates) Client(t testing.TB, role identity.Role, name string) *tls.Config {
	t.Helper()
	client, err := pki.NewClient(pki.ClientOptions{Files: c.Of(t, role, name), TrustDomain: identity.DefaultTrustDomain})
	require.NoError(t, err)
	return client.Config()
}

// settings are the environment variables that have a section of the
// configuration use the files; ca is the name of its option for authorities.
func settings(section, ca string, files pki.Files) []string {
	return []string{section + "_CERT=" + files.Cert, section + "_KEY=" + files.Key, section + "_" + ca + "=" + files.CA}
}

// TemporalTLS returns the TLS configuration with which a client of this identity
// connects to the cluster's Temporal.
func (c *Cluster) TemporalTLS(t testing.TB, role identity.Role, name string) *tls.Config {
	t.Helper()
	return c.Certificates.Client(t, role, name)
}

// Certificates returns those of the authority that the standalone has made at its
// first start.
func (s *Standalone) Certificates(t testing.TB) *Certificates {
	t.Helper()
	return certificates(t, filepath.Join(s.StateDir, "certificates"), filepath.Join(filepath.Dir(s.StateDir), "certificates"))
}
