package openstack

import (
	"cmp"
	"log/slog"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
)

// requestIDHeader carries the id of whoever asked first in requests (oslo.middleware's global request id), and the service's
// own in answers. Nova's own stands in a second one as well, which older releases alone have.
const requestIDHeader, computeRequestIDHeader = "X-Openstack-Request-Id", "X-Compute-Request-Id"

// traced tells each service for which request of ours it is asked, and the log which of theirs that was: so one thing is
// found in the logs of all of them.
type traced struct {
	next http.RoundTripper
	log  *slog.Logger
}

// RoundTrip sends the request.
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

// CloseIdleConnections lets http.Client close them.
func (t *traced) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// requestIDIn is the id that the service gave the request.
func requestIDIn(answer http.Header) string {
	return cmp.Or(answer.Get(requestIDHeader), answer.Get(computeRequestIDHeader))
}
