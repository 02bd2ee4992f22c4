package engine

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"
)

// LogRefusedConnections has the log say who tried to connect to Temporal, and why
// that failed: mostly a client without a certificate, or with one that is not good.
// Whoever has such a client learns it from the log of either end. The log also gets
// the errors of gRPC.
//
// Temporal makes its gRPC server itself, and gRPC tells of such connections only in
// its own log, which a process has one of. So this is called once, before anything
// of gRPC is used.
func LogRefusedConnections(log *slog.Logger) {
	grpclog.SetLoggerV2(logOf(&handshakes{log: log, told: map[string]time.Time{}}, log))
}

// logOf returns a log for gRPC, of which handshakes reads all lines, and whose errors
// are in our log.
func logOf(handshakes io.Writer, log *slog.Logger) grpclog.LoggerV2 {
	return grpclog.NewLoggerV2(handshakes, io.Discard, failures{log})
}

// failures writes the errors of gRPC to the log.
type failures struct{ log *slog.Logger }

// Write logs one line. It begins with the time and the severity, which the log has
// itself.
func (f failures) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if _, said, ok := strings.Cut(text, "ERROR: "); ok {
		text = said
	}
	f.log.ErrorContext(context.Background(), "gRPC has failed", "error", text)
	return len(line), nil
}

const (
	// tellAgain is how often a refusal of one address is logged, whatever its reason:
	// clients try again and again, they need no certificate for that, and they can
	// choose among the reasons.
	tellAgain = time.Minute
	// mostTold is how many addresses are told apart; all others count as one.
	mostTold = 1000
)

// handshakes reads gRPC's log for refused connections.
type handshakes struct {
	log *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // by address; empty for all that are not told apart
}

// Write reads one line.
func (h *handshakes) Write(line []byte) (int, error) {
	peer, reason, ok := readHandshake(string(line))
	if !ok {
		return len(line), nil
	}

	address, _, err := net.SplitHostPort(peer)
	if err != nil {
		address = peer
	}
	if h.due(address, time.Now()) {
		h.log.WarnContext(context.Background(), "a connection to Temporal was refused", "peer", peer, "error", reason)
	}
	return len(line), nil
}

// due says whether to log a refusal of an address now.
func (h *handshakes) due(address string, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if _, known := h.told[address]; !known && len(h.told) >= mostTold {
		for one, at := range h.told {
			if now.Sub(at) >= tellAgain {
				delete(h.told, one)
			}
		}
		if len(h.told) >= mostTold {
			address = ""
		}
	}

	if at, known := h.told[address]; known && now.Sub(at) < tellAgain {
		return false
	}
	h.told[address] = now
	return true
}

// readHandshake finds in a line of gRPC's log whose handshake has failed, and why.
// gRPC 1.83 writes: … connection error: desc = "ServerHandshake(\"ADDRESS\")
// failed: REASON" (internal/transport, NewServerTransport).
func readHandshake(line string) (peer, reason string, ok bool) {
	_, quoted, ok := strings.Cut(strings.TrimSpace(line), "connection error: desc = ")
	if !ok {
		return "", "", false
	}

	text, err := strconv.Unquote(quoted)
	rest, ok := strings.CutPrefix(text, "ServerHandshake(")
	if err != nil || !ok {
		return "", "", false
	}

	quoted, reason, ok = strings.Cut(rest, ") failed: ")
	peer, err = strconv.Unquote(quoted)
	return peer, reason, ok && err == nil
}
