package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api"
)

// What an agent says does not count as given up while the agent waits, however fast
// it says the next thing: the server watches a connection while it works, and ends
// its watch by a deadline, which must not be felt later.
func TestAgentsInTheProcessAreWaitedFor(t *testing.T) {
	t.Parallel()
	conductor := newPipeListener()
	served := make(chan error, 1)
	go func() {
		served <- api.Serve(t.Context(), conductor, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				w.WriteHeader(http.StatusBadRequest)
				return
			}

			select {
			case <-r.Context().Done():
				w.WriteHeader(http.StatusTeapot)
			case <-time.After(50 * time.Microsecond):
			}
		}), api.ServeOptions{Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() { require.NoError(t, <-served) }) // the context of the test has ended by then

	for range 8 {
		t.Run("agent", func(t *testing.T) {
			t.Parallel()
			transport := &http.Transport{DialContext: conductor.DialContext}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport, Timeout: time.Minute}

			for n := range 5_000 {
				response, err := client.Post("http://conductor/", "application/json", strings.NewReader(`{"host":"rack"}`))
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, response.Body)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, http.StatusOK, response.StatusCode, "request %d was taken for one whose agent has gone", n)
			}
		})
	}
}

// A closed listener is left by whoever dials and by whoever accepts.
func TestClosedPipeListener(t *testing.T) {
	t.Parallel()
	l := newPipeListener()
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())

	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = l.DialContext(t.Context(), "tcp", "conductor")
	require.ErrorIs(t, err, net.ErrClosed)
}
