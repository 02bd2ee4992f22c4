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

// Service is a stub of one of OpenStack's services that a test can make
// unreachable, slow or faulty. It always has the same address. The state
// belongs to the handler, so it survives Down. Its methods may be called from
// any goroutine.
type Service struct {
	Name    string
	Address string // on loopback

	handler http.Handler

	// mu guards the fields below.
	mu       sync.Mutex
	server   *http.Server  // nil while the service is down
	listener net.Listener  // of the server
	served   chan struct{} // closed when Serve of the server has returned
	trouble  Trouble
	// changed is closed, and replaced, whenever the trouble changes. It wakes the
	// requests that wait.
	changed chan struct{}
}

// Trouble is how the requests of a service go wrong. The zero value is no
// trouble.
type Trouble struct {
	// Status is the status of every answer. The handler does not get the request.
	Status int
	// Lost has the handler do each request, and then breaks the connection instead
	// of an answer: the client cannot know whether the request was done.
	Lost bool
	// Slow is how long each request waits before anything is done.
	Slow time.Duration
}

// StartService runs a service with this handler at a free address of loopback.
// The test's cleanup ends it.
func StartService(t testing.TB, name string, handler http.Handler) *Service {
	t.Helper()
	s := &Service{
		Name: name, Address: porttest.Address(t), handler: handler, changed: make(chan struct{}),
	}

	require.NoError(t, s.Up())
	t.Cleanup(s.Down)
	return s
}

// Down breaks every connection. New ones are refused until Up.
func (s *Service) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		// The listener goes first, and not by the server's Close, because a child of
		// this process may still have a copy. Where Serve closes it at this moment,
		// Close returns too early: the address is free, and Up can have it again, only
		// when Serve has returned.
		porttest.Close(s.listener)
		_ = s.server.Close() // an error does not matter: the server is discarded
		<-s.served
		s.server = nil
	}
}

// Up makes the service answer again at the same address. It does nothing where
// the service is up.
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

	server, served := &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}, make(chan struct{})
	s.server, s.listener, s.served = server, listener, served

	go func() {
		defer close(served)
		_ = server.Serve(listener) // Down ends it
	}()

	return nil
}

// Disturb makes requests go wrong from now on. Requests that wait stop waiting,
// and are still treated as the trouble before demands. The zero Trouble heals
// the service.
func (s *Service) Disturb(trouble Trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = trouble
	close(s.changed)
	s.changed = make(chan struct{})
}

// serve answers one request according to the trouble at its arrival.
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
		// Clients of Placement read "errors", those of the other services "error". The
		// code is the one of Placement's conflicts of generations.
		_, _ = fmt.Fprintf(w, `{"errors": [{"status": %d, "code": "placement.concurrent_update", "detail": "told to fail"}],`+
			` "error": {"code": %[1]d, "message": "told to fail"}}`, trouble.Status) // it fails only where the client is gone
	case trouble.Lost:
		s.handler.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler) // net/http breaks the connection, and logs nothing
	default:
		s.handler.ServeHTTP(w, r)
	}
}

// waited waits for the given time, or until changed is closed. It returns false
// where the client went away before that.
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
