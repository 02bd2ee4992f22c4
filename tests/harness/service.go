package harness

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/porttest"
)

// Service is a stub of one of OpenStack's services, always at the same address,
// that can be away, slow or wrong. What it knows is the handler's, and outlives
// its being away. Its methods may be called from any goroutine.
type Service struct {
	Name    string
	Address string // on loopback

	handler http.Handler

	mu       sync.Mutex
	server   *http.Server // nil while it is away
	listener net.Listener // of the server
	trouble  Trouble
	changed  chan struct{} // closed, and replaced, whenever the trouble changes
}

// Trouble is how the requests of a service go wrong.
type Trouble struct {
	// Status is answered to each request, and nothing is done.
	Status int
	// Lost has each request done, and the connection broken instead of an answer.
	Lost bool
	// Slow is how long each request waits before.
	Slow time.Duration
}

// StartService lets the handler answer at an address of its own. The test's
// cleanup ends it.
func StartService(t testing.TB, name string, handler http.Handler) *Service {
	t.Helper()
	s := &Service{
		Name: name, Address: porttest.Address(t), handler: handler, changed: make(chan struct{}),
	}
	require.NoError(t, s.Up())
	t.Cleanup(s.Down)
	return s
}

// Down breaks every connection, and refuses new ones until Up.
func (s *Service) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		_ = s.server.Close()   // it is gone in any case
		_ = s.listener.Close() // the server may not have got it yet, and then its address stays taken for a moment
		s.server = nil
	}
}

// Up lets it answer again.
func (s *Service) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	listener, err := net.Listen("tcp", s.Address) //nolint:noctx // loopback
	if err != nil {
		return err
	}
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	s.listener = listener
	go s.server.Serve(listener) //nolint:errcheck // Down ends it
	return nil
}

// Disturb has requests go wrong from now on; the zero Trouble ends that, also
// for those that wait.
func (s *Service) Disturb(trouble Trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = trouble
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	trouble, changed := s.trouble, s.changed
	s.mu.Unlock()
	if trouble.Slow > 0 && !waited(r.Context(), trouble.Slow, changed) {
		return
	}
	switch {
	case trouble.Status != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(trouble.Status)
		// Placement finds its words in "errors", the others in "error"; the code is
		// that of its conflicts.
		_, _ = fmt.Fprintf(w, `{"errors": [{"status": %d, "code": "placement.concurrent_update", "detail": "told to fail"}],`+
			` "error": {"code": %[1]d, "message": "told to fail"}}`, trouble.Status) // a client that is gone is no matter of ours
	case trouble.Lost:
		s.handler.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	default:
		s.handler.ServeHTTP(w, r)
	}
}

// waited says that the client is still there after that time, or when something
// has changed before.
func waited(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return false
	}
	return true
}
