package agents_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/revocation"
	"github.com/cyborg-project/cyborg/workflows"
)

// doors is the endpoint over a listener as that of a server, where hosts enroll.
type doors struct {
	*harness

	authority *pki.Authority
	dir       string
	serving   pki.Files
	revoked   atomic.Value // the error for every certificate, if there is one
	list      *revocation.List
}

// refuse is what the listener and the endpoint ask.
func (d *doors) refuse(shown *x509.Certificate) error {
	if d.list != nil {
		return d.list.Check(shown)
	}
	err, _ := d.revoked.Load().(*cyborg.Error)
	if err == nil {
		return nil
	}
	return err
}

const late = 30 * 24 * time.Hour

// openDoors serves with an authority of its own.
func openDoors(t *testing.T) *doors {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	authority, err := pki.Make(dir)
	require.NoError(t, err)
	held, err := authority.Hold(filepath.Join(dir, "server.pem"), pki.Leaf{
		Identity: who(identity.Server, "s1"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)

	d := &doors{authority: authority, dir: dir, serving: held.Files()}
	d.harness = setup(t, agents.Config{
		Certificates: true, Refuse: d.refuse, ReportWait: time.Minute, Enrollment: &agents.Enrollment{Authority: dir, Life: time.Hour, Late: late},
	})
	d.server.TLS, err = pki.Server(pki.ServerOptions{Files: d.serving, ClientAuth: tls.RequireAndVerifyClientCert, Enrolls: dir, Refuse: d.refuse})
	require.NoError(t, err)
	d.server.StartTLS()
	return d
}

func who(role identity.Role, name string) identity.Identity {
	return identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: role, Name: name}
}

// over is the endpoint for a client with this configuration.
func (d *doors) over(config *tls.Config) *harness {
	other := *d.harness
	transport := &http.Transport{TLSClientConfig: config}
	d.t.Cleanup(transport.CloseIdleConnections)
	other.client = &http.Client{Transport: transport}
	return &other
}

// stranger is the endpoint for somebody who knows the pin, and has no certificate.
func (d *doors) stranger() *harness {
	config, err := pki.PinnedClient(pki.Pin(d.authority.Certificate()), "127.0.0.1", identity.DefaultTrustDomain)
	require.NoError(d.t, err)
	return d.over(config)
}

// certificate makes one with its key in one file.
func (d *doors) certificate(of *pki.Authority, leaf pki.Leaf) pki.Files {
	d.t.Helper()
	text, key, err := of.IssuePair(leaf)
	require.NoError(d.t, err)
	return d.write(text, key)
}

func (d *doors) write(certificate, key []byte) pki.Files {
	d.t.Helper()
	path := filepath.Join(d.t.TempDir(), "agent.pem")
	require.NoError(d.t, os.WriteFile(path, append(bytes.Clone(certificate), key...), 0o600))
	return pki.Files{Cert: path, Key: path, CA: d.authority.CertificateFile()}
}

// holding is the endpoint for an agent with this certificate, and for one that
// says that it wants another.
func (d *doors) holding(files pki.Files) (usual, renewing *harness) {
	d.t.Helper()
	client, err := pki.NewClient(pki.ClientOptions{Files: files, TrustDomain: identity.DefaultTrustDomain})
	require.NoError(d.t, err)
	return d.over(client.Config()), d.over(client.Enrolling().Config())
}

func (d *doors) invite(host, token string) {
	d.t.Helper()
	_, err := d.store.InviteHost(d.t.Context(), host, token, time.Hour, cyborg.Actor{Name: "ada"})
	require.NoError(d.t, err)
}

// asking is a request to enroll, and its key.
func asking(t *testing.T, host, token string) (agentapi.EnrollRequest, []byte) {
	t.Helper()
	request, key, err := pki.NewRequest()
	require.NoError(t, err)
	return agentapi.EnrollRequest{Host: host, Token: token, Request: request}, key
}

// parse reads a certificate in PEM format.
func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode([]byte(text))
	require.NotNil(t, block)
	require.Empty(t, rest)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return certificate
}

func heartbeatOf(host string) agentapi.Heartbeat {
	return agentapi.Heartbeat{Host: host, BootID: "boot", Instance: firstAgent, AgentVersion: "test", SentAt: time.Now()}
}

// TestEnroll: with a token an agent gets a certificate of the host that the token
// is for, whatever its request says, and speaks for that host from then on. The
// token is in no log, and not in the records.
func TestEnroll(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	const token = "the-token-of-h1"
	d.invite("h1", token)

	_, key, err := pki.GenerateKey()
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(d.selfSigned(key), key)
	require.NoError(t, err)
	admin := who(identity.Admin, "eve").URI()
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		DNSNames: []string{"h2"}, URIs: []*url.URL{admin},
	}, pair.PrivateKey)
	require.NoError(t, err)

	response, body := d.stranger().post(agentapi.EnrollPath, agentapi.EnrollRequest{Host: "h1", Token: token, Request: request})
	reply := accepted[agentapi.CertificateReply](d.harness, response, body)
	require.True(t, response.Close, "a stranger gets one answer on a connection")
	got := parse(t, reply.Certificate)
	require.Equal(t, "spiffe://cyborg/host/h1", got.URIs[0].String())
	require.Len(t, got.URIs, 1)
	require.Empty(t, got.DNSNames)
	require.Positive(t, pki.Enrollment(got))
	require.WithinDuration(t, time.Now().Add(time.Hour), got.NotAfter, time.Minute)
	require.WithinDuration(t, time.Now().Add(-time.Hour), got.NotBefore, time.Minute)
	require.Equal(t, string(pki.EncodeCertificate(d.authority.Certificate())), reply.Authorities)

	usual, _ := d.holding(d.write([]byte(reply.Certificate), key))
	response, body = usual.post(agents.HeartbeatsPath, heartbeatOf("h1"))
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
	response, body = usual.post(agents.HeartbeatsPath, heartbeatOf("h2"))
	d.refused(cyborg.ErrForbidden, response, body)

	var kept string
	require.NoError(t, d.database.QueryRow(t.Context(), `
		SELECT (SELECT string_agg(i::text, '') FROM host_identities i) || (SELECT string_agg(e::text, '') FROM events e)`).Scan(&kept))
	require.NotContains(t, kept, token)
	require.NotContains(t, d.said.String(), token)
}

// selfSigned returns a certificate for the key, which only makes a pair of it.
func (d *doors) selfSigned(key []byte) []byte {
	d.t.Helper()
	block, _ := pem.Decode(key)
	signer, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(d.t, err)
	public := signer.(crypto.Signer)
	certificate, err := d.authority.Issue(public.Public(), pki.Leaf{Identity: who(identity.Reader, "nobody")})
	require.NoError(d.t, err)
	return pki.EncodeCertificate(certificate)
}

// TestTokens: a token is good once, for one host, and not for long. What is wrong
// with the rest of a request does not use it up.
func TestTokens(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	enroll := func(host, token string) (*http.Response, []byte) {
		asked, _ := asking(t, host, token)
		return d.stranger().post(agentapi.EnrollPath, asked)
	}
	refused := func(kind cyborg.ErrorKind, host, token string) {
		t.Helper()
		response, body := enroll(host, token)
		d.refused(kind, response, body)
	}

	d.invite("h1", "first")
	d.invite("h2", "second")
	refused(cyborg.ErrUnauthenticated, "h1", "guessed")
	refused(cyborg.ErrUnauthenticated, "h1", "")
	refused(cyborg.ErrForbidden, "h2", "first")
	refused(cyborg.ErrForbidden, "H1", "first")
	refused(cyborg.ErrInvalid, "no host", "first")

	asked, _ := asking(t, "h1", "first")
	asked.Request = append(asked.Request[:len(asked.Request)-1], asked.Request[len(asked.Request)-1]^1)
	response, body := d.stranger().post(agentapi.EnrollPath, asked)
	d.refused(cyborg.ErrInvalid, response, body)
	response, body = d.stranger().post(agentapi.EnrollPath, agentapi.EnrollRequest{Host: "h1", Token: strings.Repeat("x", 20<<10)})
	d.refused(cyborg.ErrTooLarge, response, body)

	response, body = enroll("h1", "first")
	accepted[agentapi.CertificateReply](d.harness, response, body)
	refused(cyborg.ErrUnauthenticated, "h1", "first")

	d.invite("h2", "third")
	refused(cyborg.ErrUnauthenticated, "h2", "second") // it was replaced
	_, err := d.database.Exec(t.Context(), "UPDATE host_identities SET token_expires_at = clock_timestamp() WHERE host = 'h2'")
	require.NoError(t, err)
	refused(cyborg.ErrUnauthenticated, "h2", "third")
}

// TestTwoWithOneToken: of those that have the same token, one gets a certificate.
// That all of them come from one network keeps none from its turn.
func TestTwoWithOneToken(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	d.invite("h1", "shared")

	const callers = 8
	statuses := make(chan int, callers)
	var all sync.WaitGroup
	for range callers {
		asked, _ := asking(t, "h1", "shared")
		text, err := json.Marshal(asked)
		require.NoError(t, err)
		client := d.stranger().client
		all.Go(func() {
			response, err := client.Post(d.server.URL+agentapi.EnrollPath, "application/json", bytes.NewReader(text))
			if err != nil {
				statuses <- 0
				return
			}
			_ = response.Body.Close()
			statuses <- response.StatusCode
		})
	}
	all.Wait()
	close(statuses)

	count := map[int]int{}
	for status := range statuses {
		count[status]++
	}
	require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusUnauthorized: callers - 1}, count)
}

// everyRequest is each request that the endpoint knows, and some that it does not.
func everyRequest() [][2]string {
	return [][2]string{
		{"POST", agents.ReportsPath},
		{"POST", agents.DifferencesPath},
		{"POST", agents.HeartbeatsPath},
		{"GET", agents.HostsPath + "h1"},
		{"GET", agents.HealthPath},
		{"HEAD", agents.HealthPath},
		{"GET", workflows.ImagesPath + "c4b2f6d3-8f9c-4b0e-9a61-4d1a6f1f2a34"},
		{"DELETE", workflows.ImagesPath + "c4b2f6d3-8f9c-4b0e-9a61-4d1a6f1f2a34"},
		{"GET", agentapi.EnrollPath},
		{"PUT", agentapi.RenewPath},
		{"POST", agentapi.EnrollPath + "/"},
		{"POST", agentapi.RenewPath + "/x"},
		{"POST", "/agent/v1/enroll/../reports"},
		{"POST", "/AGENT/v1/enroll"},
		{"POST", "//agent/v1/enroll"},
		{"GET", "/"},
		{"OPTIONS", "/nothing"},
	}
}

// TestDoorsAreClosed: without a verified certificate there is nothing behind the
// doors but the two requests, whether somebody shows none, an expired one, or one
// that is nobody's. Who does not say that it wants to enroll does not even get
// through the handshake.
func TestDoorsAreClosed(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	other, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	h1 := pki.Leaf{Identity: who(identity.Host, "h1")}
	expired := h1
	expired.Start, expired.Valid = time.Now().Add(-48*time.Hour), 24*time.Hour

	all := map[string]*harness{"none": d.stranger()}
	for name, files := range map[string]pki.Files{
		"expired": d.certificate(d.authority, expired), "foreign": d.certificate(other, h1),
		"good, and not verified": d.certificate(d.authority, h1),
	} {
		var usual *harness
		usual, all[name] = d.holding(files)
		if name == "good, and not verified" {
			continue
		}
		_, err := usual.client.Get(d.server.URL + agents.HealthPath)
		require.Error(t, err, name)
	}

	plain := d.stranger().client.Transport.(*http.Transport).TLSClientConfig.Clone()
	plain.NextProtos = []string{"h2", "http/1.1"}
	_, err = d.over(plain).client.Get(d.server.URL + agents.HealthPath)
	require.Error(t, err, "a client that does not want to enroll")

	for name, as := range all {
		for _, one := range everyRequest() {
			request, err := http.NewRequestWithContext(t.Context(), one[0], d.server.URL, strings.NewReader("{}"))
			require.NoError(t, err)
			request.URL.Opaque = "//" + request.URL.Host + one[1] // as it is written
			request.Header.Set("Content-Type", "application/json")
			response, err := as.client.Do(request)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusUnauthorized, response.StatusCode, "%s: %v: %s", name, one, text)
		}
	}

	response, body := d.stranger().post(agentapi.RenewPath, agentapi.RenewRequest{})
	d.refused(cyborg.ErrUnauthenticated, response, body)
}

// TestNoEnrollment: a server without an authority has no such doors, whatever its
// listener lets in.
func TestNoEnrollment(t *testing.T) {
	t.Parallel()
	signer := newAuthority(t)
	h := setup(t, agents.Config{Certificates: true}).mutual(signer, tls.RequestClientCert)
	for _, path := range []string{agentapi.EnrollPath, agentapi.RenewPath, agents.HealthPath} {
		response, body := h.post(path, agentapi.EnrollRequest{})
		h.refused(cyborg.ErrUnauthenticated, response, body)
	}

	open := setup(t, agents.Config{}).plain()
	response, body := open.post(agentapi.EnrollPath, agentapi.EnrollRequest{})
	open.refused(cyborg.ErrNotFound, response, body)
}

// TestWrongPin: an agent sends its token to nobody but a server whose authority
// has the pin.
func TestWrongPin(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	other, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)

	for name, pinned := range map[string]func() (*tls.Config, error){
		"another authority": func() (*tls.Config, error) {
			return pki.PinnedClient(pki.Pin(other.Certificate()), "127.0.0.1", identity.DefaultTrustDomain)
		},
		"another name": func() (*tls.Config, error) {
			return pki.PinnedClient(pki.Pin(d.authority.Certificate()), "localhost", identity.DefaultTrustDomain)
		},
		"another trust domain": func() (*tls.Config, error) {
			return pki.PinnedClient(pki.Pin(d.authority.Certificate()), "127.0.0.1", "lab")
		},
	} {
		config, err := pinned()
		require.NoError(t, err)
		_, err = d.over(config).client.Post(d.server.URL+agentapi.EnrollPath, "application/json", strings.NewReader("{}"))
		require.Error(t, err, name)
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), "%s: %v", name, err)
	}
	require.NotContains(t, d.said.String(), agentapi.EnrollPath)

	// A host is no server, though the authority has signed its certificate.
	thief := d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h1"), IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	posing := openDoors(t)
	serving, err := pki.Server(pki.ServerOptions{Files: thief, ClientAuth: tls.RequireAndVerifyClientCert, Enrolls: d.dir})
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", serving)
	require.NoError(t, err)
	go func() { _ = http.Serve(listener, posing.server.Config.Handler) }()
	t.Cleanup(func() { _ = listener.Close() })
	_, err = d.stranger().client.Post("https://"+listener.Addr().String()+agentapi.EnrollPath, "application/json", strings.NewReader("{}"))
	require.ErrorContains(t, err, "and not of a server")
}

// TestRenew: a certificate of a host can be renewed for this host, also when it has
// expired, but not for ever; and no other certificate can.
func TestRenew(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	other, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)

	ended := func(ago time.Duration) pki.Leaf {
		return pki.Leaf{Identity: who(identity.Host, "h1"), Enrollment: 7, Start: time.Now().Add(-ago - 24*time.Hour), Valid: 24 * time.Hour}
	}
	renew := func(of *pki.Authority, leaf pki.Leaf) (*http.Response, []byte) {
		t.Helper()
		_, renewing := d.holding(d.certificate(of, leaf))
		request, _, err := pki.NewRequest()
		require.NoError(t, err)
		return renewing.post(agentapi.RenewPath, agentapi.RenewRequest{Request: request})
	}

	for name, leaf := range map[string]pki.Leaf{
		"good": ended(-time.Hour), "expired": ended(time.Hour), "expired for long": ended(late - time.Hour),
	} {
		response, body := renew(d.authority, leaf)
		got := parse(t, accepted[agentapi.CertificateReply](d.harness, response, body).Certificate)
		require.Equal(t, "spiffe://cyborg/host/h1", got.URIs[0].String(), name)
		require.Equal(t, int64(7), pki.Enrollment(got), name)
		require.WithinDuration(t, time.Now().Add(time.Hour), got.NotAfter, time.Minute, name)
	}

	elsewhere := ended(-time.Hour)
	elsewhere.Identity.TrustDomain = "lab"
	early := ended(0)
	early.Start = time.Now().Add(2 * time.Hour)
	for name, refusal := range map[string]struct {
		of   *pki.Authority
		leaf pki.Leaf
		kind cyborg.ErrorKind
	}{
		"expired for too long": {d.authority, ended(late + time.Hour), cyborg.ErrUnauthenticated},
		"not yet valid":        {d.authority, early, cyborg.ErrUnauthenticated},
		"a foreign authority":  {other, ended(-time.Hour), cyborg.ErrUnauthenticated},
		"another trust domain": {d.authority, elsewhere, cyborg.ErrForbidden},
		"a server":             {d.authority, pki.Leaf{Identity: who(identity.Server, "s2")}, cyborg.ErrForbidden},
		"an admin":             {d.authority, pki.Leaf{Identity: who(identity.Admin, "h1")}, cyborg.ErrForbidden},
	} {
		response, body := renew(refusal.of, refusal.leaf)
		t.Log(name)
		d.refused(refusal.kind, response, body)
	}

	// Who has the certificate without its key gets nowhere.
	text, _, err := d.authority.IssuePair(ended(-time.Hour))
	require.NoError(t, err)
	_, another, err := pki.GenerateKey()
	require.NoError(t, err)
	foreign, err := tls.X509KeyPair(d.selfSigned(another), another)
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	foreign.Certificate, foreign.Leaf = [][]byte{block.Bytes}, nil
	config := d.stranger().client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.Certificates = []tls.Certificate{foreign}
	_, err = d.over(config).client.Post(d.server.URL+agentapi.RenewPath, "application/json", strings.NewReader("{}"))
	require.Error(t, err)
}

// TestRevokedIsNotRenewed: what was revoked cannot be renewed, and what a later
// enrollment gives can.
func TestRevokedIsNotRenewed(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	d.invite("h1", "first")
	asked, key := asking(t, "h1", "first")
	response, body := d.stranger().post(agentapi.EnrollPath, asked)
	first := d.write([]byte(accepted[agentapi.CertificateReply](d.harness, response, body).Certificate), key)

	renew := func(files pki.Files) (*http.Response, []byte) {
		_, renewing := d.holding(files)
		request, _, err := pki.NewRequest()
		require.NoError(t, err)
		return renewing.post(agentapi.RenewPath, agentapi.RenewRequest{Request: request})
	}
	response, body = renew(first)
	accepted[agentapi.CertificateReply](d.harness, response, body)

	require.NoError(t, d.store.RevokeHost(t.Context(), "h1", "stolen", cyborg.Actor{Name: "ada"}))
	response, body = renew(first)
	d.refused(cyborg.ErrForbidden, response, body)
	response, body = renew(d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h1")}))
	d.refused(cyborg.ErrForbidden, response, body)

	d.invite("h1", "second")
	asked, key = asking(t, "h1", "second")
	response, body = d.stranger().post(agentapi.EnrollPath, asked)
	second := d.write([]byte(accepted[agentapi.CertificateReply](d.harness, response, body).Certificate), key)
	response, body = renew(second)
	accepted[agentapi.CertificateReply](d.harness, response, body)
	response, body = renew(first)
	d.refused(cyborg.ErrForbidden, response, body)
}

// TestRevokedIsOut: a certificate that was revoked gets no new connection, and no
// answer on one that is open.
func TestRevokedIsOut(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	files := d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h1")})
	open, _ := d.holding(files)
	response, body := open.post(agents.HeartbeatsPath, heartbeatOf("h1"))
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)

	d.revoked.Store(cyborg.Errorf(cyborg.ErrForbidden, "it was revoked"))
	for _, one := range [][2]string{{http.MethodPost, agents.HeartbeatsPath}, {http.MethodGet, agents.HealthPath}, {http.MethodGet, agents.HostsPath + "h1"}} {
		response, body = open.send(one[0], one[1], []byte("{}"))
		d.refused(cyborg.ErrForbidden, response, body)
	}

	fresh, _ := d.holding(files)
	_, err := fresh.client.Get(d.server.URL + agents.HealthPath)
	require.Error(t, err)

	// Nor is one renewed that has expired, whatever the records say.
	_, renewing := d.holding(d.certificate(d.authority, pki.Leaf{
		Identity: who(identity.Host, "h1"), Start: time.Now().Add(-48 * time.Hour), Valid: 24 * time.Hour,
	}))
	request, _, err := pki.NewRequest()
	require.NoError(t, err)
	response, body = renewing.post(agentapi.RenewPath, agentapi.RenewRequest{Request: request})
	d.refused(cyborg.ErrForbidden, response, body)
}

// revoking is a body whose host is revoked when the server begins to read it.
type revoking struct {
	io.Reader

	revoke func()
}

func (b *revoking) Read(p []byte) (int, error) {
	b.revoke()
	return b.Reader.Read(p)
}

// TestRevokedInTheMiddle: what an agent had begun to say when it was revoked is not
// recorded.
func TestRevokedInTheMiddle(t *testing.T) {
	t.Parallel()
	for path, said := range map[string]any{agents.ReportsPath: report("h1", 1), agents.HeartbeatsPath: heartbeatOf("h1")} {
		d := openDoors(t)
		agent, _ := d.holding(d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h1")}))
		transport, ok := agent.client.Transport.(*http.Transport)
		require.True(t, ok)
		transport.ExpectContinueTimeout = time.Minute

		text, err := json.Marshal(said)
		require.NoError(t, err)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.server.URL+path, &revoking{
			bytes.NewReader(text), func() { d.revoked.Store(cyborg.Errorf(cyborg.ErrForbidden, "it was revoked")) },
		})
		require.NoError(t, err)
		request.ContentLength = int64(len(text))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Expect", "100-continue")

		response, err := agent.client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		d.refused(cyborg.ErrForbidden, response, body)
		_, err = d.store.Host(t.Context(), "h1")
		require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err), "nothing was recorded")
	}
}

// TestOneLookIsEnoughForARevokedHost: a server's next look at the records shuts a
// revoked host out, also where its connection is open. The server looks every
// second; nothing else has to happen.
func TestOneLookIsEnoughForARevokedHost(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	d.list = revocation.New(identity.DefaultTrustDomain, "", slog.New(slog.DiscardHandler))
	look := func() { require.NoError(t, d.list.Load(t.Context(), d.store)) }
	look()

	d.invite("h1", "token")
	number, err := d.store.EnrollHost(t.Context(), "h1", "token")
	require.NoError(t, err)
	files := d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h1"), Enrollment: number})
	open, _ := d.holding(files)
	other, _ := d.holding(d.certificate(d.authority, pki.Leaf{Identity: who(identity.Host, "h2"), Enrollment: 1}))

	heard := func(agent *harness, host string) bool {
		response, body := agent.post(agents.HeartbeatsPath, heartbeatOf(host))
		require.Contains(t, []int{http.StatusOK, http.StatusForbidden}, response.StatusCode, "%s", body)
		return response.StatusCode == http.StatusOK
	}
	require.True(t, heard(open, "h1"))
	require.NoError(t, d.store.RevokeHost(t.Context(), "h1", "stolen", cyborg.Actor{Name: "ada"}))
	require.True(t, heard(open, "h1"), "no server has looked")

	look()
	require.False(t, heard(open, "h1"), "on the connection that was open")
	fresh, _ := d.holding(files)
	_, err = fresh.client.Get(d.server.URL + agents.HealthPath)
	require.Error(t, err, "on a new one")
	require.True(t, heard(other, "h2"))
}
