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
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// An administrator may have a host forgotten that has not been heard of for a
// while. Its accelerators go with it.
func TestForgetHost(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia := h.as(adminToken), h.as(memberToken)
	ada.ready("alpha")

	mia.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrForbidden)
	ada.do("DELETE", "/v1/hosts/h9", nil).problem(cyborg.ErrNotFound)
	require.Contains(t, ada.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrChanged).Detail, "was heard at")

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE hosts SET last_seen = now() - interval '1 hour'")
	require.NoError(t, err)

	ada.do("DELETE", "/v1/hosts/h1", nil).expect(http.StatusNoContent)
	ada.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrNotFound)
	left, err := h.store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	require.Empty(t, left)
}

// A host whose numbers have gone far beyond those of a clock is refused after
// it was forgotten, because nothing recorded allows them any more. The refusal
// says what to do, and an agent that has lost its journal goes on.
func TestForgottenHostWithHighNumbers(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	endpoint, err := agents.New(agents.Config{}, agents.Deps{
		Ingester: atOnce{h.store}, Records: h.store, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	server := httptest.NewServer(endpoint)
	defer server.Close()

	dir, behind := t.TempDir(), int64(agentapi.MaxClock+agentapi.MaxJump-1)
	send := func() (status int, answer string) {
		t.Helper()
		agent, err := journal.Open(dir, journal.Options{BootID: "boot-1"})
		require.NoError(t, err)
		defer func() { require.NoError(t, agent.Close()) }()
		agent.Exceed(behind)

		told := report("h1", 0, 1)
		told.Instance = "agent-1"
		told.Sequence, err = agent.NextSequence()
		require.NoError(t, err)
		body, err := json.Marshal(told)
		require.NoError(t, err)

		response, err := http.Post(server.URL+agents.ReportsPath, "application/json", bytes.NewReader(body))
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}

	status, answer := send()
	require.Equal(t, http.StatusOK, status, answer)
	behind = 0
	status, answer = send()
	require.Equal(t, http.StatusOK, status, "a later process goes on from the numbers of the first: %s", answer)

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE hosts SET last_seen = now() - interval '1 hour'")
	require.NoError(t, err)
	h.as(adminToken).do("DELETE", "/v1/hosts/h1", nil).expect(http.StatusNoContent)

	status, answer = send()
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, answer, fmt.Sprintf("is above %d", agentapi.MaxClock+agentapi.MaxJump))
	require.Contains(t, answer, "remove the file journal from agent.state_dir")

	require.NoError(t, os.Remove(filepath.Join(dir, "journal")))
	status, answer = send()
	require.Equal(t, http.StatusOK, status, answer)
}

// atOnce records each report by itself.
type atOnce struct{ *db.Store }

func (a atOnce) Report(ctx context.Context, report agentapi.Report) (agentapi.ReportReply, error) {
	replies, err := a.MergeReports(ctx, []agentapi.Report{report})
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		err = joined.Unwrap()[0]
	}
	return replies[0], err
}

func (a atOnce) Heartbeat(ctx context.Context, heartbeat agentapi.Heartbeat) (agentapi.HeartbeatReply, error) {
	replies, err := a.RecordHeartbeats(ctx, []agentapi.Heartbeat{heartbeat})
	return replies[0], err
}
