package bench_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m)) }

// The hosts of these benchmarks have enough handles for 64 clients and 1,000
// other instances.
const (
	bindHosts   = 4
	bindCards   = 8
	bindHandles = 36
)

// stubNova accepts all events and counts them.
type stubNova struct {
	*httptest.Server

	events atomic.Int64
}

// newStubNova starts a stub of Nova.
func newStubNova(b *testing.B) *stubNova {
	b.Helper()
	nova := &stubNova{}

	routes := http.NewServeMux()
	routes.HandleFunc("POST /v2.1/os-server-external-events", func(w http.ResponseWriter, r *http.Request) {
		var sent struct {
			Events []map[string]any `json:"events"`
		}

		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}

		for _, event := range sent.Events {
			event["code"] = http.StatusOK
		}

		nova.events.Add(int64(len(sent.Events)))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(sent) // a client that gets no answer repeats the request
	})
	nova.Server = httptest.NewServer(routes)

	b.Cleanup(nova.Close)
	return nova
}

// bindCloud is a standalone in an OpenStack with a real Keystone and Placement,
// and a client that sends what Nova sends.
type bindCloud struct {
	*harness.Standalone

	nova      *stubNova
	client    *http.Client
	token     string // of the user of the instances
	service   string // of Nova itself
	providers []cloudProvider
}

// cloudProvider is the resource provider of an accelerator.
type cloudProvider struct{ host, uuid string }

// startBindCloud runs a standalone on the rig, which the benchmark has for itself,
// and returns when all accelerators are in service. Its hosts' names begin with the
// prefix.
func startBindCloud(b *testing.B, r *rig.Rig, prefix string, with func(harness.Options) harness.Options) *bindCloud {
	b.Helper()
	nova := newStubNova(b)

	options := harness.Options{Token: "the-token-of-the-benchmarks", Env: []string{
		"CYBORG_OPENSTACK_AUTH_URL=" + r.Keystone, "CYBORG_OPENSTACK_PASSWORD=" + r.Password, "CYBORG_OPENSTACK_REGION=" + r.Region,
		fmt.Sprintf("CYBORG_OPENSTACK_ENDPOINTS=[{service: compute, url: %q}]", nova.URL+"/v2.1"),
		"CYBORG_KEYSTONE_ENABLED=true", "CYBORG_PLACEMENT_ENABLED=true", "CYBORG_NOVA_ENABLED=true", "CYBORG_INVENTORY_ADMISSION=auto", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=2s", "CYBORG_LOG_LEVEL=warn",
		"CYBORG_SERVER_PPROF_LISTEN=" + *profiled,
	}}

	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	b.Cleanup(transport.CloseIdleConnections)
	c := &bindCloud{nova: nova, client: &http.Client{Transport: transport}, token: r.Token(b, "demo"), service: r.Token(b, "nova")}

	for i := range bindHosts {
		host := fmt.Sprintf("%s-%d", prefix, i)
		options.Hosts = append(options.Hosts, fmt.Sprintf("%s=fake:%dxfpga", host, bindCards))
		status, _, err := c.send(b.Context(), http.MethodPost, r.Placement+"/resource_providers", map[string]any{"name": host},
			"X-Auth-Token", r.Token(b, "admin"), "OpenStack-API-Version", "placement 1.39")
		require.NoError(b, err)
		require.Contains(b, []int{http.StatusOK, http.StatusConflict}, status, "an earlier benchmark may have created the provider")
	}

	c.Standalone = harness.Start(b, with(options))
	c.waitReady(b, 1)

	for i := range bindHosts {
		_, err := c.API.UpdateDriver(b.Context(), fmt.Sprintf("%s-%d", prefix, i), "fake",
			cyborg.JSONObject{"park": fmt.Sprintf("%dxfpga", bindCards), "handles": bindHandles})
		require.NoError(b, err)
	}

	c.waitReady(b, bindHandles)
	status, body, err := c.send(b.Context(), http.MethodPost, c.URL+"/v2/device_profiles",
		[]map[string]any{{"name": "bench", "groups": []map[string]string{{"resources:FPGA": "1"}}}}, "X-Auth-Token", r.Token(b, "admin"))
	require.NoError(b, err)
	require.Equal(b, http.StatusCreated, status, "%s", body)

	return c
}

// waitReady waits until all accelerators are ready with this many handles.
func (c *bindCloud) waitReady(b *testing.B, handles int) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()

	harness.Until(b, ctx, "in service", func() error {
		all, err := apiclient.Collect(c.API.Accelerators(ctx, apiclient.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusReady}}, apiclient.Page{}))
		if err != nil {
			return err
		}

		c.providers = nil
		for i := range all {
			if len(all[i].Handles) == handles {
				c.providers = append(c.providers, cloudProvider{all[i].Host, all[i].ProviderUUID.String()})
			}
		}

		if len(c.providers) != bindHosts*bindCards {
			return fmt.Errorf("%d of %d accelerators are ready", len(c.providers), bindHosts*bindCards)
		}
		return nil
	})
}

// send sends a request. header holds names and values in turn.
func (c *bindCloud) send(ctx context.Context, method, url string, body any, header ...string) (int, []byte, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(text)
	}

	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return 0, nil, err
	}

	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}

	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}

	response, err := c.client.Do(request)
	if err != nil {
		return 0, nil, err
	}

	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// ask sends a request about accelerator requests as Nova does. Another status
// than want is an error.
func (c *bindCloud) ask(ctx context.Context, method, query string, body any, want int) ([]byte, error) {
	status, answer, err := c.send(ctx, method, c.URL+"/v2/accelerator_requests"+query, body, "X-Auth-Token", c.token, "X-Service-Token", c.service)
	if err == nil && status != want {
		err = fmt.Errorf("%s %s is answered %d, not %d: %s", method, query, status, want, answer)
	}
	return answer, err
}

// boundARQ is the part of an accelerator request that the benchmark reads.
type boundARQ struct{ UUID, State string }

// bind creates a request, binds it to an instance, and returns when it is
// bound.
func (c *bindCloud) bind(ctx context.Context, instance string, at cloudProvider) error {
	var made, shown struct{ ARQs []boundARQ }

	answer, err := c.ask(ctx, http.MethodPost, "", map[string]string{"device_profile_name": "bench"}, http.StatusCreated)
	if err != nil {
		return err
	}

	if err := json.Unmarshal(answer, &made); err != nil {
		return err
	}

	patch := map[string]any{made.ARQs[0].UUID: []map[string]string{
		{"op": "add", "path": "/hostname", "value": at.host},
		{"op": "add", "path": "/device_rp_uuid", "value": at.uuid},
		{"op": "add", "path": "/instance_uuid", "value": instance},
	}}

	if _, err := c.ask(ctx, http.MethodPatch, "", patch, http.StatusAccepted); err != nil {
		return err
	}

	for {
		if answer, err = c.ask(ctx, http.MethodGet, "?instance="+instance, nil, http.StatusOK); err != nil {
			return err
		}

		if err := json.Unmarshal(answer, &shown); err != nil {
			return err
		}

		if len(shown.ARQs) == 1 && shown.ARQs[0].State == string(cyborg.ARQBound) {
			return nil
		}
		if len(shown.ARQs) != 1 || shown.ARQs[0].State == string(cyborg.ARQBindFailed) {
			return fmt.Errorf("the requests of instance %s are not being bound: %v", instance, shown.ARQs)
		}
	}
}

// cycle creates, binds and deletes the request of an instance.
func (c *bindCloud) cycle(ctx context.Context, instance uuid.UUID) error {
	// The scheduler spreads instances over the providers.
	at := c.providers[int(instance[15])%len(c.providers)]

	if err := c.bind(ctx, instance.String(), at); err != nil {
		return err
	}

	_, err := c.ask(ctx, http.MethodDelete, "?instance="+instance.String(), nil, http.StatusNoContent)
	return err
}

// BenchmarkOpenStackBind sends Nova's requests for the life of an instance's
// accelerator, with a real Keystone and Placement: POST, PATCH, GET until it is
// bound, DELETE. Bare workflows on the same Temporal run in turn with them, for
// comparison. One operation of the benchmark is one of each.
func BenchmarkOpenStackBind(b *testing.B) {
	for _, others := range []int{0, 1000, 100_000} {
		for _, clients := range []int{1, 8, 32, 64} {
			if others > 0 && clients > 1 && clients != 8 {
				continue
			}
			b.Run(fmt.Sprintf("bound=%d/clients=%d", others, clients), func(b *testing.B) { bindContest(b, others, clients) })
		}
	}
}

// bindContest runs the benchmark with this many requests of other instances
// that are bound already.
func bindContest(b *testing.B, others, clients int) {
	b.Helper()
	b.StopTimer()

	r := rig.Up(b, rig.Keystone)
	r.Alone(b)
	c := startBindCloud(b, r, "bench", asBuilt)
	bare := newBareEngine(b, c.Temporal, c.Certificates(b))
	defer bare.close()

	const mostAsked = 1000 // binding more would take too long; they are written into the records
	share(b, 8, min(others, mostAsked), func(piece int) error {
		return c.bind(b.Context(), uuid.NewString(), c.providers[piece%len(c.providers)])
	})

	if others > mostAsked {
		recordBound(b, c.Standalone, others-mostAsked)
	}

	all := []*contestant{
		{name: "bare", do: func(ctx context.Context, _ uuid.UUID) error { return bare.run(ctx) }},
		{name: "cycle", do: c.cycle},
	}

	for _, contestant := range all {
		share(b, clients, warmUp, func(int) error { return contestant.do(b.Context(), uuid.New()) })
	}

	for left := b.N; left > 0; left -= 4 * clients {
		instances := make([]uuid.UUID, min(left, 4*clients))
		for i := range instances {
			instances[i] = uuid.New()
		}

		for _, contestant := range all {
			contestant.turn(b, c.Standalone, clients, instances)
		}
	}

	// The ratio may differ from 1: Nova is not notified of a request that was
	// deleted before, and is notified again where a process does not know the
	// answer.
	b.ReportMetric(float64(c.nova.events.Load())/float64(b.N+min(others, mostAsked)+warmUp), "told/bind")
	reportContest(b, all)
}
