package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestRefusedConnectionsAreLoggedOnce: a client that tries again and again costs
// one line a minute, and a thousand clients cost no more than a thousand.
func TestRefusedConnectionsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := &handshakes{log: slog.New(slog.NewTextHandler(&out, nil)), told: map[refused]time.Time{}}
	said := func(address string, port int) {
		_, err := fmt.Fprintf(h, "2026/11/25 19:00:00 INFO: [core] [Server #7]grpc: Server.Serve failed to create ServerTransport: "+
			"connection error: desc = %q\n", fmt.Sprintf(`ServerHandshake("%s:%d") failed: tls: client didn't provide a certificate`, address, port))
		require.NoError(t, err)
	}

	for port := range 100 {
		said("192.0.2.7", port)
	}
	require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(), `peer=192.0.2.7:0 error="tls: client didn't provide a certificate"`)

	for n := range 5000 {
		said(fmt.Sprintf("10.0.%d.%d", n/250, n%250), 7)
	}
	require.LessOrEqual(t, strings.Count(out.String(), "\n"), mostTold+1)

	require.True(t, h.due(refused{"192.0.2.8", "x"}, time.Now().Add(tellAgain)))
	_, err := h.Write([]byte("2026/11/25 19:00:00 INFO: [core] [Server #7]ListenSocket created\n"))
	require.NoError(t, err)
}

// RefusedConnections is the log of the connections that were refused while the
// tests of this process run: gRPC has one log.
var RefusedConnections lines

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
	LogRefusedConnections(slog.New(slog.NewTextHandler(&RefusedConnections, nil)))
	postgrestest.Main(m)
}
