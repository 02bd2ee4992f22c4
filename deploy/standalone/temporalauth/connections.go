package temporalauth

import (
	"container/list"
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"net"
	"sync"
	"syscall"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/rpc/encryption"
	"google.golang.org/grpc/credentials"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

const (
	// mostConnections is how many connections the frontend takes at once. Each host's
	// agent has one, and for a moment those that it has lost.
	mostConnections = 20_000
	// shareOfFiles is the part of the files that the process may open, as its
	// denominator, that they take at most. In a standalone the API, the agent endpoint
	// and the Web UI may take as much each, and Temporal's other services together.
	shareOfFiles = 6
	// mostInside and shareInside are the same for each of the three services that
	// only Temporal itself calls. It has a few connections to each.
	mostInside, shareInside = 1000, 3 * shareOfFiles
	// mostOfOne is how many connections one identity may have open, unless it is that
	// of a server.
	mostOfOne = 20
	// mostRefusals is how many calls a connection is refused before it is closed. gRPC
	// keeps some of each refused call until the deadline that the client has chosen,
	// or the end of the connection.
	mostRefusals = 1000
)

// connections is a listener that bounds its connections. Beyond the bound, that one
// is closed which has been without a completed handshake for longest. So whoever has
// no good certificate locks nobody out.
type connections struct {
	net.Listener

	limit int
	of    counts

	mu    sync.Mutex // guards what follows
	count int
	fresh list.List // of *connection: those without a completed handshake, the oldest first
	// shown are the certificates of the others, without those of servers.
	shown map[*connection]*x509.Certificate
}

// bound returns the frontend's listener with its connections bounded.
func (g *Guard) bound(listener net.Listener) net.Listener {
	limit := clampToFiles(mostConnections, shareOfFiles, func(clamped int, files uint64) {
		g.log.Warn("Temporal takes fewer connections than it could, because the process may not open enough files; "+
			"if each host's agent needs one, raise the limit on open files (LimitNOFILE of systemd, or ulimit -n)",
			slog.Int("most", mostConnections), slog.Int("connections", clamped),
			slog.Uint64("open_files", files), slog.Int("open_files_needed", mostConnections*shareOfFiles))
	})
	bounded := &connections{Listener: listener, limit: limit}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listeners = append(g.listeners, bounded)
	return bounded
}

// boundInside is bound for a service that only Temporal itself calls; a few connections
// are enough there. Without TLS among them nobody shows there who he is, and the
// connection that would be closed is that of Temporal, so the listener stays as it is.
func boundInside(listener net.Listener, files encryption.TLSConfigProvider) (net.Listener, error) {
	if secured, err := files.GetInternodeServerConfig(); err != nil || secured == nil {
		return listener, err
	}
	return &connections{Listener: listener, limit: clampToFiles(mostInside, shareInside, func(int, uint64) {})}, nil
}

// clampToFiles lowers the limit to a share of the files that this process may open,
// and then tells it.
func clampToFiles(limit, share int, tell func(clamped int, files uint64)) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur/uint64(share) >= uint64(limit) {
		return limit
	}

	clamped := max(1, int(files.Cur/uint64(share)))
	tell(clamped, files.Cur)
	return clamped
}

// Accept waits for the next connection.
func (c *connections) Accept() (net.Conn, error) {
	accepted, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}

	one := &connection{Conn: accepted, all: c}
	if oldest := c.add(one); oldest != nil {
		_ = oldest.Close() // gRPC learns it from its handshake
	}
	return one, nil
}

// add counts a connection. It returns the one to close, if there are too many.
func (c *connections) add(one *connection) (oldest *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	one.fresh = c.fresh.PushBack(one)
	if c.count <= c.limit {
		return nil
	}
	oldest, _ = c.fresh.Front().Value.(*connection) // there is at least the new one
	return oldest
}

// closeRefused closes the connections whose certificate is refused.
func (c *connections) closeRefused(refuse func(*x509.Certificate) error) {
	c.mu.Lock()
	shown := maps.Clone(c.shown)
	c.mu.Unlock()

	for one, certificate := range shown {
		if refuse(certificate) != nil {
			_ = one.Close() // the client learns it
		}
	}
}

// connection is one connection of the listener.
type connection struct {
	net.Conn

	all *connections

	// all.mu guards what follows.
	fresh    *list.Element      // nil once its handshake is over
	who      *identity.Identity // for whom it counts; nil for nobody
	closed   bool
	over     context.CancelFunc // ends the contexts of its calls; nil before the first one may come
	refusals int                // of its calls
}

// address is the address of a client, by which gRPC's hooks find its connection:
// they get nothing else of it.
type address struct {
	net.Addr

	of *connection
}

// RemoteAddr returns the address of the client.
func (c *connection) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// connectionAt returns the connection of a client; nil for one that is not ours.
func connectionAt(client net.Addr) *connection {
	found, _ := client.(address)
	return found.of
}

// begin returns the context of all calls of the connection, which ends with it.
func (c *connection) begin(ctx context.Context) context.Context {
	ctx, over := context.WithCancel(ctx)
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.closed {
		over()
	}
	c.over = over
	return ctx
}

// refused counts a call that was refused. Whoever goes on after many loses the
// connection.
func (c *connection) refused() {
	c.all.mu.Lock()
	c.refusals++
	tooMany := c.refusals == mostRefusals
	c.all.mu.Unlock()

	if tooMany {
		_ = c.Close() // the client learns it
	}
}

// identify says that the handshake is over, and whose the connection is. The error
// is that the identity has too many.
func (c *connection) identify(who caller) error {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}

	if !unbounded(who) {
		if !c.all.of.begin(who.countedAs(), mostOfOne) {
			return cyborg.Errorf(cyborg.ErrBusy, "%s has %d connections open already", who, mostOfOne)
		}
		counted := who.countedAs()
		c.who = &counted
		if c.all.shown == nil {
			c.all.shown = map[*connection]*x509.Certificate{}
		}
		c.all.shown[c] = who.certificate
	}
	c.known()
	return nil
}

// known says that the handshake is over. The caller holds all.mu.
func (c *connection) known() {
	if c.fresh != nil {
		c.all.fresh.Remove(c.fresh)
		c.fresh = nil
	}
}

// Close closes the connection, which counts no more.
func (c *connection) Close() error {
	c.all.mu.Lock()
	if !c.closed {
		c.closed = true
		c.all.count--
		c.known()
		if c.who != nil {
			c.all.of.end(*c.who)
			delete(c.all.shown, c)
		}
		if c.over != nil {
			c.over()
		}
	}
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// handshakes are the TLS of the frontend, which tell each connection whose it is.
type handshakes struct {
	credentials.TransportCredentials

	guard *Guard
}

// ServerHandshake makes the handshake of a connection that bound has accepted.
func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}

	state, secure := info.(credentials.TLSInfo)
	one, ours := raw.(*connection)
	if !secure || !ours {
		err = cyborg.Errorf(cyborg.ErrInternal, "Temporal's frontend has a connection of type %T with %T", raw, info)
	} else {
		who := h.guard.callerOf(&authorization.AuthInfo{TLSConnection: &state})
		if err = one.identify(who); err == nil {
			err = h.guard.refuse(who.certificate) // CloseRefused may have come just before
		}
	}
	if err != nil {
		_ = secured.Close() // nothing was sent yet
		return nil, nil, err
	}
	return secured, info, nil
}
