package openstack

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
)

// requestIDHeader carries the id of our own request in requests
// (oslo.middleware's global request id), and the service's id in answers. Nova
// sends its id in computeRequestIDHeader as well; its older releases send only
// that one.
const requestIDHeader, computeRequestIDHeader = "X-Openstack-Request-Id", "X-Compute-Request-Id"

// traced sends the id of our own request to each service, and logs the
// service's id, so that the logs of all services can be searched for the same
// piece of work.
type traced struct {
	next http.RoundTripper
	log  *slog.Logger
}

// RoundTrip sends the request and logs the answer.
func (t *traced) RoundTrip(r *http.Request) (*http.Response, error) {
	ours := cyborg.RequestIDOf(r.Context())
	if ours != "" {
		r = r.Clone(r.Context())
		r.Header.Set(requestIDHeader, ours)
	}

	began := time.Now()
	answer, err := t.next.RoundTrip(r)

	if err == nil {
		t.log.DebugContext(r.Context(), "asked a service of OpenStack", slog.String("method", r.Method), slog.String("host", r.URL.Host),
			slog.String("path", r.URL.Path), slog.Int("status", answer.StatusCode), slog.Duration("took", time.Since(began)),
			slog.String("request_id", ours), slog.String("their_request_id", requestIDIn(answer.Header)))
	}

	return answer, err
}

// CloseIdleConnections is what http.Client.CloseIdleConnections looks for in
// its transport.
func (t *traced) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// requestIDIn returns the id that the service gave the request.
func requestIDIn(answer http.Header) string {
	return cmp.Or(answer.Get(requestIDHeader), answer.Get(computeRequestIDHeader))
}
