package pki_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// who returns an identity of the default trust domain.
func who(role identity.Role, name string) identity.Identity {
	return identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: role, Name: name}
}

// authority makes an authority in a new directory.
func authority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	return a
}

// issue writes a certificate with its key in one file, and returns the file and
// the authority's.
func issue(t *testing.T, a *pki.Authority, leaf pki.Leaf) pki.Files {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leaf.pem")
	reissue(t, a, leaf, path)
	return pki.Files{Cert: path, Key: path, CA: a.CertificateFile()}
}

// reissue replaces the file of a certificate.
func reissue(t *testing.T, a *pki.Authority, leaf pki.Leaf, path string) {
	t.Helper()
	certificate, key, err := a.IssuePair(leaf)
	require.NoError(t, err)
	replace(t, path, append(certificate, key...))
}

// replace replaces a file at once.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	fresh := path + ".fresh"
	require.NoError(t, os.WriteFile(fresh, content, 0o600))
	require.NoError(t, os.Rename(fresh, path))
}

// server returns the configuration of a server with a certificate for loopback.
func server(t *testing.T, a *pki.Authority, change func(*pki.ServerOptions)) *tls.Config {
	t.Helper()
	options := pki.ServerOptions{
		Files:       issue(t, a, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback}),
		TrustDomain: identity.DefaultTrustDomain, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	if change != nil {
		change(&options)
	}
	config, err := pki.Server(options)
	require.NoError(t, err)
	return config
}

// client returns a client with the certificate.
func client(t *testing.T, files pki.Files) *pki.Client {
	t.Helper()
	c, err := pki.NewClient(pki.ClientOptions{Files: files, TrustDomain: identity.DefaultTrustDomain})
	require.NoError(t, err)
	return c
}

// listen serves connections with a certificate check until the test ends: each
// gets what it sends back.
func listen(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)

	var all sync.WaitGroup
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		all.Wait()
	})
	all.Go(func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer connection.Close()
				_, _ = io.Copy(connection, connection)
			})
		}
	})
	return listener.Addr().String()
}

// exchange makes sure that the connection lives: in TLS 1.3 a client learns only
// by reading that it was refused.
func exchange(connection *tls.Conn) error {
	if _, err := connection.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(connection, make([]byte, 1))
	return err
}

// dial makes a connection that stays until the test ends.
func dial(t *testing.T, address string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	connection, err := tls.Dial("tcp", address, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { connection.Close() })
	return connection, exchange(connection)
}

// TestMake: the authority is made once, and is the same afterwards. Its key is
// nobody else's to read.
func TestMake(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "ca")
	_, err := pki.Open(dir)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	made, err := pki.Make(dir)
	require.NoError(t, err)
	for path, mode := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "ca.key"): 0o600} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), path)
	}

	certificate := made.Certificate()
	require.True(t, certificate.IsCA)
	require.WithinDuration(t, time.Now().Add(-time.Hour), certificate.NotBefore, time.Minute)
	require.WithinDuration(t, time.Now().AddDate(10, 0, 0), certificate.NotAfter, 7*24*time.Hour)

	again, err := pki.Make(dir)
	require.NoError(t, err)
	require.Equal(t, certificate.Raw, again.Certificate().Raw)
	opened, err := pki.Open(dir)
	require.NoError(t, err)
	require.Equal(t, certificate.Raw, opened.Certificate().Raw)
}

// TestMakeAtOnce: all who make an authority at the same time get the same one.
func TestMakeAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	made := make([]*pki.Authority, 8)
	errs := make([]error, len(made))

	var all sync.WaitGroup
	for n := range made {
		all.Go(func() { made[n], errs[n] = pki.Make(dir) })
	}
	all.Wait()

	require.NoError(t, errors.Join(errs...))
	for _, a := range made {
		require.Equal(t, made[0].Certificate().Raw, a.Certificate().Raw)
	}
}

// TestHalfMade: what a killed process left is completed.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	first, err := pki.Make(dir)
	require.NoError(t, err)

	require.NoError(t, os.Remove(filepath.Join(dir, "ca.crt")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".ca.crt.new"), []byte("-----BEGIN CERT"), 0o600))
	second, err := pki.Make(dir)
	require.NoError(t, err)
	require.Equal(t, first.Certificate().PublicKey, second.Certificate().PublicKey, "the key was there, and stays")

	empty := filepath.Join(t.TempDir(), "ca")
	require.NoError(t, os.Mkdir(empty, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(empty, ".ca.key.new"), []byte("-----BEGIN PRIV"), 0o600))
	_, err = pki.Make(empty)
	require.NoError(t, err)
}

// TestBroken: an authority that cannot be used is refused, and stays as it is.
func TestBroken(t *testing.T) {
	t.Parallel()
	other := authority(t)
	foreignKey, err := os.ReadFile(filepath.Join(filepath.Dir(other.CertificateFile()), "ca.key"))
	require.NoError(t, err)
	leaf, _, err := other.IssuePair(pki.Leaf{Identity: who(identity.Reader, "r")})
	require.NoError(t, err)

	for name, breakIt := range map[string]func(dir string) error{
		"no key":               func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
		"an empty certificate": func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), nil, 0o600) },
		"half a certificate":   func(dir string) error { return os.Truncate(filepath.Join(dir, "ca.crt"), 100) },
		"half a key":           func(dir string) error { return os.Truncate(filepath.Join(dir, "ca.key"), 100) },
		"another's key":        func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.key"), foreignKey, 0o600) },
		"a leaf":               func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), leaf, 0o600) },
		"a key for all":        func(dir string) error { return os.Chmod(filepath.Join(dir, "ca.key"), 0o644) },
		"half a key only": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "ca.crt")), os.Truncate(filepath.Join(dir, "ca.key"), 100))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Dir(authority(t).CertificateFile())
			require.NoError(t, breakIt(dir))
			before := contents(t, dir)

			_, err := pki.Make(dir)
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, dir)
			require.Equal(t, before, contents(t, dir))
		})
	}
}

// contents returns all files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		all[entry.Name()] = string(text)
	}
	return all
}

// TestIssue: a certificate holds what it is asked for, and nothing of a request
// but the key.
func TestIssue(t *testing.T) {
	t.Parallel()
	a := authority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "h2"}, DNSNames: []string{"h2"},
	}, key)
	require.NoError(t, err)

	issued, err := a.IssueRequest(request, pki.Leaf{Identity: who(identity.Host, "h1"), IPs: loopback})
	require.NoError(t, err)
	require.Equal(t, "spiffe://cyborg/host/h1", issued.URIs[0].String())
	require.Empty(t, issued.DNSNames)
	require.Empty(t, issued.Subject.CommonName)
	require.True(t, key.PublicKey.Equal(issued.PublicKey))
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, issued.ExtKeyUsage)
	require.WithinDuration(t, time.Now().Add(-time.Hour), issued.NotBefore, time.Minute)
	require.WithinDuration(t, time.Now().Add(24*time.Hour), issued.NotAfter, time.Minute)
	require.WithinDuration(t, time.Now().Add(16*time.Hour), pki.RenewAt(issued), time.Minute)

	tampered := bytes.Replace(request, []byte("h2"), []byte("h3"), 1)
	_, err = a.IssueRequest(tampered, pki.Leaf{Identity: who(identity.Host, "h1")})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "whoever asks must have the key")

	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	require.NoError(t, err)
	_, err = a.Issue(weak.Public(), pki.Leaf{Identity: who(identity.Host, "h1")})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	for name, leaf := range map[string]pki.Leaf{
		"nobody":              {},
		"a name with a slash": {Identity: who(identity.Admin, "a/b")},
		"a negative life":     {Identity: who(identity.Admin, "a"), Valid: -time.Hour},
		"after the authority": {Identity: who(identity.Admin, "a"), Start: time.Now().AddDate(20, 0, 0)},
	} {
		_, err := a.Issue(key.Public(), leaf)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
	}

	long, err := a.Issue(key.Public(), pki.Leaf{Identity: who(identity.Reader, "r"), Valid: 100 * 365 * 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, a.Certificate().NotAfter, long.NotAfter)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, long.ExtKeyUsage, "a person serves nothing")
}

// TestHandshakes: who is let in, by real connections.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	a, foreign := authority(t), authority(t)
	onlyHosts := func(o *pki.ServerOptions) {
		o.Allow = func(i identity.Identity) error {
			if i.Role != identity.Host {
				return errors.New("not a host")
			}
			return nil
		}
	}
	address := listen(t, server(t, a, onlyHosts))
	host := pki.Leaf{Identity: who(identity.Host, "h1")}

	_, err := dial(t, address, client(t, issue(t, a, host)).Config())
	require.NoError(t, err)

	expired, early, person, elsewhere := host, host, host, host
	expired.Start, expired.Valid = time.Now().Add(-48*time.Hour), 47*time.Hour
	early.Start = time.Now().Add(2 * time.Hour)
	person.Identity = who(identity.Admin, "a")
	elsewhere.Identity.TrustDomain = "lab"
	fromAbroad := issue(t, foreign, host)
	fromAbroad.CA = a.CertificateFile() // it trusts the server, and is not trusted itself

	for name, files := range map[string]pki.Files{
		"no certificate":       {CA: a.CertificateFile()},
		"expired":              issue(t, a, expired),
		"not yet valid":        issue(t, a, early),
		"another role":         issue(t, a, person),
		"another trust domain": issue(t, a, elsewhere),
		"a foreign authority":  fromAbroad,
	} {
		_, err := dial(t, address, client(t, files).Config())
		require.Error(t, err, name)
	}

	_, err = dial(t, address, client(t, issue(t, foreign, host)).Config())
	require.ErrorContains(t, err, "unknown authority", "the client does not trust the server")

	old := client(t, issue(t, a, host)).Config()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	_, err = dial(t, address, old)
	require.ErrorContains(t, err, "protocol version")
}

// TestOnlyAServerServes: a host's certificate is none of a server, though it is
// for the address and its authority is trusted.
func TestOnlyAServerServes(t *testing.T) {
	t.Parallel()
	a := authority(t)
	stolen := issue(t, a, pki.Leaf{Identity: who(identity.Host, "h1"), IPs: loopback})
	address := listen(t, server(t, a, func(o *pki.ServerOptions) { o.Files = stolen }))

	_, err := dial(t, address, client(t, issue(t, a, pki.Leaf{Identity: who(identity.Host, "h2")})).Config())
	require.ErrorContains(t, err, "spiffe://cyborg/host/h1, and not of a server")
}

// TestAuthoritiesAreReplaced: both ends take new authorities and certificates
// without a restart; meanwhile both authorities count, and connections that live
// go on.
func TestAuthoritiesAreReplaced(t *testing.T) {
	t.Parallel()
	older, newer := authority(t), authority(t)
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	read := func(a *pki.Authority) []byte { return pki.EncodeCertificate(a.Certificate()) }
	replace(t, bundle, read(older))

	serving := issue(t, older, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback})
	asking := issue(t, older, pki.Leaf{Identity: who(identity.Host, "h1")})
	serving.CA, asking.CA = bundle, bundle
	address := listen(t, server(t, older, func(o *pki.ServerOptions) { o.Files = serving }))
	c := client(t, asking)

	living, err := dial(t, address, c.Config())
	require.NoError(t, err)

	newcomer := issue(t, newer, pki.Leaf{Identity: who(identity.Host, "h2")})
	newcomer.CA = bundle
	_, err = dial(t, address, client(t, newcomer).Config())
	require.Error(t, err, "the new authority does not count yet")

	replace(t, bundle, append(read(older), read(newer)...))
	for _, one := range []*pki.Client{c, client(t, newcomer)} {
		_, err := dial(t, address, one.Config())
		require.NoError(t, err, "both count")
	}

	reissue(t, newer, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback}, serving.Cert)
	_, err = dial(t, address, c.Config())
	require.NoError(t, err, "the server's certificate is from the new one, the client's from the old one")

	replace(t, bundle, read(newer))
	_, err = dial(t, address, c.Config())
	require.Error(t, err, "the old authority does not count any more")
	_, err = dial(t, address, client(t, newcomer).Config())
	require.NoError(t, err)
	require.NoError(t, exchange(living))

	reissue(t, newer, pki.Leaf{Identity: who(identity.Host, "h1")}, asking.Cert)
	_, err = dial(t, address, c.Config())
	require.NoError(t, err)
}

// lines collects a log that other goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestBrokenFilesAreToldOnce: the old certificates stay in use, and the log has
// one line for each change.
func TestBrokenFilesAreToldOnce(t *testing.T) {
	t.Parallel()
	a := authority(t)
	log := &lines{}
	files := issue(t, a, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback})
	files.CA = filepath.Join(t.TempDir(), "ca.crt")
	good := pki.EncodeCertificate(a.Certificate())
	replace(t, files.CA, good)

	address := listen(t, server(t, a, func(o *pki.ServerOptions) {
		o.Files, o.Log = files, slog.New(slog.NewTextHandler(log, nil))
	}))
	c := client(t, issue(t, a, pki.Leaf{Identity: who(identity.Host, "h1")}))
	connect := func() {
		_, err := dial(t, address, c.Config())
		require.NoError(t, err)
	}

	for n, breakIt := range []func(){
		func() { replace(t, files.CA, good[:len(good)-10]) },
		func() { replace(t, files.Cert, []byte("half written")) },
		func() { require.NoError(t, os.Remove(files.Cert)) },
	} {
		breakIt()
		for range 3 {
			connect()
		}
		require.Equal(t, n+1, strings.Count(log.String(), "\n"), log.String())
	}
	require.Contains(t, log.String(), files.CA)
	require.Contains(t, log.String(), files.Cert)

	for _, none := range []pki.ServerOptions{{}, {Files: pki.Files{Cert: "/nowhere", Key: "/nowhere"}}} {
		_, err := pki.Server(none)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	}
}

// TestTransport: a client over HTTP takes new authorities without a restart.
func TestTransport(t *testing.T) {
	t.Parallel()
	older, newer := authority(t), authority(t)
	serving := issue(t, older, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback})
	asking := issue(t, older, pki.Leaf{Identity: who(identity.Host, "h1")})
	asking.CA = filepath.Join(t.TempDir(), "ca.crt")
	replace(t, asking.CA, pki.EncodeCertificate(older.Certificate()))

	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, err := identity.OfConnection(r.TLS, identity.DefaultTrustDomain)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, peer.String())
	}))
	web.TLS = server(t, older, func(o *pki.ServerOptions) { o.Files = serving })
	web.StartTLS()
	t.Cleanup(web.Close)

	asker := &http.Client{Transport: client(t, asking).Transport(&http.Transport{ForceAttemptHTTP2: true})}
	t.Cleanup(asker.CloseIdleConnections)
	get := func() error {
		answer, err := asker.Get(web.URL)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, "spiffe://cyborg/host/h1", string(text))
		return nil
	}
	require.NoError(t, get())

	replace(t, asking.CA, pki.EncodeCertificate(newer.Certificate()))
	require.ErrorContains(t, get(), "unknown authority", "the connection that was there is not used any more")

	reissue(t, newer, pki.Leaf{Identity: who(identity.Server, "s1"), IPs: loopback}, serving.Cert)
	require.NoError(t, get())
}

// TestHold: the certificate of a process is made, kept, and renewed at two thirds.
func TestHold(t *testing.T) {
	t.Parallel()
	a := authority(t)
	path := filepath.Join(t.TempDir(), "server.pem")
	leaf := pki.Leaf{Identity: who(identity.Server, "s1"), DNS: []string{"localhost"}, IPs: loopback}
	read := func() string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}

	held, err := a.Hold(path, leaf)
	require.NoError(t, err)
	first := read()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	again, err := a.Hold(path, leaf)
	require.NoError(t, err)
	require.Equal(t, first, read())
	require.NoError(t, again.Renew(time.Now().Add(15*time.Hour)))
	require.Equal(t, first, read())
	require.NoError(t, again.Renew(time.Now().Add(17*time.Hour)))
	require.NotEqual(t, first, read())

	replace(t, path, []byte("broken"))
	require.NoError(t, held.Renew(time.Now()))
	for name, change := range map[string]func(){
		"a name more":       func() { leaf.DNS = append(leaf.DNS, "more") },
		"an address more":   func() { leaf.IPs = append(leaf.IPs, net.IPv6loopback) },
		"another identity":  func() { leaf.Identity = who(identity.Server, "s2") },
		"another authority": func() { a = authority(t) },
	} {
		before := read()
		change()
		_, err := a.Hold(path, leaf)
		require.NoError(t, err)
		require.NotEqual(t, before, read(), name)
	}

	held, err = a.Hold(path, leaf)
	require.NoError(t, err)
	address := listen(t, server(t, a, func(o *pki.ServerOptions) { o.Files = held.Files() }))
	_, err = dial(t, address, client(t, issue(t, a, pki.Leaf{Identity: who(identity.Host, "h1")})).Config())
	require.NoError(t, err)
}

// TestTemporary: what a process shows to itself is valid at any time, because its
// clock may jump, and is in no file.
func TestTemporary(t *testing.T) {
	t.Parallel()
	authority, err := pki.Temporary()
	require.NoError(t, err)
	text, key, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "s1"}, DNS: []string{"inside"}, Valid: time.Hour,
	})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(text, key)
	require.NoError(t, err)

	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Certificate())
	for _, year := range []int{1971, 2000, 2100, 9998} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: trusted, DNSName: "inside", CurrentTime: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC),
		})
		require.NoError(t, err, "%d", year)
	}
}

// TestRequestOfAHugeKey: the size of a key is looked at before its signature, which
// takes long to check. Nobody needs the other half of the key to ask.
func TestRequestOfAHugeKey(t *testing.T) {
	t.Parallel()
	der, _, err := pki.NewRequest()
	require.NoError(t, err)
	require.NoError(t, pki.CheckRequest(der))

	var request struct {
		Asked struct {
			Version    int
			Subject    asn1.RawValue
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}
		Algorithm asn1.RawValue
		Signature asn1.BitString
	}
	_, err = asn1.Unmarshal(der, &request)
	require.NoError(t, err)

	bits := new(big.Int).Lsh(big.NewInt(1), 16384)
	key, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: bits.Sub(bits, big.NewInt(1)), E: 65537})
	require.NoError(t, err)
	request.Asked.Key = asn1.RawValue{FullBytes: key}
	der, err = asn1.Marshal(request)
	require.NoError(t, err)

	err = pki.CheckRequest(der)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "RSA with 2048 to 8192 bits")
}
