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
	"github.com/cyborg-project/cyborg/api/web"
)

// Limits of every listener. Answers that may take longer set their own write deadline.
const (
	defaultHead  = 10 * time.Second
	defaultRead  = 60 * time.Second
	idleLimit    = 2 * time.Minute
	headerBytes  = 64 << 10
	defaultGrace = 10 * time.Second
	defaultWrite = 90 * time.Second
	// maxStreams is how many requests one HTTP/2 connection may make at once.
	maxStreams         = 100
	defaultConnections = 10_000
)

// Endpoint is where something is served.
type Endpoint struct {
	// Setting is the configuration key of Address, for messages: api.listen.
	Setting string
	Address string
	TLS     *tls.Config // nil serves plain HTTP
	// Authenticated says that callers must prove who they are.
	Authenticated bool
}

// Listen opens the endpoint's port. The error is one sentence: beyond loopback an endpoint needs TLS and
// authentication; a port may be taken.
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
			WithHint("Stop it, or set %s to another port.", e.Setting)
	case errors.Is(err, syscall.EACCES):
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: this user may not listen on %s", e.Setting, e.Address).
			WithHint("Set %s to a port above 1023.", e.Setting)
	default:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: cannot listen on %s: %w", e.Setting, e.Address, err)
	}
	if e.TLS != nil {
		listener = tls.NewListener(listener, withProtocols(e.TLS))
	}
	return listener, nil
}

func withProtocols(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	return config
}

// onLoopback says whether only processes of this machine can reach the address. A name must resolve to loopback alone.
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

// ServeOptions tracked how a listener serves. The zero value of a field means its default.
type ServeOptions struct {
	// Write is how long an answer may take from the request's head on; default 90 s. It must be longer than the
	// longest wait for an operation.
	Write time.Duration
	// Head and Read are how long a client may take to send a request's head, and all of it; default 10 s and 60 s.
	Head, Read time.Duration
	// Grace is how long requests in flight may take when the server stops; default 10 s.
	Grace time.Duration
	// Connections is how many may be open at once; default 10,000, and never more than half of the files that the process
	// may open.
	Connections int
	// Registry has the metrics of them, with Name as the listener's; nil for none.
	Registry prometheus.Registerer
	Name     string
	Log      *slog.Logger
}

// Serve serves the handler on the listener until ctx ends. Then it takes no more requests, event streams and waiting
// requests end at once with what they have, the others get the grace time, and what is left is broken off. It returns
// nil after such a stop, else why it cannot serve.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, options ServeOptions) error {
	draining := make(chan struct{})
	tracked, err := newConnections(cmp.Or(options.Connections, defaultConnections), options.Registry, options.Name)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           handler,
		ConnState:         tracked.track,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: cmp.Or(options.Head, defaultHead),
		ReadTimeout:       cmp.Or(options.Read, defaultRead),
		WriteTimeout:      cmp.Or(options.Write, defaultWrite),
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(options.Log.Handler(), slog.LevelDebug), // handshakes of strangers
		BaseContext: func(net.Listener) context.Context {
			return web.WithDraining(context.WithoutCancel(ctx), draining)
		},
	}
	server.RegisterOnShutdown(sync.OnceFunc(func() { close(draining) }))
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
	if stop() { // it ended by itself
		return fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	return <-stopped
}
