package agents_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/imagesource"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
	"github.com/cyborg-project/cyborg/internal/transcript"
	"github.com/cyborg-project/cyborg/workflows"
)

func TestMain(m *testing.M) { leaktest.Main(postgrestest.Runner(m)) }

// harness is the endpoint over a real store and its intake.
type harness struct {
	t        testing.TB
	store    *db.Store
	database *pgxpool.Pool
	server   *httptest.Server
	client   *http.Client
	said     *transcript.Text // what the endpoint has logged, but for its debugging
}

// setup builds the endpoint, which fetches images from the allowed addresses
// only and has no Glance.
func setup(t testing.TB, config agents.Config, allow ...string) *harness {
	t.Helper()
	return setupWith(t, config, nil, allow...)
}

// setupWith is setup with a Glance.
func setupWith(t testing.TB, config agents.Config, images agents.GlanceSource, allow ...string) *harness {
	t.Helper()
	url := postgrestest.NewFrom(t, "schema", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	log := slog.New(slog.DiscardHandler)
	store, err := db.Open(t.Context(), url, db.Options{MaxConns: 6}, log)
	require.NoError(t, err)
	t.Cleanup(store.Close)

	intake := db.NewIngester(store, db.IngesterOptions{FlushInterval: 5 * time.Millisecond}, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = intake.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})

	web, err := imagesource.New(imagesource.Options{Allow: allow, Max: 1 << 20})
	require.NoError(t, err)
	t.Cleanup(web.Close)

	said := &transcript.Text{}
	handler, err := agents.New(config, agents.Deps{
		Ingester: intake, Records: store, Images: web, Glance: images, Registry: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(said, nil)),
	})
	require.NoError(t, err)

	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	h := &harness{t: t, store: store, database: pool, server: httptest.NewUnstartedServer(noDefects(t, handler)), said: said}
	h.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // some handshakes are meant to fail
	t.Cleanup(h.server.Close)
	return h
}

// noDefects fails the test at any answer with status 500.
func noDefects(t testing.TB, next http.Handler) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&watched{ResponseWriter: w, t: t}, r)
	})
}

// watched sees the status of an answer.
type watched struct {
	http.ResponseWriter
	t testing.TB
}

func (w *watched) WriteHeader(status int) {
	if _, fuzzing := w.t.(*testing.F); !fuzzing && status == http.StatusInternalServerError { // a fuzz target looks itself
		w.t.Errorf("an answer has status %d", status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// plain serves without TLS, as on loopback.
func (h *harness) plain() *harness {
	h.server.Start()
	h.client = h.server.Client()
	return h
}

// authority signs certificates of agents.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a certificate authority with a key of its own.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{t: t, cert: cert, key: key}
}

// sign makes a client certificate with these URIs.
func (a *authority) sign(uris ...string) tls.Certificate { return a.signNamed("", nil, uris...) }

// host makes the certificate of a host's agent.
func (a *authority) host(name string) tls.Certificate { return a.sign("spiffe://cyborg/host/" + name) }

// signNamed makes a client certificate with a common name, DNS names and URIs.
func (a *authority) signNamed(commonName string, names []string, uris ...string) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)

	var parsed []*url.URL
	for _, uri := range uris {
		one, err := url.Parse(uri)
		require.NoError(a.t, err)
		parsed = append(parsed, one)
	}

	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: commonName}, DNSNames: names, URIs: parsed,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// mutual serves with TLS and asks for certificates of the authority.
func (h *harness) mutual(a *authority, mode tls.ClientAuthType) *harness {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	h.server.TLS = &tls.Config{ClientCAs: pool, ClientAuth: mode, MinVersion: tls.VersionTLS12}
	h.server.StartTLS()
	h.client = h.server.Client()
	return h
}

// as is the same endpoint for an agent with this certificate.
func (h *harness) as(certificate ...tls.Certificate) *harness {
	other := *h
	transport := h.server.Client().Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.Certificates = certificate
	h.t.Cleanup(transport.CloseIdleConnections)
	other.client = &http.Client{Transport: transport}
	return &other
}

// send sends a request and reads the answer. Headers are name, value, name,
// value….
func (h *harness) send(method, path string, body []byte, headers ...string) (*http.Response, []byte) {
	h.t.Helper()
	request, err := http.NewRequestWithContext(h.t.Context(), method, h.server.URL+path, bytes.NewReader(body))
	require.NoError(h.t, err)

	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	request.Host = request.Header.Get("Host")

	response, err := h.client.Do(request)
	require.NoError(h.t, err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	require.NoError(h.t, err)
	return response, got
}

func (h *harness) post(path string, value any) (*http.Response, []byte) {
	h.t.Helper()
	body, err := json.Marshal(value)
	require.NoError(h.t, err)
	return h.send(http.MethodPost, path, body)
}

// refused expects a problem of the kind.
func (h *harness) refused(kind cyborg.ErrorKind, response *http.Response, body []byte) web.Problem {
	h.t.Helper()
	require.Equal(h.t, kind.HTTPStatus(), response.StatusCode, "%s", body)
	require.Equal(h.t, "application/problem+json", response.Header.Get("Content-Type"))

	var problem web.Problem
	require.NoError(h.t, json.Unmarshal(body, &problem))
	require.Equal(h.t, kind, problem.Kind, "%s", body)
	return problem
}

// accepted expects status 200 and decodes the body.
func accepted[T any](h *harness, response *http.Response, body []byte) T {
	h.t.Helper()
	require.Equal(h.t, http.StatusOK, response.StatusCode, "%s", body)
	var value T
	require.NoError(h.t, json.Unmarshal(body, &value))
	return value
}

// report is a valid report of a host with one FPGA.
// firstAgent is an instance as those of release 0.1 are, which prove nothing.
var firstAgent = agentapi.FirstInstance("agent")

func report(host string, sequence int64) agentapi.Report {
	content := agentapi.Content{
		Backends: []agentapi.BackendReport{{
			Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"program"},
			Devices: []cyborg.DeviceReport{{
				Identity: "fpga-0", Type: cyborg.DeviceTypeFPGA, VendorID: "1d5c", ProductID: "1", Vendor: "Fake", Model: "Card",
				ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{}},
				Deployables: []cyborg.DeployableReport{{
					Name: "fpga-0", ProgramSet: "fpga-0", Attributes: []cyborg.Attribute{},
					Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeFPGA},
					Handles: []cyborg.HandleReport{{
						Kind: cyborg.HandleTestPCI, Info: map[string]string{}, Identity: "0000:01:00.0",
					}},
				}},
			}},
		}},
		Attachments: []agentapi.Attachment{},
	}

	return agentapi.Report{
		Host: host, BootID: "boot", Instance: firstAgent, AgentVersion: "test", Sequence: sequence, Digest: content.Digest(), Content: content,
	}
}

func TestReportAndHeartbeat(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{}).plain()
	first := report("h1", 1)

	response, body := h.post(agents.ReportsPath, first)
	reply := accepted[agentapi.ReportReply](h, response, body)
	require.True(t, reply.Accepted)
	require.Equal(t, "no-store", response.Header.Get("Cache-Control"))

	beat := agentapi.Heartbeat{
		Host: "h1", BootID: "boot", Instance: firstAgent, AgentVersion: "test", StartedAt: time.Now(), Digest: first.Digest, Generation: reply.Generation,
		SentAt: time.Now(),
	}

	response, body = h.post(agents.HeartbeatsPath, beat)
	require.False(t, accepted[agentapi.HeartbeatReply](h, response, body).Report)

	beat.Generation++
	response, body = h.post(agents.HeartbeatsPath, beat)
	require.True(t, accepted[agentapi.HeartbeatReply](h, response, body).Report)

	beat.Host = "never-heard-of"
	response, body = h.post(agents.HeartbeatsPath, beat)
	require.True(t, accepted[agentapi.HeartbeatReply](h, response, body).Report)

	// Without its time nobody could tell by how much the agent's clock is off.
	beat.SentAt = time.Time{}
	response, body = h.post(agents.HeartbeatsPath, beat)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Contains(t, string(body), "no sent_at")

	// In UTC this is in the year 10000, which no answer could show.
	beat.SentAt, beat.StartedAt = time.Now(), time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -12*60*60))
	response, body = h.post(agents.HeartbeatsPath, beat)
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	require.Contains(t, string(body), "started_at in the year 10000")

	accelerators, err := h.store.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: []string{"h1"}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, accelerators, 1)
}

func zip(t testing.TB, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// answers posts the reports at once and returns the channel of the statuses, in
// the order in which they are answered.
func (h *harness) answers(reports ...agentapi.Report) <-chan int {
	h.t.Helper()
	statuses := make(chan int, len(reports))
	for _, one := range reports {
		text, err := json.Marshal(one)
		require.NoError(h.t, err)
		go func() {
			response, err := h.client.Post(h.server.URL+agents.ReportsPath, "application/json", bytes.NewReader(text))
			if err != nil {
				statuses <- 0
				return
			}
			_ = response.Body.Close() // the status says it
			again, _ := strconv.Atoi(response.Header.Get("Retry-After"))
			if response.StatusCode == http.StatusTooManyRequests && again < 1 {
				statuses <- -1
				return
			}
			statuses <- response.StatusCode
		}()
	}
	return statuses
}

// hold keeps all reports from being recorded until the returned function is
// called.
func (h *harness) hold() (proceed func()) {
	h.t.Helper()
	tx, err := h.database.Begin(h.t.Context())
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(h.t.Context())) }) // a test that fails does not proceed
	_, err = tx.Exec(h.t.Context(), "LOCK TABLE hosts IN ACCESS EXCLUSIVE MODE")
	require.NoError(h.t, err)
	return func() { require.NoError(h.t, tx.Rollback(h.t.Context())) }
}

// awaitHeld waits until hold keeps a report from being recorded.
func (h *harness) awaitHeld() {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		var waits bool
		err := h.database.QueryRow(h.t.Context(), `
			SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`).Scan(&waits)
		return err == nil && waits
	}, 5*time.Minute, time.Millisecond)
}

// TestTooManyReports: an agent that waits too long for a place is told to come
// back, and when.
func TestTooManyReports(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{MaxReports: 1, ReportWait: 10 * time.Millisecond}).plain()
	proceed := h.hold()
	statuses := h.answers(report("h1", 1), report("h2", 1))
	require.Equal(t, http.StatusTooManyRequests, <-statuses)
	proceed()
	require.Equal(t, http.StatusOK, <-statuses)
}

// No host has more than two places, so that none can keep others from
// reporting.
func TestTooManyReportsOfOneHost(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{ReportWait: time.Hour}).plain()
	proceed := h.hold()
	statuses := h.answers(report("h1", 1), report("h1", 1), report("h1", 1))
	require.Equal(t, http.StatusTooManyRequests, <-statuses)
	proceed()
	require.Equal(t, http.StatusOK, <-statuses)
	require.Equal(t, http.StatusOK, <-statuses)
}

// What has arrived and waits for the database is bounded, also for agents that
// have gone meanwhile.
func TestReportsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(report("h1", 1))
	require.NoError(t, err)
	limit := int64(len(text))
	// The text of several would fit, but not what they take once they are decoded.
	h := setup(t, agents.Config{ReportLimit: limit, MaxHeld: 4 * limit}).plain()

	proceed := h.hold()
	statuses := h.answers(report("h1", 1))

	// A body that is no report is refused for that where there is room. It is sent
	// only now, because it takes room, too.
	h.awaitHeld()
	response, _ := h.send(http.MethodPost, agents.ReportsPath, []byte("{"))
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Equal(t, http.StatusTooManyRequests, <-h.answers(report("h2", 1)))

	proceed()
	require.Equal(t, http.StatusOK, <-statuses)
	require.Equal(t, http.StatusOK, <-h.answers(report("h2", 1)))
}

// One host has a part of what may wait for the database, however many of its
// certificates it shows, and then another one still has room.
func TestReportsOfOneHostThatWait(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(report("h1", 1))
	require.NoError(t, err)
	limit := int64(len(text)) + 1
	signer := newAuthority(t)
	h := setup(t, agents.Config{Certificates: true, ReportLimit: limit, MaxHeld: 2 * limit}).mutual(signer, tls.RequireAndVerifyClientCert)

	proceed := h.hold()
	first := h.as(signer.host("h1")).answers(report("h1", 1))
	h.awaitHeld()
	require.Equal(t, http.StatusTooManyRequests, <-h.as(signer.host("h1")).answers(report("h1", 1)))

	other := h.as(signer.host("h2")).answers(report("h2", 1))
	require.Empty(t, other)
	proceed()
	require.Equal(t, http.StatusOK, <-first)
	require.Equal(t, http.StatusOK, <-other)
}

// halfSent sends the head of a report and a part of its body, and returns the
// connection.
func (h *harness) halfSent() net.Conn {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.server.Listener.Addr().String())
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() }) // its server may have closed it
	_, err = io.WriteString(conn, "POST "+agents.ReportsPath+
		" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
	require.NoError(h.t, err)
	return conn
}

// Reports that are sent by halves keep no place from those that arrive.
func TestHalfSentReportsTakeNoPlace(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{MaxReports: 1, MaxBodies: 8, BodyTime: time.Hour, ReportWait: time.Hour}).plain()
	const halves, room = 64, 8
	givenUp := make(chan int, halves)
	for range halves {
		conn := h.halfSent()
		go func() {
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				givenUp <- 0 // the test is over
				return
			}
			_ = response.Body.Close() // the status says it
			givenUp <- response.StatusCode
		}()
	}
	for range halves - room {
		require.Equal(t, http.StatusTooManyRequests, <-givenUp)
	}

	for sequence := range int64(10) {
		response, body := h.post(agents.ReportsPath, report("h1", sequence+1))
		require.True(t, accepted[agentapi.ReportReply](h, response, body).Accepted)
	}
}

// Of too many bodies the slowest is given up, and each has only so much time.
func TestSlowBodiesAreGivenUp(t *testing.T) {
	t.Parallel()
	statuses := make(chan int, 5)
	status := func(conn net.Conn) {
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			statuses <- 0 // the test is over
			return
		}
		_ = response.Body.Close() // the status says it
		statuses <- response.StatusCode
	}

	few := setup(t, agents.Config{MaxBodies: 2, BodyTime: time.Hour}).plain()
	for range cap(statuses) {
		go status(few.halfSent())
	}
	for range cap(statuses) - 2 {
		require.Equal(t, http.StatusTooManyRequests, <-statuses)
	}

	short := setup(t, agents.Config{BodyTime: time.Millisecond}).plain()
	go status(short.halfSent())
	require.Equal(t, http.StatusBadRequest, <-statuses)
}

// own serves the agents of this process.
func (h *harness) own() *harness {
	h.server.Config.Handler = agents.InProcess(h.server.Config.Handler)
	return h.plain()
}

// TestNobodyElseIsInTheServersProcess: the host of an agent in the server's process
// cannot be revoked, so no agent outside may be recorded as such a one.
func TestNobodyElseIsInTheServersProcess(t *testing.T) {
	t.Parallel()
	told := report("h1", 1)
	told.Instance = agentapi.InProcessInstance("agent")

	outside := setup(t, agents.Config{}).plain()
	response, body := outside.post(agents.ReportsPath, told)
	require.Contains(t, outside.refused(cyborg.ErrInvalid, response, body).Detail, "says that it is in the server's process")

	beat := heartbeatOf("h1")
	beat.Instance = told.Instance
	response, body = outside.post(agents.HeartbeatsPath, beat)
	require.Contains(t, outside.refused(cyborg.ErrInvalid, response, body).Detail, "says that it is in the server's process")

	inside := setup(t, agents.Config{}).own()
	response, body = inside.post(agents.ReportsPath, told)
	accepted[agentapi.ReportReply](inside, response, body)
}

// halfSentOf is halfSent by an agent of this process, whose body is being read
// when it returns.
func (h *harness) halfSentOf(host string) (net.Conn, *bufio.Reader) {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.server.Listener.Addr().String())
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() }) // its server may have closed it
	_, err = io.WriteString(conn, "POST "+agents.ReportsPath+" HTTP/1.1\r\nHost: localhost\r\nCyborg-Host: "+host+
		"\r\nContent-Type: application/json\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(h.t, err)

	// The server asks for the body when it reads it.
	answers := bufio.NewReader(conn)
	for _, expected := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
		line, err := answers.ReadString('\n')
		require.NoError(h.t, err)
		require.Equal(h.t, expected, line)
	}

	_, err = io.WriteString(conn, "{")
	require.NoError(h.t, err)
	return conn, answers
}

// If every agent sends one body, those that came first may arrive, and the
// heartbeats of others do not suffer. The agents of this process are several,
// too.
func TestTheFirstBodiesArrive(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{MaxBodies: 2, BodyTime: time.Hour}).own()
	first := map[net.Conn]*bufio.Reader{}
	for _, host := range []string{"h1", "h2"} {
		conn, answers := h.halfSentOf(host)
		first[conn] = answers
	}

	text, err := json.Marshal(report("h3", 1))
	require.NoError(t, err)
	response, _ := h.send(http.MethodPost, agents.ReportsPath, text, agentapi.HostHeader, "h3")
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)

	beat, err := json.Marshal(agentapi.Heartbeat{Host: "h3", BootID: "boot", Instance: firstAgent, AgentVersion: "test", SentAt: time.Now()})
	require.NoError(t, err)
	response, body := h.send(http.MethodPost, agents.HeartbeatsPath, beat, agentapi.HostHeader, "h3")
	accepted[agentapi.HeartbeatReply](h, response, body)

	for conn, answers := range first {
		_, err := io.WriteString(conn, "}"+strings.Repeat(" ", 998))
		require.NoError(t, err)
		response, err := http.ReadResponse(answers, nil)
		require.NoError(t, err)
		_ = response.Body.Close() // the status says it
		require.Equal(t, http.StatusBadRequest, response.StatusCode, "it has arrived, and is no report")
	}

	response, body = h.send(http.MethodPost, agents.ReportsPath, text, agentapi.HostHeader, "h3")
	accepted[agentapi.ReportReply](h, response, body)
}

// The large reports of one peer wait for each other, however many they are:
// several agents can be one peer.
func TestLargeReportsOfOnePeerWait(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{ReportWait: time.Hour}).plain()
	proceed := h.hold()

	var reports []agentapi.Report
	for n := range 6 {
		one := report(fmt.Sprintf("h%d", n), 1)
		one.Content.Backends[0].Error = strings.Repeat("e", 3<<19)
		reports = append(reports, one)
	}
	statuses := h.answers(reports...)

	h.awaitHeld()
	require.Empty(t, statuses)

	proceed()
	for range reports {
		require.Equal(t, http.StatusOK, <-statuses)
	}
}

// TestTooManyLargeReports: large reports wait for each other, and do not keep
// others from reporting.
func TestTooManyLargeReports(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{MaxLarge: 1, ReportWait: 2 * time.Second, BodyTime: time.Hour}).plain()
	body, slow := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.server.URL+agents.ReportsPath, body)
	require.NoError(t, err)

	request.Header.Set("Content-Type", "application/json")

	first := make(chan struct{})
	go func() {
		defer close(first)
		if response, err := h.client.Do(request); err == nil {
			_ = response.Body.Close() // what it says does not matter
		}
	}()

	large := bytes.Repeat([]byte(" "), 3<<19)
	_, err = slow.Write(large)
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		response, _ := h.send(http.MethodPost, agents.ReportsPath, zip(t, large), "Content-Encoding", "gzip")
		return response.StatusCode == http.StatusTooManyRequests
	}, 5*time.Minute, time.Millisecond)

	response, text := h.post(agents.ReportsPath, report("h1", 1))
	require.True(t, accepted[agentapi.ReportReply](h, response, text).Accepted)
	require.NoError(t, slow.Close())
	<-first

	large = append(large, '{', '}')
	response, text = h.send(http.MethodPost, agents.ReportsPath, large)
	h.refused(cyborg.ErrInvalid, response, text)
}

func TestReportCompressed(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{ReportLimit: 8 << 10}).plain()
	text, err := json.Marshal(report("h1", 1))
	require.NoError(t, err)

	response, body := h.send(http.MethodPost, agents.ReportsPath, zip(t, text), "Content-Encoding", "gzip")
	require.True(t, accepted[agentapi.ReportReply](h, response, body).Accepted)

	bomb := zip(t, bytes.Repeat([]byte(" "), 1<<20))
	require.Less(t, len(bomb), 8<<10, "small on the wire")
	response, body = h.send(http.MethodPost, agents.ReportsPath, bomb, "Content-Encoding", "gzip")
	h.refused(cyborg.ErrTooLarge, response, body)

	response, body = h.send(http.MethodPost, agents.ReportsPath, bytes.Repeat([]byte(" "), 9<<10))
	h.refused(cyborg.ErrTooLarge, response, body)

	response, body = h.send(http.MethodPost, agents.ReportsPath, text, "Content-Encoding", "gzip")
	h.refused(cyborg.ErrInvalid, response, body)
	response, body = h.send(http.MethodPost, agents.ReportsPath, zip(t, text)[:40], "Content-Encoding", "gzip")
	h.refused(cyborg.ErrInvalid, response, body)
	response, body = h.send(http.MethodPost, agents.ReportsPath, text, "Content-Encoding", "br")
	h.refused(cyborg.ErrInvalid, response, body)
}

func TestInvalidReports(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{}).plain()
	valid, err := json.Marshal(report("h1", 1))
	require.NoError(t, err)
	text := string(valid)

	for name, body := range map[string]string{
		"empty":       "",
		"not JSON":    "{",
		"a list":      "[]",
		"null":        "null",
		"wrong types": `{"host": 7}`,
		"no host":     strings.Replace(text, `"host":"h1"`, `"host":""`, 1),
		"no boot id":  strings.Replace(text, `"boot_id":"boot"`, `"boot_id":""`, 1),
		"no instance": strings.Replace(text, `"instance":"`+firstAgent+`"`, `"instance":""`, 1),
		"no sequence": strings.Replace(text, `"sequence":1`, `"sequence":0`, 1),
		"no digest":   `{"host":"h1","boot_id":"b","instance":"agent","sequence":1}`,
		"NUL":         strings.Replace(text, `"Card"`, `"Ca\u0000rd"`, 1),
	} {
		response, got := h.send(http.MethodPost, agents.ReportsPath, []byte(body))
		require.Equal(t, http.StatusBadRequest, response.StatusCode, "%s: %s", name, got)
		h.refused(cyborg.ErrInvalid, response, got)
	}

	response, got := h.send(http.MethodPost, agents.HeartbeatsPath, []byte(`{"host":""}`))
	h.refused(cyborg.ErrInvalid, response, got)

	response, got = h.send(http.MethodPost, agents.HeartbeatsPath, []byte(`{"host":"h1"}`))
	h.refused(cyborg.ErrInvalid, response, got)

	response, got = h.send(http.MethodGet, "/agent/v1/nothing", nil)
	h.refused(cyborg.ErrNotFound, response, got)

	response, _ = h.send(http.MethodGet, agents.ReportsPath, nil)
	require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	response, _ = h.send(http.MethodGet, agents.HealthPath, nil)
	require.Equal(t, http.StatusOK, response.StatusCode)

	// A property that a later release adds is ignored, and u0000 after an escaped
	// backslash is only text.
	odd := strings.Replace(text, `"host":"h1"`, `"host":"h1","colour":"red"`, 1)
	odd = strings.Replace(odd, `"Card"`, `"C\\u0000"`, 1)

	response, got = h.send(http.MethodPost, agents.ReportsPath, []byte(odd))
	accepted[agentapi.ReportReply](h, response, got)
	_, err = h.store.Host(t.Context(), "h1")
	require.NoError(t, err)
}

// Without certificates anybody on the machine is believed, and has proved nothing:
// what such a caller does wrong leaves no line in the log.
func TestStrangersAreNotLogged(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)
	h := setup(t, agents.Config{}, url).plain()
	response, body := h.post(agents.ReportsPath, report("h1", 1))
	accepted[agentapi.ReportReply](h, response, body)

	response, body = h.send(http.MethodGet, agents.HostsPath+"h2", nil)
	h.refused(cyborg.ErrNotFound, response, body)

	wrong := report("h1", 2)
	wrong.Content.Backends[0].State = "maybe"
	response, body = h.post(agents.ReportsPath, wrong)
	h.refused(cyborg.ErrInvalid, response, body)

	other := report("h1", 3)
	other.Instance = "another agent"
	response, body = h.post(agents.ReportsPath, other)
	h.refused(cyborg.ErrClaimed, response, body)
	response, body = h.post(agents.HeartbeatsPath, agentapi.Heartbeat{Host: "h1", BootID: "b", Instance: "another agent", SentAt: time.Now()})
	h.refused(cyborg.ErrClaimed, response, body)

	path := workflows.ImagesPath + h.programming(url+"/nothing", true).String()
	response, body = h.send(http.MethodGet, path, nil)
	h.refused(cyborg.ErrNotFound, response, body)
	require.Empty(t, h.said.String())

	// The host's agent may prove that it is this one. What it does wrong is logged.
	_, err := h.database.Exec(t.Context(), "UPDATE hosts SET instance = $1", agentapi.ProvenInstance("proof"))
	require.NoError(t, err)
	response, body = h.send(http.MethodGet, path, nil)
	h.refused(cyborg.ErrForbidden, response, body)
	require.Empty(t, h.said.String())
	response, body = h.send(http.MethodGet, path, nil, agentapi.ProofHeader, "proof")
	h.refused(cyborg.ErrNotFound, response, body)
	require.Contains(t, h.said.String(), "actor=h1")
}

// A web page that somebody on the machine visits cannot report: neither from
// another origin, nor under a name that it made up, nor with a body that a
// browser sends anywhere.
func TestBrowsersCannotReport(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{}).plain()
	text, err := json.Marshal(report("h1", 1))
	require.NoError(t, err)

	for name, headers := range map[string][]string{
		"another origin": {"Origin", "http://evil.example"},
		"another site":   {"Sec-Fetch-Site", "cross-site"},
		"another name":   {"Host", "evil.example:6667"},
	} {
		response, body := h.send(http.MethodPost, agents.ReportsPath, text, headers...)
		require.Equal(t, http.StatusForbidden, response.StatusCode, "%s: %s", name, body)
		h.refused(cyborg.ErrForbidden, response, body)
	}

	for _, path := range []string{agents.HostsPath + "h1", agents.HealthPath, workflows.ImagesPath + uuid.NewString()} {
		response, body := h.send(http.MethodGet, path, nil, "Host", "evil.example")
		h.refused(cyborg.ErrForbidden, response, body)
	}

	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "text/plain; x=application/json"} {
		for _, path := range []string{agents.ReportsPath, agents.DifferencesPath, agents.HeartbeatsPath} {
			response, body := h.send(http.MethodPost, path, text, "Content-Type", kind)
			require.Contains(t, h.refused(cyborg.ErrInvalid, response, body).Detail, "application/json", kind)
		}
	}
	_, err = h.store.Host(t.Context(), "h1")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	response, body := h.send(http.MethodPost, agents.ReportsPath, text, "Content-Type", "application/json; charset=utf-8", "Host", "localhost:6667")
	require.True(t, accepted[agentapi.ReportReply](h, response, body).Accepted)
}

// Whoever may ask the endpoint learns no instance from it: with that it could
// speak for the host.
func TestInstanceIsNotTold(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{}).plain()
	first, second := report("h1", 1), report("h1", 2)
	first.Instance, second.Instance = "the-instance-of-h1", "another-instance"
	first.BootID, second.BootID = "the-boot-of-h1", "the-boot-of-another"

	response, answer := h.post(agents.ReportsPath, first)
	require.Equal(t, http.StatusOK, response.StatusCode)
	told := string(answer)
	response, answer = h.post(agents.ReportsPath, second)
	h.refused(cyborg.ErrClaimed, response, answer)
	told += string(answer)

	for _, instance := range []string{"", first.Instance, second.Instance} { // "" is that of an agent which never ran
		response, answer := h.send(http.MethodGet, agents.HostsPath+"h1", nil, agentapi.InstanceHeader, instance)
		reply := accepted[agentapi.HostReply](h, response, answer)
		require.Equal(t, instance != first.Instance, reply.OtherAgent)
		require.True(t, reply.GrantsOff, "as is configured here")
		require.Equal(t, []agentapi.DuplicateAgent{{Address: "127.0.0.1"}}, reply.DuplicateAgents)
		told += string(answer)
	}

	response, answer = h.post(agents.HeartbeatsPath, agentapi.Heartbeat{
		Host: "h1", BootID: "a-third-boot", Instance: "a-third-instance", AgentVersion: "test", SentAt: time.Now(),
	})
	h.refused(cyborg.ErrClaimed, response, answer)
	told += string(answer)

	for _, secret := range []string{first.Instance, first.BootID} {
		require.NotContains(t, told, secret)
	}
}

// An agent speaks only for the host that the URI of its certificate names,
// exactly. Nothing else in the certificate counts.
func TestCertificates(t *testing.T) {
	t.Parallel()
	signer := newAuthority(t)
	h := setup(t, agents.Config{Certificates: true}).mutual(signer, tls.RequireAndVerifyClientCert)

	for name, test := range map[string]struct {
		certificate tls.Certificate
		ok          bool
	}{
		"the host":               {signer.host("h1"), true},
		"with other names":       {signer.signNamed("h2", []string{"h2"}, "spiffe://cyborg/host/h1"), true},
		"another host":           {signer.host("h2"), false},
		"another with its names": {signer.signNamed("h1", []string{"h1"}, "spiffe://cyborg/host/h2"), false},
		"upper case":             {signer.host("H1"), false},
		"common name":            {signer.signNamed("h1", nil), false},
		"common name with URI":   {signer.signNamed("spiffe://cyborg/host/h1", nil), false},
		"DNS name":               {signer.signNamed("agent", []string{"h1"}), false},
		"wildcard":               {signer.signNamed("*", []string{"*"}), false},
		"no name at all":         {signer.sign(), false},
		"part of the name":       {signer.host("h"), false},
		"longer than it":         {signer.host("h1.example.org"), false},
		"two URIs":               {signer.sign("spiffe://cyborg/host/h1", "spiffe://cyborg/host/h2"), false},
		"the same URI twice":     {signer.sign("spiffe://cyborg/host/h1", "spiffe://cyborg/host/h1"), false},
		"another trust domain":   {signer.sign("spiffe://lab/host/h1"), false},
		"a server":               {signer.sign("spiffe://cyborg/server/h1"), false},
		"an admin":               {signer.sign("spiffe://cyborg/admin/h1"), false},
	} {
		agent := h.as(test.certificate)
		for path, message := range map[string]any{
			agents.ReportsPath:    report("h1", 1),
			agents.HeartbeatsPath: agentapi.Heartbeat{Host: "h1", BootID: "boot", Instance: firstAgent, AgentVersion: "test", SentAt: time.Now()},
		} {
			response, body := agent.post(path, message)
			if test.ok {
				require.Equal(t, http.StatusOK, response.StatusCode, "%s: %s", name, body)
			} else {
				h.refused(cyborg.ErrForbidden, response, body)
			}
		}
	}

	stranger := h.as(newAuthority(t).host("h1"))
	_, err := stranger.client.Get(h.server.URL + agents.HealthPath)
	require.Error(t, err)
}

// The endpoint demands a certificate itself, so that a listener that does not
// is no way around it.
func TestCertificatesAreRequiredByTheEndpoint(t *testing.T) {
	t.Parallel()
	h := setup(t, agents.Config{Certificates: true}).mutual(newAuthority(t), tls.VerifyClientCertIfGiven)
	response, body := h.post(agents.ReportsPath, report("h1", 1))
	h.refused(cyborg.ErrUnauthenticated, response, body)
}

// anySum is the checksum of the image of such an operation.
var anySum = strings.Repeat("ab", 32)

// programming admits an operation that programs the accelerator of host h1 with
// the image, begins it if asked to, and returns its id.
func (h *harness) programming(source string, begin bool) uuid.UUID {
	h.t.Helper()
	ctx := h.t.Context()
	_, err := h.store.MergeReports(ctx, []agentapi.Report{report("h1", 1)})
	require.NoError(h.t, err)
	accelerators, err := h.store.Accelerators(ctx, db.AcceleratorFilter{}, db.Page{Limit: 1})
	require.NoError(h.t, err)
	target := accelerators[0].UUID

	run := func(admission db.Admission, end bool) uuid.UUID {
		admission.ID, admission.Actor = uuid.New(), cyborg.Actor{Name: "test"}
		_, err := h.store.Admit(ctx, admission)
		require.NoError(h.t, err)

		if end || begin {
			_, err = h.store.Begin(ctx, db.Run{Operation: admission.ID, ID: "run"})
			require.NoError(h.t, err)
		}

		if end {
			require.NoError(h.t, h.store.End(ctx, db.Run{Operation: admission.ID, ID: "run"}, cyborg.Outcome{Operation: admission.ID, State: cyborg.OperationSucceeded}))
		}
		return admission.ID
	}

	run(db.Admission{Request: cyborg.ProvisionRequest{Accelerator: target}}, true)
	return run(db.Admission{Request: cyborg.ProgramRequest{
		Accelerator: target, Image: cyborg.Image{Source: source, SHA256: anySum},
	}}, false)
}

// origin serves an image in three ways: with ranges, without them or its size,
// and cut short.
func origin(t *testing.T) (url string, image []byte) {
	t.Helper()
	image = make([]byte, 700_000)
	_, err := rand.Read(image)
	require.NoError(t, err)

	mux := http.NewServeMux()
	mux.HandleFunc("/ranged", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(image))
	})
	mux.HandleFunc("/plain", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(image) })
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "700000")
		_, _ = w.Write(image[:1000])
	})

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, image
}

func TestImage(t *testing.T) {
	t.Parallel()
	url, image := origin(t)
	h := setup(t, agents.Config{}, url).plain()
	sum := sha256.Sum256(image)
	path := workflows.ImagesPath + h.programming(url+"/ranged", true).String()

	response, body := h.send(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, int64(len(image)), response.ContentLength)
	require.Equal(t, "bytes", response.Header.Get("Accept-Ranges"))

	got := sha256.Sum256(body)
	require.Equal(t, hex.EncodeToString(sum[:]), hex.EncodeToString(got[:]))

	response, body = h.send(http.MethodGet, path, nil, "Range", "bytes=699000-")
	require.Equal(t, http.StatusPartialContent, response.StatusCode)
	require.Equal(t, "bytes 699000-699999/700000", response.Header.Get("Content-Range"))
	require.True(t, bytes.Equal(image[699_000:], body))

	response, _ = h.send(http.MethodGet, path, nil, "Range", "bytes=700001-")
	require.Equal(t, http.StatusRequestedRangeNotSatisfiable, response.StatusCode)
	for _, odd := range []string{"bytes=-5", "bytes=1-2", "bytes=x-", "lines=1-", "bytes=1-,3-"} {
		response, body = h.send(http.MethodGet, path, nil, "Range", odd)
		h.refused(cyborg.ErrInvalid, response, body)
	}
}

// If the source does not tell the size of an image, no range can be served and
// the whole image is sent.
func TestImageOfUnknownSize(t *testing.T) {
	t.Parallel()
	url, image := origin(t)
	h := setup(t, agents.Config{}, url).plain()
	path := workflows.ImagesPath + h.programming(url+"/plain", true).String()

	response, body := h.send(http.MethodGet, path, nil, "Range", "bytes=1000-")
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.True(t, bytes.Equal(image, body))
}

// A transfer that breaks off at the source breaks off at the agent, too, which
// must not take a part for the whole.
func TestInterruptedImage(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)
	h := setup(t, agents.Config{}, url).plain()
	path := workflows.ImagesPath + h.programming(url+"/short", true).String()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.server.URL+path, nil)
	require.NoError(t, err)
	response, err := h.client.Do(request)
	if err == nil { // else it broke off before the first part was sent
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
	}
	require.ErrorContains(t, err, "EOF")
}

func TestImageRefused(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)

	for name, test := range map[string]struct {
		source string
		begin  bool
		kind   cyborg.ErrorKind
	}{
		"not begun":   {url + "/ranged", false, cyborg.ErrChanged},
		"not allowed": {"http://169.254.169.254/", true, cyborg.ErrForbidden},
		"on the host": {"a.bin", true, cyborg.ErrInvalid},
		"not there":   {url + "/nothing", true, cyborg.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t, agents.Config{}, url).plain()
			response, body := h.send(http.MethodGet, workflows.ImagesPath+h.programming(test.source, test.begin).String(), nil)
			h.refused(test.kind, response, body)
		})
	}

	h := setup(t, agents.Config{}, url).plain()
	response, body := h.send(http.MethodGet, workflows.ImagesPath+uuid.NewString(), nil)
	h.refused(cyborg.ErrForbidden, response, body)
	response, body = h.send(http.MethodGet, workflows.ImagesPath+"x", nil)
	h.refused(cyborg.ErrInvalid, response, body)
}

// A reload has only the URL as it is shown. The host keeps what it has loaded;
// one that did not is told why it cannot have the image.
func TestImageOfAnUnknownQueryIsRefused(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)
	h := setup(t, agents.Config{}, url).plain()
	operation := h.programming(url+"/ranged", true)
	_, err := h.database.Exec(t.Context(), "UPDATE operations SET input = jsonb_set(input, '{image,source}', to_jsonb($1::text)) WHERE id = $2",
		cyborg.ShowSource(url+"/ranged?signature=1"), operation)
	require.NoError(t, err)

	response, body := h.send(http.MethodGet, workflows.ImagesPath+operation.String(), nil)
	require.Contains(t, h.refused(cyborg.ErrInvalid, response, body).Detail, "the query of its URL was deleted")
}

// An agent may not fetch the image of another host's operation, and does not learn
// whether there is one.
func TestImageForAnotherHostIsRefused(t *testing.T) {
	t.Parallel()
	url, _ := origin(t)
	signer := newAuthority(t)
	h := setup(t, agents.Config{Certificates: true}, url).mutual(signer, tls.RequireAndVerifyClientCert)
	operation := h.programming(url+"/ranged", true).String()
	path := workflows.ImagesPath + operation

	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		response, body := h.as(signer.host("h2")).send(method, path, nil)
		there := h.refused(cyborg.ErrForbidden, response, body)
		made := uuid.NewString()
		response, body = h.as(signer.host("h2")).send(method, workflows.ImagesPath+made, nil)
		none := h.refused(cyborg.ErrForbidden, response, body)
		require.Equal(t, there.Detail, strings.ReplaceAll(none.Detail, made, operation))
		require.Equal(t, there.Hint, none.Hint)
	}
	response, _ := h.as(signer.host("h1")).send(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, response.StatusCode)
}
