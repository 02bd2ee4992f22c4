package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
)

// Metrics measures the requests of one listener.
type Metrics struct {
	duration *prometheus.HistogramVec
	open     prometheus.Gauge
}

// NewMetrics registers the metrics of the listener with that name. The error
// says that they are already registered.
func NewMetrics(registry prometheus.Registerer, listener string) (*Metrics, error) {
	labels := prometheus.Labels{"listener": listener}
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cyborg_http_request_duration_seconds", Help: "How long requests took, event streams left out.",
			ConstLabels: labels, Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40},
		}, []string{"method", "route", "status"}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cyborg_http_requests_in_flight", Help: "Requests being served, event streams among them.", ConstLabels: labels,
		}),
	}

	for _, c := range []prometheus.Collector{m.duration, m.open} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics of listener %s: %w", listener, err)
		}
	}

	return m, nil
}

// Exchange is one request and its answer.
type Exchange struct {
	Time          time.Time // when the request arrived
	Method, Path  string
	Query         string // as it was sent, without the question mark
	Route         string // the pattern that matched; without a leading slash if none did
	Target        string // what the request is about, if the path does not say so; ids are separated by commas
	Operation     string // the id of the operation that the request became; empty for none
	Status        int
	RequestID     string
	Remote, Agent string // the client's address with port, and its User-Agent
	Identity      Identity
}

// ExchangeRecorder is called with every exchange after its end.
type ExchangeRecorder func(ctx context.Context, x Exchange)

// Observe returns the middleware of a listener: it gives each request its ID,
// turns panics of the handler into answers, logs the request, and counts it. A
// request that went well is logged at debug if it is a GET or HEAD, or if its
// handler called SetRoutine. account gets every exchange; it may be nil.
func Observe(log *slog.Logger, metrics *Metrics, account ExchangeRecorder) func(http.Handler) http.Handler {
	failures := &strangersFailures{}

	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			x := &exchange{requestID: requestIDOf(r), route: "unmatched"}
			r = r.WithContext(cyborg.WithRequestID(context.WithValue(r.Context(), exchangeKey{}, x), x.requestID))
			rec := &recorder{ResponseWriter: w}
			rec.Header().Set(RequestIDHeader, x.requestID)
			rec.Header().Set("Cache-Control", "no-store")
			rec.Header().Set("X-Content-Type-Options", "nosniff")

			metrics.open.Inc()
			start := time.Now()

			// The account must be written even if the caller has disconnected.
			ended := context.WithoutCancel(r.Context())

			defer func() {
				metrics.open.Dec()
				took := time.Since(start)
				if !x.stream {
					metrics.duration.WithLabelValues(method(r), x.route, strconv.Itoa(rec.answered())).Observe(took.Seconds())
				}

				logExchange(log, r, x, rec, took, failures)

				if account != nil {
					account(ended, Exchange{
						Time: start, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
						Route: x.route, Target: x.target, Operation: rec.Header().Get(OperationHeader),
						Status: rec.answered(), RequestID: x.requestID,
						Remote: r.RemoteAddr, Agent: r.UserAgent(), Identity: x.identity,
					})
				}
			}()

			// Deferred last, so it runs first: the panic has become an answer when the
			// exchange is logged.
			defer recoverPanic(rec, r)

			next.ServeHTTP(rec, r)
		})
	}
}

// recoverPanic answers for a handler that panicked. It lets
// http.ErrAbortHandler pass, with which a handler breaks the connection on
// purpose.
func recoverPanic(rec *recorder, r *http.Request) {
	reason := recover()
	if reason == nil {
		return
	}

	if err, ok := reason.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(reason)
	}

	err := cyborg.Errorf(cyborg.ErrInternal, "panic: %v\n%s", reason, debug.Stack())

	if rec.status != 0 { // the answer has begun; all that is left is to break it off
		exchangeOf(r.Context()).err = err
		panic(http.ErrAbortHandler)
	}

	WriteError(rec, r, err)
}

// method returns the method for the metrics. Methods that clients make up
// become one label, so that they cannot add series without limit.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return r.Method
	}
	return "other"
}

// logExchange logs the request and its answer. A failure is logged at the level
// of its kind.
func logExchange(log *slog.Logger, r *http.Request, x *exchange, rec *recorder, took time.Duration, failures *strangersFailures) {
	ctx := context.WithoutCancel(r.Context())
	level := slog.LevelInfo
	if r.Method == http.MethodGet || r.Method == http.MethodHead || x.routine {
		level = slog.LevelDebug
	}

	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", cyborg.Sanitize(r.URL.Path, longestPath)), slog.String("route", x.route),
		slog.Int("status", rec.answered()), slog.Int64("bytes", rec.bytes),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
		slog.String("request_id", x.requestID), slog.String("actor", x.identity.Name), slog.String("remote", r.RemoteAddr),
	}

	if x.identity.Project != "" {
		attrs = append(attrs, slog.String("project", x.identity.Project))
	}

	if x.err != nil {
		kind := cyborg.ErrorKindOf(x.err)
		level = kind.LogLevel()
		if x.identity.Name == "" && x.identity.ID == "" {
			repeated, count := failures.count(rec.answered(), time.Now())
			if !count {
				level = slog.LevelDebug
			} else if repeated > 0 {
				attrs = append(attrs, slog.Int("repeated", repeated))
			}
		}
		attrs = append(attrs, slog.String("kind", string(kind)), slog.String("error", x.err.Error()))
	}

	log.LogAttrs(ctx, level, "request", attrs...)
}

// longestPath is how many characters of a path are logged.
const longestPath = 1000

// strangersWindow is for how long failures of strangers have one line.
const strangersWindow = time.Minute

// strangersFailures counts what failed in this server for callers who have
// proved nothing. Anybody can make as many requests as they like, and each would
// cost a line. What such a caller did wrong is never logged: metrics count it,
// and the audit trail of the API.
type strangersFailures struct {
	mu       sync.Mutex
	began    time.Time // when the last line was logged
	repeated int       // since then
}

// count counts a failure with that status. It reports whether to log it, and how
// many there were since the last one that was logged.
func (f *strangersFailures) count(status int, now time.Time) (repeated int, line bool) {
	if status < http.StatusInternalServerError {
		return 0, false
	}

	f.mu.Lock()
	defer f.mu.Unlock()

	if !f.began.IsZero() && now.Sub(f.began) < strangersWindow {
		f.repeated++
		return 0, false
	}

	repeated, f.repeated, f.began = f.repeated, 0, now
	return repeated, true
}

// recorder remembers the status and the size of an answer.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

// WriteHeader remembers the first final status; those below 200 are interim.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}

	w.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes of the body.
func (w *recorder) Write(body []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}

	n, err := w.ResponseWriter.Write(body)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// answered returns the status that the client received.
func (w *recorder) answered() int {
	if w.status == 0 {
		return http.StatusOK // net/http sends it for a handler that wrote nothing
	}
	return w.status
}
