package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzAPI sends any request to the whole interface over real records. It is
// never answered with 500, an error is a problem that says something and can be
// shown, answers are those of the OpenAPI document, and a request that is
// refused changes nothing.
//
// The request is made of parts, so that the fuzzer gets past the front door:
// one of the document's routes, values for its parameters, the query, the
// headers, and either any body or a valid one in which one value is replaced.
func FuzzAPI(f *testing.F) {
	h := setup(f, func(config *api.Config) {
		config.V1.SyncWait, config.V1.CensusWait, config.V1.BodyLimit = time.Second, time.Second, 64<<10
	})

	h.defects.wanted.Store(true) // fuzz looks for them itself
	h.engine.census = func(hosts, _ []string) (cyborg.Census, error) {
		return cyborg.Census{Hosts: each(hosts, func(host string) cyborg.HostUsage { return cyborg.HostUsage{Host: host} })}, nil
	}

	accelerator := h.ready("alpha")
	operation := as[map[string][]struct{ ID uuid.UUID }](h.do("GET", "/v1/operations", nil))["operation"][0].ID
	sql, err := pgxpool.New(f.Context(), h.url)
	require.NoError(f, err)
	f.Cleanup(sql.Close)

	table := fuzzedRoutes(f, theContract(f))
	for i, route := range table {
		body, err := json.Marshal(fullBody(route.method, route.path))
		require.NoError(f, err)
		f.Add(uint8(i), "", "", "", true, uint8(0), string(body))

		for leaf, value := range fuzztest.Values() {
			if string(body) != "{}" {
				f.Add(uint8(i), "", "", "", false, uint8(leaf), value)
			}
		}

		for _, text := range []string{"not-a-uuid", "\x00", "a\nb", strings.Repeat("x", 300), "\xff", " ", "..", "a/b", "%", operation.String()} {
			if parameterPattern.MatchString(route.path) {
				f.Add(uint8(i), text, "", "", true, uint8(0), string(body))
			}
		}

		for _, query := range nastyQueryTable {
			f.Add(uint8(i), "", query, "", true, uint8(0), "")
		}
		for _, header := range nastyHeaderTable {
			f.Add(uint8(i), "", "", header, true, uint8(0), string(body))
		}
	}

	f.Fuzz(func(t *testing.T, which uint8, parameter, query, headers string, whole bool, leaf uint8, text string) {
		h := at(h, t)
		route := table[int(which)%len(table)]
		path := strings.ReplaceAll(fill(route.path, accelerator), "{id}", operation.String())

		if parameter != "" {
			path = parameterPattern.ReplaceAllString(route.path, strings.ReplaceAll(url.PathEscape(parameter), "$", "$$"))
		}
		if query != "" {
			path += "?" + query
		}

		body := text
		if !whole {
			body = fuzztest.ReplaceLeaf(t, fullBody(route.method, route.path), int(leaf), text)
		}

		h.fuzz(sql, route.method, path, headers, body)
	})
}

type fuzzedRoute struct{ method, path string }

// fuzzedRoutes lists the routes of the document in a fixed order.
func fuzzedRoutes(t testing.TB, contract *contract) []fuzzedRoute {
	t.Helper()
	var table []fuzzedRoute
	for path, item := range contract.document.Paths.Map() {
		for method := range item.Operations() {
			table = append(table, fuzzedRoute{method, path})
		}
	}

	slices.SortFunc(table, func(a, b fuzzedRoute) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return table
}

// fuzz sends one request and checks the answer.
func (h *harness) fuzz(sql *pgxpool.Pool, method, path, headers, body string) {
	h.t.Helper()
	h.engine.work.Wait() // what earlier requests began

	raw := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n\r\n%s", method, path, len(body), headers, body)
	request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	if err != nil {
		return // Go's server refuses it
	}

	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Second)
	defer cancel()

	streams := strings.HasSuffix(strings.TrimRight(request.URL.Path, "/"), "/events")
	if streams {
		ctx, cancel = context.WithTimeout(ctx, 20*time.Millisecond) // it would not end
		defer cancel()
	}

	before := stored(h.t, sql)
	answer := &fuzzedAnswer{ResponseRecorder: httptest.NewRecorder()}
	h.handler.ServeHTTP(answer, request.WithContext(ctx))
	response := answer.Result()
	got := answer.Body.Bytes()
	what := fmt.Sprintf("%s\n\nis answered with %d %s", raw, response.StatusCode, got)

	require.NotEqual(h.t, http.StatusInternalServerError, response.StatusCode, what)
	request.Header.Set("Content-Type", "application/json") // the document demands it, though /v1 ignores it
	if !streams || response.StatusCode >= http.StatusBadRequest {
		require.NoError(h.t, contractOf(h.t, request.URL.Path).check(h.t.Context(), request, []byte(body), response, got), what)
	}

	if response.StatusCode < http.StatusBadRequest || response.StatusCode == 499 || request.Method == http.MethodHead {
		return
	}

	if _, ok := v2.Within(request.URL.Path); ok {
		requireFault(h.t, response, got, what)
	} else {
		requireProblem(h.t, response, got, what)
	}

	if response.Header.Get("Cyborg-Operation") == "" {
		h.engine.work.Wait()
		require.Equal(h.t, before, stored(h.t, sql), "it is refused, and changed something: %s", what)
	}
}

// stored sums up all that requests can make or change.
func stored(t testing.TB, sql *pgxpool.Pool) (counts string) {
	t.Helper()
	require.NoError(t, sql.QueryRow(t.Context(), `
		SELECT format('%s events, %s operations, %s profiles, %s requests, %s attributes', (SELECT count(*) FROM events), (SELECT count(*) FROM operations),
		    (SELECT count(*) FROM device_profiles), (SELECT string_agg(uuid || state, ' ' ORDER BY uuid) FROM arqs),
		    (SELECT sum(jsonb_array_length(attributes_set)) FROM deployables))`).Scan(&counts))
	return counts
}

// requireProblem requires an error to be one that a person can read and a
// program can trust.
func requireProblem(t testing.TB, response *http.Response, body []byte, what string) {
	t.Helper()

	require.Equal(t, "application/problem+json", response.Header.Get("Content-Type"), what)
	var problem web.Problem
	require.NoError(t, json.Unmarshal(body, &problem), what)

	require.Equal(t, response.StatusCode, problem.Status, what)
	require.Contains(t, cyborg.ErrorKinds(), problem.Kind, what)
	require.NotEmpty(t, problem.Detail, what)
	fuzztest.RequireSanitized(t, problem.Detail)
	fuzztest.RequireSanitized(t, problem.Hint)
}

// fuzzedAnswer is an answer whose connection takes everything at once.
type fuzzedAnswer struct{ *httptest.ResponseRecorder }

func (fuzzedAnswer) SetWriteDeadline(time.Time) error { return nil }
func (fuzzedAnswer) SetReadDeadline(time.Time) error  { return nil }

// fullBody is a body with every property that a route knows, or an empty
// object.
func fullBody(method, path string) any {
	specs := map[string]any{
		"remote": false, "remotable": true, "num": 2, "device_type": "FPGA", "acc_type": "crypto",
		"acc_capability": map[string]any{"crypto": map[string]any{"gbps": 40}}, "vendor_id": "1d5c", "product_id": "0001",
	}

	switch method + " " + strings.TrimPrefix(path, "/v1") {
	case "POST /accelerators", "POST /accelerators/{uuid}":
		return map[string]any{"name": "beta", "host": "h1", "uuid": uuid.Nil.String(), "acc_specs": specs}
	case "PUT /accelerators/{uuid}":
		return map[string]any{"name": "alpha", "instance": "5f5f5f5f-0000-4000-8000-00000000000f"}
	case "PUT /accelerators/{uuid}/acc_specs":
		return map[string]any{"acc_specs": specs}
	case "PATCH /accelerators/{uuid}/program":
		return map[string]any{"image": map[string]any{
			"source": "https://images.example.org/a.bin", "sha256": strings.Repeat("a", 64), "id": "a", "whole_device": true,
		}}
	case "POST /accelerators/{uuid}/maintain":
		return map[string]any{"reason": "a new fan", "until": "2999-01-31T18:00:00Z", "for": "12h"}
	case "POST /accelerators/{uuid}/clean":
		return map[string]any{"method": "scrub", "declared": "wiped by hand"}
	case "POST /devices/{uuid}/partition":
		return map[string]any{"layout": map[string]any{"vf": 4, "1g.10gb": 2}}
	case "POST /hosts/{host}/drivers":
		return map[string]any{"name": "more", "driver": "fake", "options": map[string]any{"park": "1xfpga"}}
	case "PUT /hosts/{host}/drivers/{backend}":
		return map[string]any{"driver": "fake", "options": map[string]any{"park": "1xfpga"}}
	}
	return map[string]any{}
}

// each maps the values.
func each[T, V any](values []T, view func(T) V) []V {
	out := make([]V, len(values))
	for i, value := range values {
		out[i] = view(value)
	}
	return out
}

// These queries and headers are of kinds that have brought down servers before.
var (
	nastyQueryTable = []string{
		"host=%zz", "host=", "host=a%00", "limit=0", "limit=-1", "limit=99999999999999999999", "limit=1&limit=1", "marker=x",
		"marker=0-0", "marker=18446744073709551615-9223372036854775807", "after=0-0", "after=18446744073709551615-0", "after=-1--1",
		"verbose", "colour=red", "uuid=" + uuid.Nil.String(), "status=error", "state=running&kind=attach&open=true", "instance=x",
		"device_type=%ff", "name=" + strings.Repeat("n", 256), "a;b=c", "host=h1&host=h2&host=h3", "host=h1" + strings.Repeat("&host=h", 300),
		"marker=" + uuid.Max.String() + "&limit=1000", "accelerator=" + uuid.Nil.String() + "&device=" + uuid.Nil.String(),
		"holder_service=a&holder_host=b", "service=ovs", "type=GPU&vendor_id=1d5c",
	}
	nastyHeaderTable = []string{
		"Prefer: wait=0", "Prefer: wait=99999999999", "Prefer: respond-async, wait=1", "Prefer: wait=\"1\"; x=y, , =", "If-Match: \"1\"",
		"If-Match: W/\"999999999999999999999\"", "If-Match: *", "If-Match: \"", "Idempotency-Key: k", "Idempotency-Key: \xff\xfe",
		"Idempotency-Key: " + strings.Repeat("k", 300), "Last-Event-ID: 0-0", "Last-Event-ID: 18446744073709551615-1", "Last-Event-ID: \x01",
		"Range: bytes=5-", "Content-Encoding: gzip", "Content-Type: text/plain", "Transfer-Encoding: chunked", "Expect: 100-continue",
		"Authorization: Bearer x", "Authorization: \xff", "X-Openstack-Request-Id: req-5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de",
		"X-Openstack-Request-Id: \"><script>", "Origin: http://evil.example.org", "Sec-Fetch-Site: cross-site", "Cookie: a=b",
		"Accept: application/xml", "Upgrade: websocket\r\nConnection: upgrade", "X-Forwarded-For: 127.0.0.1",
		"Host: evil.example.org", strings.Repeat("X-Many: 1\r\n", 100) + "X-Last: 1",
	}
)
