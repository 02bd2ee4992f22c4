package api

import (
	"cmp"
	"container/list"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// connections bounds the open connections of a listener. When the limit is
// exceeded, the connection that has been without a request for longest is
// closed. So clients that are slow to send their first request, or only keep
// connections open, cannot lock others out.
type connections struct {
	limit int
	rest  time.Duration // see ServeOptions.Rest

	gauge  prometheus.Gauge
	closed prometheus.Counter

	// mu guards what follows. The server calls track from many goroutines.
	mu    sync.Mutex
	count int

	// idle has the connections (net.Conn) without a request, the longest idle one
	// first; position finds a connection in it.
	idle     *list.List
	position map[net.Conn]*list.Element
}

// newConnections returns the bound for one listener, and registers its metrics
// if there is a registry.
func newConnections(options ServeOptions) (*connections, error) {
	labels := prometheus.Labels{"listener": options.Name}
	c := &connections{
		limit: clampToFileLimit(options), rest: cmp.Or(options.Rest, defaultRest), idle: list.New(), position: map[net.Conn]*list.Element{},
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cyborg_http_connections", Help: "Connections that are open.", ConstLabels: labels,
		}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cyborg_http_connections_closed_total", Help: "Connections that were closed to make room for others.", ConstLabels: labels,
		}),
	}

	if options.Registry == nil {
		return c, nil
	}

	for _, collector := range []prometheus.Collector{c.gauge, c.closed} {
		if err := options.Registry.Register(collector); err != nil {
			return nil, fmt.Errorf("metrics of listener %s: %w", options.Name, err)
		}
	}

	return c, nil
}

// shareOfFiles is the part of the files that the process may open, as its
// denominator, that the connections of one listener may take. A standalone has the
// API, the agent endpoint, Temporal's frontend, its other services together, and its
// Web UI. The sixth part is left for everything else.
const shareOfFiles = 6

// clampToFileLimit returns how many connections the listener may have: the limit, or
// its share of the files that this process may open. Where that is fewer than
// somebody has configured, it warns of it: clients that were counted on lose their
// connections then.
func clampToFileLimit(options ServeOptions) int {
	limit := cmp.Or(options.Connections, defaultConnections)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur/shareOfFiles >= uint64(limit) {
		return limit
	}

	clamped := max(1, int(files.Cur/shareOfFiles))
	if options.Connections != 0 {
		options.Log.Warn("a listener takes fewer connections than are configured, because this process may not open enough files; "+
			"where that many are needed, raise the limit on open files (LimitNOFILE of systemd, or ulimit -n)",
			slog.String("listener", options.Name), slog.Int("configured", limit), slog.Int("connections", clamped),
			slog.Uint64("open_files", files.Cur), slog.Uint64("open_files_needed", uint64(limit)*shareOfFiles))
	}
	return clamped
}

// track is the server's ConnState hook: it follows every change of a
// connection's state.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch state {
	case http.StateNew:
		c.count++
		c.gauge.Inc()
		// A new connection counts as idle until its first request has arrived.
		c.markIdle(conn)
		if c.count > c.limit {
			c.closeLongestIdle()
		}

	case http.StateIdle:
		c.markIdle(conn)

	case http.StateActive:
		c.markActive(conn)

	case http.StateHijacked, http.StateClosed:
		c.count--
		c.gauge.Dec()
		c.markActive(conn)
	}
}

// markIdle adds a connection to the end of the idle list, unless it is in the
// list already. The caller holds mu.
func (c *connections) markIdle(conn net.Conn) {
	if c.position[conn] == nil {
		c.position[conn] = c.idle.PushBack(conn)
	}
}

// markActive removes a connection from the idle list, because it has a request
// or is closed. The caller holds mu.
func (c *connections) markActive(conn net.Conn) {
	if at := c.position[conn]; at != nil {
		c.idle.Remove(at)
		delete(c.position, conn)
	}
}

// closeLongestIdle closes the connection that has been idle for longest. The
// caller holds mu. The list is not empty: the connection that exceeded the
// limit is in it.
func (c *connections) closeLongestIdle() {
	conn, ok := c.idle.Front().Value.(net.Conn)
	if !ok { // the list has nothing else
		return
	}

	c.markActive(conn)
	c.closed.Inc()

	// Closing a TLS connection sends a message to the client and may wait for it.
	// The connection below it is closed without one, because mu is held.
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	_ = conn.Close() // the server notices it and cleans up
}
