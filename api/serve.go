package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/drain"
)

// Limits of every listener. Handlers that may take longer set their own write
// deadline.
const (
	defaultHead  = 10 * time.Second
	defaultRead  = 60 * time.Second
	defaultWrite = 90 * time.Second
	defaultRest  = time.Second
	defaultGrace = 10 * time.Second

	idleLimit   = 2 * time.Minute
	headerBytes = 64 << 10

	// maxStreams is how many requests one HTTP/2 connection may make at once.
	maxStreams         = 100
	defaultConnections = 10_000
)

// Endpoint is an address on which the process listens.
type Endpoint struct {
	// Setting is the configuration key of Address, such as api.listen, for
	// messages.
	Setting string
	// Flag is the flag that sets it, if there is one.
	Flag    string
	Address string

	TLS *tls.Config // nil serves plain HTTP

	// Authenticated says that callers must prove who they are.
	Authenticated bool
}

// Listen opens the endpoint's port. The error is one sentence for an operator:
// an endpoint that others can reach needs TLS and authentication, and the port
// may be taken.
func (e Endpoint) Listen(ctx context.Context) (net.Listener, error) {
	if !onLoopback(e.Address) && (e.TLS == nil || !e.Authenticated) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid,
			"%s is %s, which others can reach, and that needs TLS and authentication", e.Setting, e.Address).
			WithHint("Configure both, or listen on 127.0.0.1.")
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.Address)
	switch {
	case err == nil:
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "%s: another process listens on %s already", e.Setting, e.Address).
			WithHint("Stop it, or set %s to another port.", e.option())
	case errors.Is(err, syscall.EACCES):
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: this user may not listen on %s", e.Setting, e.Address).
			WithHint("Set %s to a port above 1023.", e.option())
	default:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: cannot listen on %s: %w", e.Setting, e.Address, err)
	}

	if e.TLS != nil {
		listener = tls.NewListener(listener, withProtocols(e.TLS))
	}

	return listener, nil
}

// option names what sets the address, as a hint does.
func (e Endpoint) option() string {
	if e.Flag == "" {
		return e.Setting
	}
	return e.Setting + " (" + e.Flag + ")"
}

// withProtocols returns the configuration with HTTP/2 and HTTP/1.1, and without
// TLS versions below 1.2.
func withProtocols(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)

	return config
}

// onLoopback says whether only processes of this machine can reach the address.
// Of names, only localhost counts.
func onLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}

	return host == "localhost"
}

// ServeOptions bound how a listener serves. The zero value of a field means its
// default.
type ServeOptions struct {
	// Write is how long an answer may take after the head of the request; default
	// 90 s. It must be longer than the longest wait for an operation.
	Write time.Duration

	// Head and Read are how long a client may take to send the head of a request,
	// and the whole request; default 10 s and 60 s.
	Head, Read time.Duration

	// Rest is how long a client may take to send the rest of a body that nobody reads,
	// after the answer has begun; default 1 s. One that has sent all of it keeps its
	// connection for the next request.
	Rest time.Duration

	// Grace is how long requests in flight may still take when the server stops;
	// default 10 s.
	Grace time.Duration

	// Connected makes the context of the requests of a connection; nil if they need
	// none of their own.
	Connected func(ctx context.Context, conn net.Conn) context.Context

	// Connections is how many connections may be open at once; default 10,000, and
	// never more than a sixth of the files that the process may open.
	Connections int

	// Registry gets the metrics of the connections, labelled with Name; nil for
	// none.
	Registry prometheus.Registerer
	Name     string

	Log *slog.Logger
}

// closeAfterChunks has a connection closed after a request whose body came in
// chunks, so that nothing which came with it is taken for another request. With a
// Content-Length beside the chunks, a proxy may have seen the end of the request
// elsewhere, and a stranger may have written what follows (RFC 9112, 6.1); net/http
// takes that header away before anybody sees it. Our own clients send no chunks.
func closeAfterChunks(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Serve serves the handler on the listener until ctx ends. It then accepts no
// more requests; event streams and requests that wait for an operation end at
// once with what they have; all others get the grace time before they are cut
// off. Serve returns nil after such a stop, else why it cannot serve.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, options ServeOptions) error {
	draining := make(chan struct{})

	tracked, err := newConnections(options)
	if err != nil {
		return err
	}

	server := &http.Server{
		Handler:   tracked.dropUnread(closeAfterChunks(handler)),
		ConnState: tracked.track,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if options.Connected != nil {
				ctx = options.Connected(ctx, conn)
			}
			return withConn(ctx, conn)
		},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: cmp.Or(options.Head, defaultHead),
		ReadTimeout:       cmp.Or(options.Read, defaultRead),
		WriteTimeout:      cmp.Or(options.Write, defaultWrite),
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    headerBytes,
		// Failed TLS handshakes come from anybody, and are logged at debug only.
		ErrorLog: slog.NewLogLogger(options.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context {
			// The context is detached from ctx: a stop must not cancel requests that have
			// the grace time.
			return drain.WithSignal(context.WithoutCancel(ctx), draining)
		},
	}

	// Handlers that wait or stream see the closed channel through drain.Signal.
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(draining) }))

	// The stop runs in its own goroutine as soon as ctx ends. Serve returns
	// meanwhile, so the result of the stop comes through a channel.
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(options.Grace, defaultGrace))
		defer cancel()

		err := server.Shutdown(grace)
		if errors.Is(err, context.DeadlineExceeded) {
			options.Log.WarnContext(grace, "requests were broken off: they took longer than the grace time", slog.String("address", listener.Addr().String()))
			err = server.Close()
		}
		stopped <- err
	})

	err = server.Serve(listener)
	if stop() { // ctx has not ended: serving failed by itself
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}

	return <-stopped
}
