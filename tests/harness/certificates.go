package harness

import (
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Certificates are what the processes of a cluster prove by who they are. An
// authority of the test's own signs them.
type Certificates struct {
	dir       string
	authority *pki.Authority
}

// newCertificates makes an authority below the directory.
func newCertificates(t testing.TB, dir string) *Certificates {
	t.Helper()
	authority, err := pki.Make(filepath.Join(dir, "authority"))
	require.NoError(t, err)
	return &Certificates{dir: dir, authority: authority}
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
// connects to the cluster's Temporal; nil where the cluster has no certificates.
func (c *Cluster) TemporalTLS(t testing.TB, role identity.Role, name string) *tls.Config {
	t.Helper()
	if c.Certificates == nil {
		return nil
	}
	return c.Certificates.Client(t, role, name)
}

// certified returns what a process needs in its environment to show the
// certificate of its identity to Temporal.
func (c *Cluster) certified(t testing.TB, role identity.Role, name string) []string {
	t.Helper()
	if c.Certificates == nil {
		return nil
	}
	return settings("CYBORG_TEMPORAL_TLS", "CA", c.Certificates.Of(t, role, name))
}

// useCertificates makes the authority of the cluster, and a client for the
// health of its conductors.
func (c *Cluster) useCertificates(t testing.TB) {
	t.Helper()
	dir := filepath.Join(c.dir, "certificates")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	c.Certificates = newCertificates(t, dir)
	c.health = &http.Client{Transport: &http.Transport{TLSClientConfig: c.Certificates.Client(t, identity.Reader, "health")}}
}
