package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A web page cannot read profiles by a name of its own that leads to loopback.
func TestProfilesAreGuarded(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	s := &server{Deps: Deps{Listeners: &Listeners{pprof: listener}, Log: slog.New(slog.DiscardHandler)}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.profiles().Run(ctx) }()

	for host, status := range map[string]int{"evil.example:6060": http.StatusForbidden, "": http.StatusOK, "localhost:1": http.StatusOK} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listener.Addr().String()+"/debug/pprof/", nil)
		require.NoError(t, err)
		request.Host = host
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, status, response.StatusCode, host)
	}

	cancel()
	require.NoError(t, <-ended)
}
