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

// door is where the catalog says that Cyborg is. It passes on whatever comes, until a request comes of which Cyborg dies.
type door struct {
	proxy *httputil.ReverseProxy

	mu   sync.Mutex
	trap *trap
}

// trap waits for the next request for accelerator requests with this method.
type trap struct {
	method string
	moment moment
	caught chan struct{} // closed when it is there
	dead   chan struct{} // closed when Cyborg is
}

// moment is when Cyborg dies of a request: before it has read it, or when it has done what it was asked for and not said so.
type moment int

const (
	unread moment = iota
	unanswered
)

// open has the catalog point to a door.
func (c *cloud) open(t *testing.T) *door {
	t.Helper()
	target, err := url.Parse(c.URL)
	require.NoError(t, err)
	d := &door{proxy: httputil.NewSingleHostReverseProxy(target)}
	d.proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	c.rig.Announce(t, server.URL+"/v2")
	return d
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	trap := d.step(r)
	if trap == nil {
		d.proxy.ServeHTTP(w, r)
		return
	}
	if trap.moment == unanswered {
		d.proxy.ServeHTTP(httptest.NewRecorder(), r)
	}
	close(trap.caught)
	<-trap.dead
	panic(http.ErrAbortHandler) // as a connection to a dead process ends
}

// step returns the trap that the request has stepped into.
func (d *door) step(r *http.Request) *trap {
	d.mu.Lock()
	defer d.mu.Unlock()
	trap := d.trap
	if trap == nil || r.Method != trap.method || !strings.HasSuffix(r.URL.Path, "/accelerator_requests") {
		return nil
	}
	d.trap = nil
	return trap
}

// dies kills Cyborg in the middle of what Nova is asked for: of its next request with this method.
func (c *cloud) dies(t *testing.T, method string, at moment, of func()) {
	t.Helper()
	trap := &trap{method: method, moment: at, caught: make(chan struct{}), dead: make(chan struct{})}
	c.door.mu.Lock()
	c.door.trap = trap
	c.door.mu.Unlock()
	defer close(trap.dead)
	of()
	select {
	case <-trap.caught:
	case <-time.After(patience):
		t.Fatalf("Nova has not sent a %s", method)
	}
	c.Kill(t)
	t.Cleanup(func() {
		if !c.Running() { // the test has failed; the next needs it
			c.Restart(t)
		}
	})
}
