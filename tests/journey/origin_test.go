package journey_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// origin is a web server with an image, from which it sends nothing before
// goOn is closed: so a test can look around while a host fetches it.
type origin struct {
	*httptest.Server
	fetching chan struct{} // closed at the first request
	goOn     chan struct{}
}

// startOrigin starts an origin of the image. It refuses what serves does not
// accept.
func startOrigin(t *testing.T, image []byte, serves func(*http.Request) bool) *origin {
	t.Helper()
	o := &origin{fetching: make(chan struct{}), goOn: make(chan struct{})}

	var once sync.Once // a step may be tried again
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !serves(r) {
			w.WriteHeader(http.StatusForbidden)
			return
		}

		w.WriteHeader(http.StatusOK) // the head has a time limit
		_ = http.NewResponseController(w).Flush()
		once.Do(func() { close(o.fetching) })

		select {
		case <-o.goOn:
			_, _ = w.Write(image) // the agent sees whether all of it arrived
		case <-r.Context().Done(): // the test has failed
		}
	}))
	t.Cleanup(o.Close)
	return o
}

// awaitFetch waits until a host fetches the image. It fails the test if the
// program that is to lead to that ends before.
func (o *origin) awaitFetch(t *testing.T, programmed <-chan error) {
	t.Helper()

	select {
	case <-o.fetching:
	case err := <-programmed:
		require.NoError(t, err)
		t.Fatal("the image was not fetched")
	}
}
