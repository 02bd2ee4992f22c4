package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/config"
)

// TestWebUISaysWhatIsWrong: no token and a wrong one have different answers, and
// each answer can be found by its id.
func TestWebUISaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const good = "a-token-of-sixteen-bytes"
	c := config.Default()
	c.API.Tokens = []config.Token{{Name: "ada", Role: "reader", Token: good}}
	guard, err := uiGuard(c)
	require.NoError(t, err)
	guarded := guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))

	get := func(password string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
		if password != "" {
			r.SetBasicAuth("any", password)
		}
		answer := httptest.NewRecorder()
		guarded.ServeHTTP(answer, r)
		return answer
	}

	for password, detail := range map[string]string{
		"":      "Temporal's Web UI asks for a token of the API",
		"wrong": "the password is no token of the API",
	} {
		answer := get(password)
		require.Equal(t, http.StatusUnauthorized, answer.Code)
		require.NotEmpty(t, answer.Header().Get("WWW-Authenticate"))

		var problem web.Problem
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &problem))
		require.Equal(t, detail, problem.Detail)
		require.NotEmpty(t, problem.RequestID)
		require.Equal(t, answer.Header().Get(web.RequestIDHeader), problem.RequestID)
	}
	require.Equal(t, http.StatusNoContent, get(good).Code)
}

// counted is a listener that knows how many of its connections were open at once.
type counted struct {
	net.Listener
	open, most atomic.Int32
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.most.Store(max(c.most.Load(), c.open.Add(1)))
	return &countedConn{Conn: conn, ended: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	ended func()
}

func (c *countedConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

// TestWebUIBoundsItsConnections: who only opens connections takes no more of the
// process's files than the UI may have, and locks nobody out.
func TestWebUIBoundsItsConnections(t *testing.T) {
	t.Parallel()
	port, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	listener := &counted{Listener: port}

	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- serveUI(ctx, listener, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	}()

	for range 2 * uiConnections {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", port.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+port.Addr().String(), nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
	require.LessOrEqual(t, listener.most.Load(), int32(uiConnections+1), "the newest one, while the longest idle one is closed")

	end()
	require.NoError(t, <-served)
}
