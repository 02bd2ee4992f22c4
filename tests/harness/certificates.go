package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Certificates are what processes prove by who they are.
type Certificates struct {
	dir string
	ca  string // file with the authorities that everybody trusts

	mu        sync.Mutex // guards the fields below
	authority *pki.Authority
	issued    map[string]identity.Identity // by the beginning of the names of their files
	former    tls.Certificate              // of the authority before this one; none while it is the first
	replaced  int
}

// certificates returns the authority in a directory, which it makes if it is
// missing. The certificates that it signs go into the directory dir.
func certificates(t testing.TB, authority, dir string) *Certificates {
	t.Helper()
	made, err := pki.Make(authority)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return &Certificates{dir: dir, ca: made.CertificateFile(), authority: made, issued: map[string]identity.Identity{}}
}

// Authority returns the directory of the authority.
func (c *Certificates) Authority() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return filepath.Dir(c.authority.CertificateFile())
}

// Dir returns the directory with the certificates that it has signed, and their keys.
func (c *Certificates) Dir() string { return c.dir }

// ownCA gives everybody a file of its own with the authorities, which can be
// replaced, instead of that of the authority. It comes before the first
// certificate.
func (c *Certificates) ownCA() error {
	text, err := os.ReadFile(c.ca)
	if err != nil {
		return err
	}
	c.ca = filepath.Join(c.dir, "ca.crt")
	return replaceFile(c.ca, string(text))
}

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
	c.mu.Lock()
	defer c.mu.Unlock()
	at, who := filepath.Join(c.dir, string(role)+"-"+name), identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: role, Name: name}
	require.NoError(t, c.issue(at, who))
	c.issued[at] = who
	return pki.Files{Cert: at + ".crt", Key: at + ".key", CA: c.ca}
}

// issue writes a new certificate of the identity, and its key. The caller holds mu.
func (c *Certificates) issue(at string, who identity.Identity) error {
	certificate, key, err := c.pair(who)
	if err != nil {
		return err
	}
	return errors.Join(replaceFile(at+".crt", string(certificate)), replaceFile(at+".key", string(key)))
}

// pair makes a new certificate of the identity. The caller holds mu.
func (c *Certificates) pair(who identity.Identity) (certificate, key []byte, err error) {
	return c.authority.IssuePair(pki.Leaf{Identity: who, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
}

// ReplaceAuthority has another authority take the place of the present one, while
// everything runs, as docs/operations.md says: first both count, then everybody
// gets a certificate of the new one, then the old one counts no more. It calls
// pause after each of the first two.
func (c *Certificates) ReplaceAuthority(pause func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	certificate, key, err := c.pair(identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Reader, Name: "former"})
	if err != nil {
		return err
	}
	former, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}

	c.replaced++
	next, err := pki.Make(filepath.Join(c.dir, fmt.Sprint("authority", c.replaced)))
	if err != nil {
		return err
	}
	fresh, err := os.ReadFile(next.CertificateFile())
	if err != nil {
		return err
	}
	before, err := os.ReadFile(c.ca)
	if err != nil {
		return err
	}

	if err := errors.Join(replaceFile(c.ca, string(fresh)+string(before)), pause()); err != nil {
		return err
	}
	c.authority, c.former = next, former
	for at, who := range c.issued {
		if err := c.issue(at, who); err != nil {
			return err
		}
	}
	return errors.Join(pause(), replaceFile(c.ca, string(fresh)))
}

// shutOut returns an error where a server answers who shows a certificate of the
// authority before the present one; nil where there was none.
func (c *Certificates) shutOut(ctx context.Context, url string) error {
	c.mu.Lock()
	former := c.former
	c.mu.Unlock()
	if former.Certificate == nil {
		return nil
	}

	pool, err := pki.ReadPool(c.ca)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{former}, MinVersion: tls.VersionTLS13}}
	defer transport.CloseIdleConnections()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil // as it must
	}
	return errors.Join(fmt.Errorf("%s answers the certificate of an authority that was replaced: %s", url, response.Status), response.Body.Close())
}

// Client returns the TLS configuration of a client with this identity, which also
// takes over an authority that is replaced. crypto/tls has no way to exchange those
// of a client, so the configuration verifies the server itself.
func (c *Certificates) Client(t testing.TB, role identity.Role, name string) *tls.Config {
	t.Helper()
	client, err := pki.NewClient(pki.ClientOptions{Files: c.Of(t, role, name), TrustDomain: identity.DefaultTrustDomain})
	require.NoError(t, err)

	config := client.Config()
	config.InsecureSkipVerify = true // VerifyConnection does it
	config.VerifyConnection = func(state tls.ConnectionState) error {
		now, between := client.Config(), x509.NewCertPool()
		for _, one := range state.PeerCertificates[1:] {
			between.AddCert(one)
		}
		chains, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: now.RootCAs, Intermediates: between, DNSName: state.ServerName})
		if err != nil {
			return err
		}
		state.VerifiedChains = chains
		return now.VerifyConnection(state)
	}
	return config
}

// settings are the environment variables that have a section of the
// configuration use the files; ca is the name of its option for authorities.
func settings(section, ca string, files pki.Files) []string {
	return []string{section + "_CERT=" + files.Cert, section + "_KEY=" + files.Key, section + "_" + ca + "=" + files.CA}
}

// ShutOut returns an error where a conductor answers who shows a certificate of an
// authority that was replaced.
func (c *Cluster) ShutOut(ctx context.Context) error {
	for name, address := range c.metrics {
		if strings.HasPrefix(name, "conductor") {
			if err := c.Certificates.shutOut(ctx, "https://"+address+"/healthz"); err != nil {
				return err
			}
		}
	}
	return nil
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
