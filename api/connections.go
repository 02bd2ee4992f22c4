package api

import (
	"container/list"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
)

// connections bounds those of a listener. At the bound, a new one takes the position of the one that has been without a
// request for longest: those that are slow to send their first head, and those that are only kept open, go first.
type connections struct {
	limit  int
	gauge  prometheus.Gauge
	closed prometheus.Counter

	mu       sync.Mutex
	count    int
	idle     *list.List // of net.Conn, longest first
	position map[net.Conn]*list.Element
}

// newConnections registers the metrics too, where there is a registry.
func newConnections(limit int, registry prometheus.Registerer, listener string) (*connections, error) {
	labels := prometheus.Labels{"listener": listener}
	c := &connections{
		limit: clampToFileLimit(limit), idle: list.New(), position: map[net.Conn]*list.Element{},
		gauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cyborg_http_connections", Help: "Connections that are open.", ConstLabels: labels,
		}),
		closed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cyborg_http_connections_closed_total", Help: "Connections that were closed to make room for others.", ConstLabels: labels,
		}),
	}
	if registry == nil {
		return c, nil
	}
	for _, collector := range []prometheus.Collector{c.gauge, c.closed} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("metrics of listener %s: %w", listener, err)
		}
	}
	return c, nil
}

// clampToFileLimit leaves half of the files that this process may open to everything else.
func clampToFileLimit(limit int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur > math.MaxInt32 {
		return limit
	}
	return max(1, min(limit, int(files.Cur/2)))
}

// track is a server's ConnState.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.count++
		c.gauge.Inc()
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

func (c *connections) markIdle(conn net.Conn) {
	if c.position[conn] == nil {
		c.position[conn] = c.idle.PushBack(conn)
	}
}

func (c *connections) markActive(conn net.Conn) {
	if at := c.position[conn]; at != nil {
		c.idle.Remove(at)
		delete(c.position, conn)
	}
}

func (c *connections) closeLongestIdle() {
	conn, ok := c.idle.Front().Value.(net.Conn)
	if !ok { // nothing else is put there
		return
	}
	c.markActive(conn)
	c.closed.Inc()
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn() // without a farewell, for which one would have to wait
	}
	_ = conn.Close() // its server notices, and is done with it
}
