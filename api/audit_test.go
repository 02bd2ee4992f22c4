package api_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/audit"
	"github.com/cyborg-project/cyborg/api/policy"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/api/web"
)

// audited is a harness with an audit trail, whose log shows only errors.
func audited(t *testing.T, path string, window time.Duration) (*harness, *record) {
	t.Helper()
	h, said := setup(t), &record{}
	log := slog.New(slog.NewJSONHandler(said, &slog.HandlerOptions{Level: slog.LevelError}))

	trail, err := audit.New(path, "server-1", window, log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, trail.Close()) })

	rules, err := policy.New(policy.Config{EnforceNewDefaults: true, Log: log})
	require.NoError(t, err)

	config := api.Config{V1: v1.Config{SyncWait: waitLimit}}
	withTokens(&config)
	handler, err := api.New(config, api.Deps{
		Store: h.store, Engine: h.engine, Policy: rules, Account: trail.Account, Registry: prometheus.NewRegistry(), Log: log,
	})
	require.NoError(t, err)

	h.server = httptest.NewServer(handler)
	t.Cleanup(h.server.Close)
	return h, said
}

// trail reads the audit events from the log.
func (r *record) trail(t *testing.T) []audit.Event {
	t.Helper()
	var events []audit.Event

	for line := range strings.Lines(r.String()) {
		var entry struct {
			Msg   string
			Event audit.Event
		}

		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		require.Equal(t, "audit", entry.Msg)
		events = append(events, entry.Event)
	}
	return events
}

// Every request that changes something or is refused leaves one line, and no
// other request does.
func TestAuditTrail(t *testing.T) {
	t.Parallel()
	h, said := audited(t, "", time.Nanosecond)
	accelerator := h.host("h1", 1)["fpga-0"]
	id := accelerator.UUID.String()

	for _, test := range []struct {
		token, method, path string
		body                any
		action, outcome     string
		kind, target        string
		code                string
	}{
		{readerToken, "GET", "/v1/accelerators", nil, "", "", "", "", ""},
		{adminToken, "GET", "/v1/accelerators/" + uuid.NewString(), nil, "", "", "", "", ""},
		{"", "GET", "/v1/accelerators", nil, "read", "failure", "accelerators", "unknown", "401"},
		{"", "DELETE", "/v2/accelerator_requests?instance=" + id, nil, "delete", "failure", "", "unknown", "401"},
		{"wrong", "GET", "/v1/accelerators/" + id, nil, "read", "failure", "accelerators", id, "401"},
		{readerToken, "POST", "/v1/accelerators/" + id + "/ready", nil, "update/ready", "failure", "accelerators", id, "403"},
		{adminToken, "POST", "/accelerator/" + id + "/ready", nil, "update/ready", "success", "accelerators", id, "200"},
		{adminToken, "POST", "/v1/accelerators/" + id + "/retire", "{", "update/retire", "failure", "accelerators", id, "400"},
		{adminToken, "DELETE", "/v1/hosts/nowhere", nil, "delete", "failure", "hosts", "nowhere", "404"},
		{"", "POST", "/v1/nothing", nil, "create", "failure", "", "unknown", "404"},
		{readerToken, "POST", profiles, profile("a"), "create", "failure", "device_profiles", "unknown", "403"},
		{adminToken, "POST", profiles, profile("a"), "create", "success", "device_profiles", "unknown", "201"},
		{adminToken, "DELETE", "/v2/accelerator_requests?arqs=" + id, nil, "delete", "failure", "accelerator_requests", id, "404"},
		{adminToken, "DELETE", "/v2/accelerator_requests?instance=" + id, nil, "delete", "success", "accelerator_requests", id, "204"},
		{adminToken, "PATCH", "/v2/accelerator_requests", unbound(id), "update", "failure", "accelerator_requests", id, "404"},
		{adminToken, "DELETE", "/accelerator" + profiles + "/a", nil, "delete", "success", "device_profiles", "a", "204"},
	} {
		before := len(said.trail(t))
		requestID := "req-" + uuid.NewString()
		h.as(test.token).do(test.method, test.path, test.body, "X-Openstack-Request-Id", requestID, "User-Agent", "nova-compute keystoneauth1/5.0.0")

		what := test.method + " " + test.path
		if test.action == "" {
			continue // a line of its own would be counted with the next request
		}

		// The line is written when the answer is on its way.
		require.Eventually(t, func() bool { return len(said.trail(t)) == before+1 }, waitLimit, poll, what)
		event := said.trail(t)[before]
		require.Equal(t, test.action, event.Action, what)
		require.Equal(t, test.outcome, event.Outcome, what)
		require.Equal(t, audit.Reason{Type: "HTTP", Code: test.code}, event.Reason, what)

		require.Equal(t, strings.TrimSuffix("service/accelerator/"+test.kind, "/"), event.Target.TypeURI, what)
		require.Equal(t, test.target, event.Target.ID, what)
		require.Equal(t, test.path, event.Path)
		require.Equal(t, requestID, event.Initiator.RequestID)

		require.Equal(t, event.Action == "update/ready" && event.Outcome == "success", len(event.Attachments) == 1, what)
		for _, attachment := range event.Attachments {
			require.Equal(t, "operation_id", attachment.Name)
			operation := as[cyborg.Operation](h.as(adminToken).do("GET", "/v1/operations/"+attachment.Content, nil).expect(http.StatusOK))
			require.Equal(t, requestID, operation.Actor.RequestID)
		}

		require.Equal(t, audit.Host{Address: "127.0.0.1", Agent: "nova-compute keystoneauth1/5.0.0"}, event.Initiator.Host)
		require.Equal(t, audit.Resource{ID: "server-1", TypeURI: "service/accelerator", Name: "cyborg"}, event.Observer)
		require.Equal(t, "http://schemas.dmtf.org/cloud/audit/1.0/event", event.TypeURI)
		require.NoError(t, uuid.Validate(event.ID))

		at, err := time.Parse("2006-01-02T15:04:05.000000-0700", event.EventTime)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)

		who := map[string]string{adminToken: "ada", readerToken: "rita"}[test.token]
		require.Equal(t, who, event.Initiator.Name, what)
		if who == "" {
			who = "unknown"
		}
		require.Equal(t, who, event.Initiator.ID)
	}
}

// unbound is the body that unbinds an accelerator request.
func unbound(id string) any {
	var patches []map[string]any
	for _, field := range []string{"hostname", "device_rp_uuid", "instance_uuid"} {
		patches = append(patches, map[string]any{"path": "/" + field, "op": "remove"})
	}
	return map[string]any{id: patches}
}

// The trail may go to a file. If the file is moved away, a new one is made.
func TestAuditFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	h, said := audited(t, path, time.Nanosecond)

	lines := func(path string) int {
		text, err := os.ReadFile(path)
		if err != nil {
			return -1
		}
		return strings.Count(string(text), `"eventType":"activity"`)
	}
	refuse := func() { h.as("wrong").do("GET", "/v1/accelerators", nil).expect(http.StatusUnauthorized) }

	refuse()
	refuse()
	require.Eventually(t, func() bool { return lines(path) == 2 }, waitLimit, poll)

	require.NoError(t, os.Rename(path, path+".1"))
	refuse()
	require.Eventually(t, func() bool { return lines(path) == 1 }, waitLimit, poll)
	require.Equal(t, 2, lines(path+".1"))
	require.Empty(t, said.String())

	_, err := audit.New(filepath.Join(path, "x"), "", time.Minute, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "audit.file")
}

// Whoever proves nothing costs a line in each window, and not one for each
// request: the next line says how many there were.
func TestUnknownCallersAreCounted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	trail, err := audit.New(path, "server-1", time.Hour, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	exchange := web.Exchange{
		Time: time.Now(), Method: "GET", Path: "/v1/accelerators", Route: "/v1/accelerators", Query: strings.Repeat("x", 5000),
		Status: http.StatusUnauthorized, Remote: "192.0.2.1:1", Agent: strings.Repeat("a", 5000),
	}
	for n := range 2000 {
		exchange.Method, exchange.Status = []string{"GET", "POST"}[n%2], []int{http.StatusUnauthorized, http.StatusNotFound}[n%2]
		trail.Account(t.Context(), exchange)
	}

	exchange.Remote, exchange.Time = "192.0.2.2:1", exchange.Time.Add(time.Minute)
	trail.Account(t.Context(), exchange)
	exchange.Identity = web.Identity{Name: "ada"}
	trail.Account(t.Context(), exchange)

	events := func() (events []audit.Event) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			var event audit.Event
			require.NoError(t, json.Unmarshal([]byte(line), &event))
			require.True(t, len(line) < 2000 || event.Initiator.Name == "ada", "%d bytes", len(line))
			events = append(events, event)
		}
		return events
	}
	require.Len(t, events(), 3, "the first of each address, and the known caller's")

	exchange.Remote, exchange.Time, exchange.Identity = "192.0.2.1:7", exchange.Time.Add(time.Hour), web.Identity{}
	trail.Account(t.Context(), exchange)
	require.Len(t, events(), 5, "a new window begins")
	require.Equal(t, []audit.Attachment{{Name: "repeated", ContentType: "text/plain", Content: "1999"}}, events()[3].Attachments)
	require.Empty(t, events()[4].Attachments)

	trail.Account(t.Context(), exchange)
	for n := range 5000 { // addresses are no way around it
		exchange.Remote = fmt.Sprintf("198.51.%d.%d:1", n/250, n%250)
		trail.Account(t.Context(), exchange)
	}
	require.Less(t, len(events()), 1200)
	require.NoError(t, trail.Close())
	require.Less(t, len(events()), 1300)

	total := 0
	for _, event := range events() {
		total++
		if len(event.Attachments) > 0 {
			more, err := strconv.Atoi(event.Attachments[0].Content)
			require.NoError(t, err)
			total += more - 1
		}
	}
	require.Equal(t, 2000+1+1+1+1+5000, total, "each request is counted")
}
