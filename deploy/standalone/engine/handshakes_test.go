package engine

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/grpclog"

	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestRefusedConnectionsAreLoggedOnce: a client that tries again and again costs
// one line a minute, whatever it does wrong, and a thousand clients cost no more than
// a thousand.
func TestRefusedConnectionsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := &handshakes{log: slog.New(slog.NewTextHandler(&out, nil)), told: map[string]time.Time{}}
		said := func(address string, port int, reason string) {
			_, err := fmt.Fprintf(h, "2026/11/25 19:00:00 INFO: [core] [Server #7]grpc: Server.Serve failed to create ServerTransport: "+
				"connection error: desc = %q\n", fmt.Sprintf(`ServerHandshake("%s:%d") failed: tls: %s`, address, port, reason))
			require.NoError(t, err)
		}
		lines := func() int { return strings.Count(out.String(), "\n") }

		for port := range 100 {
			said("192.0.2.7", port, "client didn't provide a certificate")
			said("192.0.2.7", port, fmt.Sprintf("client offered only unsupported versions: [%d]", port))
		}
		require.Equal(t, 1, lines(), out.String())
		require.Contains(t, out.String(), `peer=192.0.2.7:0 error="tls: client didn't provide a certificate"`)

		for n := range 5000 {
			said(fmt.Sprintf("10.0.%d.%d", n/250, n%250), 7, "client didn't provide a certificate")
		}
		require.Equal(t, mostTold+1, lines(), "each of as many as are told apart, and one line for all others")

		<-time.After(tellAgain)
		said("192.0.2.8", 7, "client didn't provide a certificate")
		require.Equal(t, mostTold+2, lines())
		require.Contains(t, out.String(), "peer=192.0.2.8:7")

		_, err := h.Write([]byte("2026/11/25 19:00:00 INFO: [core] [Server #7]ListenSocket created\n"))
		require.NoError(t, err)
		require.Equal(t, mostTold+2, lines())
	})
}

// TestErrorsOfGRPCAreLogged: what else gRPC says is not lost, unless it is no error.
func TestErrorsOfGRPCAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	said := logOf(&handshakes{log: log, told: map[string]time.Time{}}, log)
	said.Info("[core] ListenSocket created")
	said.Warning("[core] one address does not answer")
	require.Empty(t, out.String())

	said.Errorf("[core] grpc: server failed to encode response: %v", io.ErrShortWrite)
	require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(), `level=ERROR msg="gRPC has failed" error="[core] grpc: server failed to encode response: short write"`)
}

// RefusedConnections is the log of the connections that were refused while the
// tests of this process run, each of them: gRPC has one log, and all tests one address.
var RefusedConnections lines

// eachRefused logs every refused connection.
type eachRefused struct{ log *slog.Logger }

func (e eachRefused) Write(line []byte) (int, error) {
	return (&handshakes{log: e.log, told: map[string]time.Time{}}).Write(line)
}

// lines keeps what is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// Has says whether one line has the text.
func (l *lines) Has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func TestMain(m *testing.M) {
	log := slog.New(slog.NewTextHandler(&RefusedConnections, nil))
	grpclog.SetLoggerV2(logOf(eachRefused{log}, log))
	postgrestest.Main(m)
}
