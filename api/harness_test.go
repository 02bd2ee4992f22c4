package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/policy"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { leaktest.Main(postgrestest.Runner(m)) }

// harness is a whole API over a real store, with an engine in this process.
type harness struct {
	t        testing.TB
	url      string // of the database
	store    *db.Store
	engine   *engine
	registry *prometheus.Registry
	handler  http.Handler
	server   *httptest.Server
	token    string // sent with each request, if set
	defects  *defects
}

const (
	readerToken = "reader-secret-0123456789"
	memberToken = "member-secret-0123456789"
	otherToken  = "other-secret-0123456789"
	adminToken  = "admin-secret-0123456789"
)

// withTokens demands one of the static tokens from every caller.
func withTokens(config *api.Config) {
	config.Auth.Tokens = []auth.Token{
		{Name: "rita", Secret: readerToken, Role: auth.Reader},
		{Name: "mia", Secret: memberToken, Role: auth.Member},
		{Name: "otto", Secret: otherToken, Role: auth.Member},
		{Name: "ada", Secret: adminToken, Role: auth.Admin},
	}
}

// defaults are the store's options of most tests. No host falls silent by itself,
// however slow the machine is.
func defaults() db.Options { return db.Options{SilentAfter: 25 * time.Minute} }

// setup serves the API over a database of its own.
func setup(t testing.TB, options ...func(*api.Config)) *harness {
	t.Helper()
	return setupOf(t, defaults(), func(*api.Deps) {}, options...)
}

// setupWith is setup with changed dependencies.
func setupWith(t testing.TB, change func(deps *api.Deps)) *harness {
	t.Helper()
	return setupOf(t, defaults(), change)
}

// setupOf is setup with options of the store and with changed dependencies.
func setupOf(t testing.TB, opts db.Options, change func(*api.Deps), options ...func(*api.Config)) *harness {
	t.Helper()
	url := postgrestest.NewFrom(t, "schema", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	log := slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	opts.MaxConns = 6
	store, err := db.Open(t.Context(), url, opts, log)
	require.NoError(t, err)

	h := &harness{t: t, url: url, store: store, engine: newEngine(t, store), registry: prometheus.NewRegistry()}
	t.Cleanup(store.Close)
	t.Cleanup(h.engine.work.Wait)

	config := api.Config{V1: v1.Config{SyncWait: waitLimit}, V2: v2.Config{BindWait: waitLimit}}
	for _, option := range options {
		option(&config)
	}

	rules, err := policy.New(policy.Config{EnforceNewDefaults: true, Log: log})
	require.NoError(t, err)

	deps := api.Deps{Store: store, Engine: h.engine, Policy: rules, Registry: h.registry, Log: log}
	change(&deps)
	handler, err := api.New(config, deps)
	require.NoError(t, err)

	h.defects = &defects{t: t, next: handler}
	h.handler = h.defects
	h.server = httptest.NewServer(h.handler)
	t.Cleanup(h.server.Close)
	return h
}

// defects fails the test at any answer with status 500: neither a caller nor
// trouble around the server may bring one about.
type defects struct {
	t      testing.TB
	next   http.Handler
	wanted atomic.Bool // the test provokes them
}

func (d *defects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.next.ServeHTTP(&watchedAnswer{w, func(status int) {
		if status == http.StatusInternalServerError && !d.wanted.Load() {
			d.t.Errorf("%s %s is answered with %d", r.Method, r.URL, status)
		}
	}}, r)
}

// watchedAnswer tells the status of an answer.
type watchedAnswer struct {
	http.ResponseWriter
	tell func(status int)
}

func (w *watchedAnswer) WriteHeader(status int) {
	w.tell(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *watchedAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// testLog writes a server's log into the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	if _, fuzzing := l.t.(*testing.F); !fuzzing && l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSuffix(string(line), "\n"))
	}
	return len(line), nil
}

// report is an inventory with FPGA cards of one deployable with two handles
// each, and a GPU with one.
func report(host string, sequence int64, fpgas int) agentapi.Report {
	var devices []cyborg.DeviceReport
	add := func(kind cyborg.DeviceType, i, handles int) {
		name := fmt.Sprintf("%s-%d", strings.ToLower(string(kind)), i)

		deployable := cyborg.DeployableReport{
			Name: name, ProgramSet: name,
			Specs: cyborg.Specs{
				Num: handles, DeviceType: kind, Type: "crypto", VendorID: "1d5c", ProductID: "0001",
				Capability: cyborg.JSONObject{"crypto": map[string]any{"gbps": 40}},
			},
			Attributes: []cyborg.Attribute{{Key: "rc", Value: string(kind)}},
		}

		for n := range handles {
			address := cyborg.PCIAddress{Bus: uint8(i + 1), Function: uint8(n)}
			if kind == cyborg.DeviceTypeGPU {
				address.Domain = 1
			}
			deployable.Handles = append(deployable.Handles, cyborg.HandleReport{
				Kind: cyborg.HandleTestPCI, Info: address.HandleInfo(), Identity: address.String(),
			})
		}

		devices = append(devices, cyborg.DeviceReport{
			Identity: name, Type: kind, VendorID: "1d5c", ProductID: "0001", Vendor: "Fake", Model: "Card",
			ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": "01"}},
			Deployables: []cyborg.DeployableReport{deployable},
		})
	}

	for i := range fpgas {
		add(cyborg.DeviceTypeFPGA, i, 2)
	}
	add(cyborg.DeviceTypeGPU, fpgas, 1)

	content := agentapi.Content{
		Backends: []agentapi.BackendReport{{
			Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"install", "attach", "program"}, Devices: devices,
		}},
		Attachments: []agentapi.Attachment{},
	}
	return agentapi.Report{
		Host: host, BootID: "boot-1", AgentVersion: "test", Sequence: sequence, Digest: content.Digest(), Content: content,
	}
}

// host makes a host with so many FPGA cards and one GPU known, and returns its
// accelerators by the names that its driver gives them.
func (h *harness) host(name string, fpgas int) map[string]cyborg.Accelerator {
	h.t.Helper()
	_, err := h.store.MergeReports(h.t.Context(), []agentapi.Report{report(name, 1, fpgas)})
	require.NoError(h.t, err)
	accelerators, err := h.store.Accelerators(h.t.Context(), db.AcceleratorFilter{Hosts: []string{name}}, db.Page{Limit: 1000})
	require.NoError(h.t, err)

	found := map[string]cyborg.Accelerator{}
	for _, accelerator := range accelerators {
		found[accelerator.LocalName] = accelerator
	}

	require.Len(h.t, found, fpgas+1)
	return found
}

// ready makes host h1 known and puts its first FPGA in service under the given
// name.
func (h *harness) ready(name string) cyborg.Accelerator {
	h.t.Helper()
	accelerator := h.host("h1", 2)["fpga-0"]
	h.do("POST", "/v1/accelerators/"+accelerator.UUID.String(), map[string]any{"name": name}).expect(http.StatusCreated)
	return h.accelerator(accelerator.UUID)
}

// accelerator reads the accelerator from the database.
func (h *harness) accelerator(id uuid.UUID) cyborg.Accelerator {
	h.t.Helper()
	accelerator, err := h.store.Accelerator(h.t.Context(), id)
	require.NoError(h.t, err)
	return accelerator
}

// reply is an answer, with a line about it for failures.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
	what   string
}

// do sends a request and checks request and answer against the OpenAPI
// document. A text body is sent as it is, any other as JSON. Headers are name,
// value, name, value….
func (h *harness) do(method, path string, body any, headers ...string) *reply {
	h.t.Helper()
	var sent []byte
	switch b := body.(type) {
	case nil:
	case string:
		sent = []byte(b)
	default:
		var err error
		sent, err = json.Marshal(body)
		require.NoError(h.t, err)
	}

	request, err := http.NewRequestWithContext(h.t.Context(), method, h.server.URL+path, bytes.NewReader(sent))
	require.NoError(h.t, err)
	if len(sent) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}

	if h.token != "" {
		request.Header.Set("Authorization", "Bearer "+h.token)
	}

	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}

	response, err := h.server.Client().Do(request)
	require.NoError(h.t, err)
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	require.NoError(h.t, err)

	what := fmt.Sprintf("%s %s: %d %s", method, path, response.StatusCode, got)
	require.NoError(h.t, contractOf(h.t, request.URL.Path).check(h.t.Context(), request, sent, response, got), what)
	require.Regexp(h.t, `^req-[0-9a-f-]{36}$`, response.Header.Get(web.RequestIDHeader), what)
	require.Equal(h.t, "no-store", response.Header.Get("Cache-Control"), what)
	return &reply{t: h.t, status: response.StatusCode, header: response.Header, body: got, what: what}
}

// as returns the same harness with the token of somebody else.
func (h *harness) as(token string) *harness {
	other := *h
	other.token = token
	return &other
}

// expect requires the status.
func (r *reply) expect(status int) *reply {
	r.t.Helper()
	require.Equal(r.t, status, r.status, r.what)
	return r
}

// problem expects an error of the kind, with the status that the table of kinds
// has for it.
func (r *reply) problem(kind cyborg.ErrorKind) web.Problem {
	r.t.Helper()
	r.expect(kind.HTTPStatus())
	require.Equal(r.t, "application/problem+json", r.header.Get("Content-Type"), r.what)

	var problem web.Problem
	r.json(&problem)

	require.Equal(r.t, kind, problem.Kind, r.what)
	require.Equal(r.t, r.status, problem.Status, r.what)
	require.Equal(r.t, r.header.Get(web.RequestIDHeader), problem.RequestID, r.what)
	return problem
}

// json decodes the body.
func (r *reply) json(into any) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal(r.body, into), r.what)
}

// as decodes the body as a T.
func as[T any](r *reply) T {
	r.t.Helper()
	var value T
	r.json(&value)
	return value
}

// acceleratorBody is an accelerator as callers see it.
type acceleratorBody struct {
	cyborg.Accelerator
	Status  cyborg.Status   `json:"status"`
	Holders []cyborg.Holder `json:"holders"`
}

// path is the path of an accelerator, or of something below it.
func path(accelerator cyborg.Accelerator, rest ...string) string {
	return "/v1/accelerators/" + accelerator.UUID.String() + strings.Join(rest, "")
}

// How long to wait for what must happen, and how often to look.
const (
	waitLimit = 5 * time.Minute
	poll      = 10 * time.Millisecond
)

// metric is the value of a gauge or counter, summed over its labels.
func (h *harness) metric(name string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	require.NoError(h.t, err)

	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, metric := range family.GetMetric() {
				sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}
