package openstack_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// killProxy is a proxy to which the service catalog points as Cyborg. It passes
// on every request, until one meets a trap: then a test kills Cyborg.
type killProxy struct {
	proxy *httputil.ReverseProxy

	mu   sync.Mutex
	trap *trap // guarded by mu; nil where none is set
}

// trap catches the next request to /accelerator_requests with this method.
type trap struct {
	method     string
	deathPoint deathPoint
	caught     chan struct{} // closed when the request has come
	dead       chan struct{} // closed when Cyborg is killed
}

// deathPoint is when Cyborg dies during a request.
type deathPoint int

const (
	unread     deathPoint = iota // before it gets the request
	unanswered                   // after it has done the work, before the answer reaches Nova
)

// startKillProxy starts a killProxy and puts it into the service catalog.
func (c *cloud) startKillProxy(t *testing.T) *killProxy {
	t.Helper()
	target, err := url.Parse(c.URL)
	require.NoError(t, err)

	d := &killProxy{proxy: httputil.NewSingleHostReverseProxy(target)}
	d.proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }

	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	c.rig.Announce(t, server.URL+"/v2")

	return d
}

// ServeHTTP passes a request on, or holds it in the trap until Cyborg is dead.
func (d *killProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	trap := d.step(r)

	if trap == nil {
		d.proxy.ServeHTTP(w, r)
		return
	}

	if trap.deathPoint == unanswered {
		d.proxy.ServeHTTP(httptest.NewRecorder(), r)
	}

	close(trap.caught)
	<-trap.dead
	panic(http.ErrAbortHandler) // the connection breaks as one to a dead process does
}

// step returns the trap that catches the request, or nil. A trap catches one
// request.
func (d *killProxy) step(r *http.Request) *trap {
	d.mu.Lock()
	defer d.mu.Unlock()

	trap := d.trap
	if trap == nil || r.Method != trap.method || !strings.HasSuffix(r.URL.Path, "/accelerator_requests") {
		return nil
	}

	d.trap = nil
	return trap
}

// killDuring calls of, which requests something from Nova, and kills Cyborg
// during Nova's next request with this method.
func (c *cloud) killDuring(t *testing.T, method string, at deathPoint, of func()) {
	t.Helper()
	trap := &trap{method: method, deathPoint: at, caught: make(chan struct{}), dead: make(chan struct{})}

	c.killProxy.mu.Lock()
	c.killProxy.trap = trap
	c.killProxy.mu.Unlock()

	defer close(trap.dead)

	of()

	select {
	case <-trap.caught:
	case <-time.After(patience):
		t.Fatalf("Nova has not sent a %s of accelerator requests", method)
	}

	c.Kill(t)

	t.Cleanup(func() {
		if !c.Running() { // the test has failed, and the next one needs Cyborg
			c.Restart(t)
		}
	})
}
