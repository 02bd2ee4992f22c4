package api_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/db"
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
