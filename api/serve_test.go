package api_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	some := &tls.Config{MinVersion: tls.VersionTLS12}

	for name, test := range map[string]struct {
		endpoint api.Endpoint
		kind     cyborg.ErrorKind
		says     string
	}{
		"busy":               {api.Endpoint{Address: busy.Addr().String()}, cyborg.ErrUnavailable, "listens on " + busy.Addr().String()},
		"everywhere":         {api.Endpoint{Address: "0.0.0.0:0"}, cyborg.ErrInvalid, "TLS and authentication"},
		"everywhere, short":  {api.Endpoint{Address: ":0"}, cyborg.ErrInvalid, "TLS and authentication"},
		"everywhere, no TLS": {api.Endpoint{Address: "[::]:0", Authenticated: true}, cyborg.ErrInvalid, "TLS and authentication"},
		"everywhere, open":   {api.Endpoint{Address: "0.0.0.0:0", TLS: some}, cyborg.ErrInvalid, "TLS and authentication"},
		"a name":             {api.Endpoint{Address: "cyborg.example.org:6666"}, cyborg.ErrInvalid, "TLS and authentication"},
		"no port":            {api.Endpoint{Address: "127.0.0.1"}, cyborg.ErrInvalid, "127.0.0.1"},
		"not ours":           {api.Endpoint{Address: "192.0.2.7:6666", TLS: some, Authenticated: true}, cyborg.ErrInvalid, "192.0.2.7"},
	} {
		test.endpoint.Setting, test.endpoint.Flag = "api.listen", "--listen"

		_, err := test.endpoint.Listen(t.Context())
		require.Equal(t, test.kind, cyborg.ErrorKindOf(err), "%s: %v", name, err)
		require.Contains(t, err.Error(), test.says, name)
		require.Contains(t, err.Error(), "api.listen", name)
		require.NotContains(t, err.Error(), "\n", name)
		if name == "busy" {
			require.Contains(t, cyborg.AsError(err).Hint, "set api.listen (--listen) to another port")
		}
	}

	for _, endpoint := range []api.Endpoint{
		{Address: "127.0.0.1:0"}, {Address: "localhost:0"}, {Address: "0.0.0.0:0", TLS: some, Authenticated: true},
	} {
		listener, err := endpoint.Listen(t.Context())
		require.NoError(t, err, endpoint.Address)
		require.NoError(t, listener.Close())
	}
}

// served serves the handler until stop is called. What Serve returned, stop
// returns.
func served(t *testing.T, handler http.Handler, endpoint api.Endpoint, options api.ServeOptions) (address string, stop func() error) {
	t.Helper()
	endpoint.Address = porttest.Address(t) // that nobody else gets when its listener is closed
	listener, err := endpoint.Listen(t.Context())
	require.NoError(t, err)
	options.Log = quiet()

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(cancel)
	result := make(chan error, 1)
	go func() { result <- api.Serve(ctx, listener, handler, options) }()

	return listener.Addr().String(), func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(waitLimit):
			return context.DeadlineExceeded
		}
	}
}

// When the server stops, streams and waiting requests end at once, with what
// there is to answer. Their operations go on.
func TestServeStops(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	address, stop := served(t, h.handler, api.Endpoint{}, api.ServeOptions{Grace: waitLimit})
	h.server.URL = "http://" + address

	events := h.stream("/v1/events")
	answers := make(chan *reply, 1)
	go func() { answers <- h.do("PUT", path(accelerator), nil) }()
	require.Eventually(t, func() bool { return h.accelerator(accelerator.UUID).Claim != nil }, waitLimit, poll)
	op := h.accelerator(accelerator.UUID).Claim.Operation

	started := time.Now()
	require.NoError(t, stop())
	require.Less(t, time.Since(started), waitLimit/2)

	events.all()
	answer := (<-answers).expect(http.StatusAccepted)
	require.Equal(t, op, as[cyborg.Operation](answer).ID)

	_, err := net.Dial("tcp", address)
	require.Error(t, err)
}

// A request that has not ended after the grace period is broken off.
func TestServeClosesConnectionsAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	stuck := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})

	address, stop := served(t, stuck, api.Endpoint{}, api.ServeOptions{Grace: 50 * time.Millisecond})

	failed := make(chan error, 1)
	go func() {
		response, err := http.Get("http://" + address)
		if err == nil {
			_ = response.Body.Close()
		}
		failed <- err
	}()

	<-entered
	require.NoError(t, stop())
	require.Error(t, <-failed)
}

func TestServeFails(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())

	err = api.Serve(t.Context(), listener, http.NotFoundHandler(), api.ServeOptions{Log: slog.New(slog.DiscardHandler)})
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestServeTLS(t *testing.T) {
	t.Parallel()
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer borrowed.Close()

	var protocol string
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { protocol = r.Proto })
	address, stop := served(t, handler, api.Endpoint{TLS: borrowed.TLS}, api.ServeOptions{})

	client := borrowed.Client()
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true

	response, err := client.Get("https://" + address)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "HTTP/2.0", protocol)

	client.CloseIdleConnections()
	require.NoError(t, stop())
}

// A header that is too long is refused, so that an endless one cannot hold a
// connection for ever.
func TestServeLimitsHeaders(t *testing.T) {
	t.Parallel()
	address, stop := served(t, http.NotFoundHandler(), api.Endpoint{}, api.ServeOptions{})
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()

	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 80<<10)+"\r\n\r\n")
	require.NoError(t, err)

	head := make([]byte, 12)
	_, err = io.ReadFull(conn, head)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 431", string(head))
	require.NoError(t, stop())
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
