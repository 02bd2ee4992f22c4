package temporalauth

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/cyborg-project/cyborg"
)

// callBegins begins a call with a certificate that has this URI, and returns what ends it.
func callBegins(t *testing.T, g *Guard, uri string) (end context.CancelFunc, err error) {
	t.Helper()
	ctx, end := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: *shown(certificate(t, uri))}))
	_, err = g.admit(ctx, &tap.Info{FullMethodName: workflowService + "PollActivityTaskQueue"})
	return end, err
}

// TestCallsOfOneAreBounded: whoever begins calls without end gets a sentence before
// gRPC keeps anything of them. Only servers have as many as they like.
func TestCallsOfOneAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, err := New(settings())
		require.NoError(t, err)

		const uri = "spiffe://lab/host/h1"
		var ends []context.CancelFunc
		for range mostCalls {
			end, err := callBegins(t, g, uri)
			require.NoError(t, err)
			ends = append(ends, end)
		}
		end, err := callBegins(t, g, uri)
		end()
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.ErrorContains(t, err, "has 256 calls open already")

		end, err = callBegins(t, g, "spiffe://lab/host/h2")
		require.NoError(t, err, "another one's")
		end()

		ends[0]()
		synctest.Wait()
		end, err = callBegins(t, g, uri)
		require.NoError(t, err, "one is over")
		ends[0] = end
		end, err = callBegins(t, g, uri)
		require.Error(t, err, "and only one")
		end()

		for _, end := range ends {
			end()
		}
		for range 2 * mostCalls {
			end, err := callBegins(t, g, "spiffe://lab/server/s")
			require.NoError(t, err)
			defer end()
		}
		synctest.Wait()
		require.Empty(t, g.calls.of, "what has ended costs no memory")
	})
}

// TestCallsThatNobodyMayMake: a call that the caller may not make, whatever it asks
// for, is refused before gRPC reads the request, and takes nobody's place.
func TestCallsThatNobodyMayMake(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	c := settings()
	c.Log = slog.New(slog.NewTextHandler(&said, nil))
	c.Refuse = func(certificate *x509.Certificate) error {
		if certificate.URIs[0].Path == "/host/gone" || certificate.URIs[0].Path == "/server/gone" {
			return cyborg.Errorf(cyborg.ErrForbidden, "it is revoked")
		}
		return nil
	}
	g, err := New(c)
	require.NoError(t, err)

	refused := map[string]string{
		"spiffe://lab/host/h1":          "StartWorkflowExecution",
		"spiffe://lab/member/mel":       "PollActivityTaskQueue",
		"spiffe://lab/admin/ann":        "PollActivityTaskQueue",
		"spiffe://lab/host/gone":        "PollActivityTaskQueue",
		"spiffe://lab/server/gone":      "PollActivityTaskQueue",
		"spiffe://another/server/s":     "PollActivityTaskQueue",
		"spiffe://lab/server/invention": "Invented" + strings.Repeat("x", 60_000),
	}
	for uri, method := range refused {
		for n := range 2 * mostCalls {
			if strings.HasPrefix(method, "Invented") {
				method = fmt.Sprint(method[:8], n, method[8:])
			}
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: *shown(certificate(t, uri))})
			_, err := g.admit(ctx, &tap.Info{FullMethodName: workflowService + method})
			require.Equal(t, codes.PermissionDenied, status.Code(err), uri)
		}
	}

	require.Empty(t, g.calls.of)
	require.Equal(t, len(refused), strings.Count(said.String(), "\n"), "one line each")
	require.Less(t, said.Len(), 10_000)
}

// TestProbesAreNoAlarm: the doctors ask for what is always refused, as often as
// somebody likes. The log has no warning of it, and a server keeps its connection, by
// which it does everything else.
func TestProbesAreNoAlarm(t *testing.T) {
	t.Parallel()
	var said strings.Builder
	s := settings()
	s.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g, err := New(s)
	require.NoError(t, err)
	c := (&connections{Listener: pipes{}, limit: 3}).open(t)
	require.NoError(t, c.identify(as(server, "s")))

	ask := func(uri, method string) {
		t.Helper()
		client := &peer.Peer{Addr: c.RemoteAddr(), AuthInfo: *shown(certificate(t, uri))}
		_, err := g.admit(peer.NewContext(t.Context(), client), &tap.Info{FullMethodName: workflowService + method})
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	}
	for range 2 * mostRefusals {
		ask("spiffe://lab/server/s", "ListWorkflowRules")
	}
	require.True(t, c.isOpen())
	require.NotContains(t, said.String(), "level=WARN")
	require.Equal(t, 1, strings.Count(said.String(), "level=DEBUG"))

	ask("spiffe://lab/server/s", "DeleteWorkflowRule")
	ask("spiffe://another/server/s", "ListWorkflowRules")
	require.Equal(t, 2, strings.Count(said.String(), "level=WARN"), said.String())
	for range mostRefusals {
		ask("spiffe://lab/host/h1", "ListWorkflowRules")
	}
	require.False(t, c.isOpen(), "all others have a bound")
}

// TestRefusedCallsEndWithTheirConnection: what gRPC keeps of a refused call is gone
// with the connection, which ends after many, whatever deadline the client has set.
func TestRefusedCallsEndWithTheirConnection(t *testing.T) {
	t.Parallel()
	g, err := New(settings())
	require.NoError(t, err)
	c := (&connections{Listener: pipes{}, limit: 3}).open(t)
	require.NoError(t, c.identify(as(host, "h1")))

	of := connectionEnds{}.TagConn(t.Context(), &stats.ConnTagInfo{RemoteAddr: c.RemoteAddr()})
	client := &peer.Peer{Addr: c.RemoteAddr(), AuthInfo: *shown(certificate(t, "spiffe://lab/host/h1"))}
	var calls []context.Context
	for range mostRefusals {
		require.True(t, c.isOpen())
		ctx, cancel := context.WithTimeout(peer.NewContext(of, client), 1_000_000*time.Hour)
		defer cancel()
		_, err := g.admit(ctx, &tap.Info{FullMethodName: workflowService + "StartWorkflowExecution"})
		require.Error(t, err)
		calls = append(calls, ctx)
	}

	require.False(t, c.isOpen())
	for _, call := range calls {
		require.ErrorIs(t, call.Err(), context.Canceled)
	}

	late := connectionEnds{}.TagConn(t.Context(), &stats.ConnTagInfo{RemoteAddr: c.RemoteAddr()})
	require.ErrorIs(t, late.Err(), context.Canceled, "it was closed before gRPC had begun")
}
