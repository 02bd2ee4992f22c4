package api_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// record keeps everything that is logged.
type record struct{ transcript.Text }

// However a token is sent, right or wrong, in its place or elsewhere, nothing
// discloses it: no log at any level, no answer, no metric and no record.
func TestTokensAreNeverDisclosed(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	said := &record{}
	log := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store, err := db.Open(t.Context(), h.url, db.Options{MaxConns: 4}, log)
	require.NoError(t, err)
	t.Cleanup(store.Close)

	config := api.Config{V1: v1.Config{SyncWait: waitLimit}}
	withTokens(&config)
	handler, err := api.New(config, api.Deps{Store: store, Engine: h.engine, Registry: prometheus.NewRegistry(), Log: log})
	require.NoError(t, err)

	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	h.server = server

	const wrong = "wrong-secret-0123456789"
	accelerator := h.host("h1", 1)["fpga-0"]
	var answers strings.Builder

	ask := func(token, method, path string, body any, headers ...string) {
		h.token = token
		answer := h.do(method, path, body, headers...)
		for name, values := range answer.header {
			answers.WriteString(name + ": " + strings.Join(values, ",") + "\n")
		}

		answers.Write(answer.body)
	}

	for _, token := range []string{"", wrong, readerToken, memberToken, adminToken} {
		for _, route := range routes(t) {
			path := "/v1" + fill(strings.ReplaceAll(route.Pattern, "{id}", accelerator.UUID.String()), accelerator)
			if strings.HasSuffix(path, "/events") || strings.HasSuffix(path, "usage") {
				continue
			}
			ask(token, route.Method, path, validBody(route.Method, route.Pattern))
		}
		ask(token, http.MethodGet, "/metrics", nil)
	}

	h.token = ""
	for _, header := range []string{"Basic " + adminToken, "Bearer", "Bearer " + adminToken + adminToken, adminToken} {
		ask("", http.MethodGet, "/v1/accelerators", nil, "Authorization", header)
	}

	h.engine.work.Wait()

	require.Eventually(t, func() bool { // the feed shows an event when all earlier transactions have ended
		history := h.do(http.MethodGet, path(accelerator, "/history"), nil, "Authorization", "Bearer "+adminToken)
		answers.Write(history.body)
		return strings.Contains(string(history.body), "ada")
	}, 5*time.Minute, 100*time.Millisecond)

	require.Contains(t, said.String(), "actor=ada")
	for _, secret := range []string{readerToken, memberToken, adminToken, wrong} {
		require.NotContains(t, said.String(), secret)
		require.NotContains(t, answers.String(), secret)
	}
}

// Whatever looks secret in the options of a driver is shown to nobody, neither
// what a host reports nor what an earlier release took in a request.
func TestOptionsAreMasked(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const canary = "canary-of-an-option"
	told := report("h1", 1, 1)
	told.Content.Backends[0].Options = map[string]any{
		"park": "visible", "bmc_password": canary, "at": []any{map[string]any{"api-token": canary, "url": "https://u:" + canary + "@h/"}},
	}
	told.Digest = told.Content.Digest()
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{told})
	require.NoError(t, err)
	operation := "/v1/operations/" + h.earlierOption("sshKey", canary)

	for _, shown := range []string{
		"/v1/hosts", "/v1/hosts/h1", "/v1/hosts/h1/drivers", "/v1/hosts/h1/drivers/fake", "/v1/drivers",
		"/v1/operations", operation, operation + "/history",
	} {
		require.NotContains(t, string(h.do("GET", shown, nil).expect(http.StatusOK).body), canary, shown)
	}
	require.Contains(t, string(h.do("GET", "/v1/hosts/h1/drivers/fake", nil).body), "visible")
	require.Contains(t, string(h.do("GET", operation, nil).body), "visible")
	require.Contains(t, string(h.do("GET", operation, nil).body), "sshKey")
}

// earlierOption returns an operation on a backend of host h1, with an option
// that this release would refuse.
func (h *harness) earlierOption(name, value string) string {
	h.t.Helper()
	answer := h.do("POST", "/v1/hosts/h1/drivers", map[string]any{"name": "other", "driver": "xpu", "options": map[string]any{"park": "visible"}})
	require.Less(h.t, answer.status, 400, "%s", answer.body)
	h.engine.work.Wait()
	operation := answer.header.Get("Cyborg-Operation")

	conn, err := pgx.Connect(h.t.Context(), h.url)
	require.NoError(h.t, err)
	defer func() { require.NoError(h.t, conn.Close(context.Background())) }()
	tag, err := conn.Exec(h.t.Context(), "UPDATE operations SET input = jsonb_set(input, ARRAY['options', $2], to_jsonb($3::text)) WHERE id = $1::uuid", operation, name, value)
	require.NoError(h.t, err)
	require.EqualValues(h.t, 1, tag.RowsAffected())
	return operation
}

// No request puts a secret into a driver's options, because the records and
// Temporal's histories would have it. Nor does one that sends back what an
// answer has shown, or repeats what an earlier release took.
func TestNoRequestSetsASecretOption(t *testing.T) {
	t.Parallel()
	said := &record{}
	h := setupWith(t, func(deps *api.Deps) {
		deps.Log = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	h.ready("alpha")
	const canary = "canary-of-a-request"

	for named, options := range map[string]map[string]any{
		"bmc_password":  {"park": "1xgpu", "bmc_password": canary},
		"bmc.api_token": {"bmc": map[string]any{"api_token": canary}},
		"cards.sshKey":  {"cards": []any{map[string]any{"sshKey": canary}}},
		"spec.password": {"spec": `[{"password": "` + canary + `"}]`},
		"url":           {"url": "https://u:" + canary + "@bmc/"},
		"a, b_token":    {"b_token": canary, "a": "******"},
	} {
		for _, answer := range []*reply{
			h.do("POST", "/v1/hosts/h1/drivers", map[string]any{"name": "other", "driver": "xpu", "options": options}),
			h.do("PUT", "/v1/hosts/h1/drivers/fake", map[string]any{"options": options}),
		} {
			problem := answer.problem(cyborg.ErrInvalid)
			require.Equal(t, "options that look secret cannot be set through the API: "+named, problem.Detail)
			require.Contains(t, problem.Hint, "agent.backends")
			require.NotContains(t, string(answer.body), canary)
		}
	}
	require.NotContains(t, string(h.do("GET", "/v1/operations", nil).expect(http.StatusOK).body), "configure", "none was admitted")

	require.NotContains(t, said.String(), canary)
}

// No route that only reads shows a secret, whoever asks: not an option of a
// driver, not the query of an image. What was logged does not, either.
func TestNoRouteShowsASecret(t *testing.T) {
	t.Parallel()
	said := &record{}
	log := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h := setupWith(t, func(deps *api.Deps) { deps.Log = log })
	accelerator := h.ready("alpha")
	const canary = "canary-of-a-reader"

	told := report("h1", 2, 2)
	told.Content.Backends[0].Options = map[string]any{"bmc_password": canary, "at": map[string]any{"sshKey": canary}}
	told.Digest = told.Content.Digest()
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{told})
	require.NoError(t, err)

	var operations []string
	for _, answer := range []*reply{
		h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": map[string]string{
			"source": "https://images.example/a.bin?X-Signature=" + canary, "sha256": strings.Repeat("ab", 32),
		}}),
	} {
		require.Less(t, answer.status, 400, "%s", answer.body)
		require.NotContains(t, string(answer.body), canary)
		operations = append(operations, answer.header.Get("Cyborg-Operation"))
	}
	h.engine.work.Wait()
	operations = append(operations, h.earlierOption("token", canary))

	read := 0
	for _, route := range routes(t) {
		// That stream does not end, and the engine of tests knows no usage.
		if route.Method != http.MethodGet || route.Pattern == "/events" || strings.HasSuffix(route.Pattern, "usage") {
			continue
		}
		for _, operation := range operations {
			at := "/v1" + fill(strings.ReplaceAll(route.Pattern, "{id}", operation), accelerator)
			answer := h.do("GET", at, nil)
			require.NotContains(t, string(answer.body), canary, at)
			if answer.status == http.StatusOK {
				read++
			}
		}
	}
	require.Greater(t, read, 20, "the routes answer")

	for _, route := range routesV2() {
		if route.Method == http.MethodGet {
			at := "/v2" + fill(route.Pattern, accelerator)
			require.NotContains(t, string(h.do("GET", at, nil).body), canary, at)
		}
	}
	require.NotContains(t, string(h.do("GET", "/metrics", nil).body), canary)

	require.NotContains(t, said.String(), canary)
}

// The query of an image's URL may be a signature with which everybody can fetch
// it, so nobody is shown it and no log has it.
func TestQueriesOfImagesAreNeverShown(t *testing.T) {
	t.Parallel()
	said := &record{}
	log := slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h := setupWith(t, func(deps *api.Deps) { deps.Log = log })
	accelerator := h.ready("alpha")
	const canary = "canary-signature"
	id := ""

	for source, good := range map[string]bool{
		"https://images.example/a.bin?X-Signature=" + canary: true, "https:///a.bin?X-Signature=" + canary: false,
		"ftp://images.example/a.bin?X-Signature=" + canary: false, "https://images.example/%zz?X-Signature=" + canary: false,
	} {
		answer := h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": map[string]string{"source": source, "sha256": strings.Repeat("ab", 32)}})
		require.Equal(t, good, answer.status < 400, "%s", answer.body)
		require.NotContains(t, string(answer.body), canary)
		id += answer.header.Get("Cyborg-Operation") // only one becomes an operation
	}

	require.NotEmpty(t, id)
	operation := "/v1/operations/" + id

	for _, shown := range []string{"/v1/operations", operation, operation + "/history", path(accelerator, "/history"), path(accelerator), "/v1/devices"} {
		require.NotContains(t, string(h.do("GET", shown, nil).expect(http.StatusOK).body), canary, shown)
	}
	require.Contains(t, string(h.do("GET", operation, nil).body), "https://images.example/a.bin?…")
	require.NotContains(t, said.String(), canary)
}
