package engine_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestOneCertificateLeavesCallsToOthers: whoever begins calls, and sends no request
// in them, is refused further ones. Who may not call a method begins none.
func TestOneCertificateLeavesCallsToOthers(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	const method = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"
	greedy, member := g.conn(t, identity.Host, "greedy"), g.conn(t, identity.Member, "mel")

	begun, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	var last grpc.ClientStream
	for range 257 {
		stream, err := greedy.NewStream(begun, &grpc.StreamDesc{ClientStreams: true}, method)
		require.NoError(t, err)
		last = stream
	}
	err := last.RecvMsg(&workflowservice.GetSystemInfoResponse{})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "spiffe://lab/host/greedy has 256 calls open already")

	ask := func(c *grpc.ClientConn) codes.Code {
		return status.Code(c.Invoke(t.Context(), method, &workflowservice.GetSystemInfoRequest{}, &workflowservice.GetSystemInfoResponse{}))
	}
	require.Equal(t, codes.ResourceExhausted, ask(g.conn(t, identity.Host, "greedy")), "on another connection")
	require.Equal(t, codes.PermissionDenied, ask(member))
	require.Equal(t, codes.OK, ask(g.conn(t, identity.Host, "h1")))

	giveUp()
	require.Eventually(t, func() bool { return ask(greedy) == codes.OK }, time.Minute, time.Millisecond)
}

// TestOneCertificateLeavesConnectionsToOthers: further connections of one certificate
// are refused, with a sentence in the log, until fewer are open.
func TestOneCertificateLeavesConnectionsToOthers(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	cert, key, err := g.authority.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "lab", Role: identity.Host, Name: "greedy"}})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	dialer := tls.Dialer{Config: &tls.Config{
		RootCAs: pool(g.authority), ServerName: "temporal.test", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
	}}

	for range 20 {
		settings, err := settingsOf(t, &dialer, g.FrontendAddress())
		require.NoError(t, err)
		require.Equal(t, uint32(20_000), settings[3], "SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113)")
		require.Equal(t, uint32(64<<10), settings[6], "SETTINGS_MAX_HEADER_LIST_SIZE")
	}
	_, err = settingsOf(t, &dialer, g.FrontendAddress())
	require.Error(t, err)
	require.Eventually(t, func() bool {
		return engine.RefusedConnections.Has("spiffe://lab/host/greedy has 20 connections open already")
	}, time.Minute, time.Millisecond)
	require.Equal(t, codes.OK, status.Code(g.conn(t, identity.Host, "h1").Invoke(t.Context(),
		"/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo", &workflowservice.GetSystemInfoRequest{}, &workflowservice.GetSystemInfoResponse{})))
}

// TestPortsInsideAreBounded: Temporal's services that nobody outside calls close the
// connections of whoever opens them without end, and not those of Temporal.
func TestPortsInsideAreBounded(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	server, h2 := g.as(t, identity.Server, "s1"), g.as(t, identity.Host, "h2")
	defer serve(t, server)()

	addresses := g.InsideAddresses()
	require.Len(t, addresses, 3)
	for n, address := range addresses {
		dial := func() net.Conn {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}

		first, closed := dial(), make(chan error, 1)
		go func() {
			_, err := first.Read(make([]byte, 1)) // the service says nothing before the handshake
			closed <- err
		}()
		require.Eventually(t, func() bool {
			for range 100 {
				dial()
			}
			select {
			case err := <-closed:
				return err != nil
			default:
				return false
			}
		}, time.Minute, time.Millisecond, "%d", n)
	}

	begin(t, server, "after", "h2")
	task, err := poll(t, h2, "h2")
	require.NoError(t, err)
	require.NoError(t, complete(t, h2, task.GetTaskToken(), "true"))
}

// TestHeartbeatsOfAStepAreBounded: a host that sends the heartbeats of its step
// without end is refused most of them.
func TestHeartbeatsOfAStepAreBounded(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	server, h2 := g.as(t, identity.Server, "s1"), g.as(t, identity.Host, "h2")
	defer serve(t, server)()
	begin(t, server, "first", "h2")
	task, err := poll(t, h2, "h2")
	require.NoError(t, err)

	ended := make(chan error, 100)
	for range cap(ended) {
		go func() {
			_, err := h2.WorkflowService().RecordActivityTaskHeartbeat(t.Context(), &workflowservice.RecordActivityTaskHeartbeatRequest{
				Namespace: g.Namespace(), TaskToken: task.GetTaskToken(), Identity: "agent@h2",
			})
			ended <- err
		}()
	}
	var sent, refused int
	for range cap(ended) {
		var exhausted *serviceerror.ResourceExhausted
		if err := <-ended; err == nil {
			sent++
		} else {
			require.ErrorAs(t, err, &exhausted)
			refused++
		}
	}
	require.GreaterOrEqual(t, sent, 10)
	require.Positive(t, refused)
	require.NoError(t, complete(t, h2, task.GetTaskToken(), "true"))
}

// settingsOf opens a connection that stays open until the test ends. It returns the
// settings of HTTP/2 with which the server begins, unless it does not take the
// connection.
func settingsOf(t *testing.T, dialer *tls.Dialer, address string) (map[uint16]uint32, error) {
	t.Helper()
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))

	// A frame has a head of nine bytes, of which the first three are its length; each
	// setting has two bytes for what it is, and four for its value.
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, err
	}
	frame := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	if _, err := io.ReadFull(conn, frame); err != nil {
		return nil, err
	}
	settings := map[uint16]uint32{}
	for setting := range slices.Chunk(frame, 6) {
		settings[binary.BigEndian.Uint16(setting)] = binary.BigEndian.Uint32(setting[2:])
	}
	return settings, nil
}
