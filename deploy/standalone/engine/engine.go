// Package engine runs a Temporal server with its Web UI inside this process, with its state in PostgreSQL: the engine of
// the standalone. It makes the databases, keeps their schema current, makes the namespace and its search attributes,
// and says it is ready when a workflow can start.
//
// It has a Go module around it because Temporal's server is large; nothing that the agent, the server or the CLI link
// may import it. It knows nothing of accelerators: it imports the root package for its error kinds and nothing else of
// ours.
package engine

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/temporal"

	"github.com/cyborg-project/cyborg"
)

// What Config's zero values mean.
const (
	DefaultListen    = "127.0.0.1:7233"
	DefaultUIListen  = "127.0.0.1:8233"
	DefaultNamespace = "cyborg"
	DefaultRetention = 7 * 24 * time.Hour
)

// Config says what engine Start runs. Only PostgresURL is needed.
type Config struct {
	// PostgresURL returns the connection URL of one of the server's databases. The role must be able to create the
	// databases temporal and temporal_visibility, where they do not exist.
	PostgresURL func(database string) string
	// Listen is the IP address and port of Temporal's frontend, which clients and workers connect to; port 0 is any
	// free one. Beyond loopback it needs TLS.
	Listen string
	// ListenFlag is the flag that sets Listen, for the messages.
	ListenFlag string
	// UIListen is the IP address and port of the Web UI, on loopback always, because it asks nobody who they are.
	UIListen string
	// UIListenFlag is the flag that sets UIListen, for the messages.
	UIListenFlag string
	// Namespace is made when it is missing.
	Namespace string
	// Retention is how long the namespace keeps the histories of closed workflows; at least an hour.
	Retention time.Duration
	// SearchAttributes are added to the namespace where they are missing, by name.
	SearchAttributes map[string]enumspb.IndexedValueType
	// TLS makes the frontend want a certificate of every client; the zero value is plain text, for loopback.
	TLS TLS
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.ListenFlag = cmp.Or(c.ListenFlag, "--temporal-listen")
	c.UIListen = cmp.Or(c.UIListen, DefaultUIListen)
	c.UIListenFlag = cmp.Or(c.UIListenFlag, "--temporal-ui-listen")
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	return c
}

// Engine is a running Temporal server with its Web UI.
type Engine struct {
	frontend  string
	namespace string
	ui        *webUI
	identity  *identity // nil without TLS
	tuning    *tuning
	server    temporal.Server
	lock      *lock
	log       *logger

	stopOnce sync.Once
	stopErr  error
	done     chan struct{}
	failOnce sync.Once
	err      error // set before done is closed
}

// Check says what Start would refuse before it changes anything: addresses that are busy or not allowed, certificates
// that cannot be used. Whoever starts other things before the engine may ask first.
func Check(cfg Config) error {
	cfg = cfg.withDefaults()
	if _, err := settleAddresses(cfg); err != nil {
		return err
	}
	_, err := cfg.TLS.load()
	return err
}

// Start runs the engine and returns when a workflow can start in the namespace. The context bounds the start, not the
// engine's life.
//
// Nothing is changed before the addresses are known to be free. The errors are single sentences; their kind is
// Unavailable for what can pass (a busy port, a database that does not answer), Invalid for what cannot.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Engine, error) {
	began := time.Now()
	cfg = cfg.withDefaults()
	addrs, err := settleAddresses(cfg)
	if err != nil {
		return nil, err
	}
	id, err := cfg.TLS.load()
	if err != nil {
		return nil, err
	}
	held, err := prepareDatabases(ctx, cfg.PostgresURL, log)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		frontend: addrs.frontend.dial(), namespace: cfg.Namespace, identity: id, tuning: newTuning(), lock: held,
		log: newLogger(log), done: make(chan struct{}),
	}
	e.log.fatal = e.fail
	if err := e.start(ctx, cfg, addrs); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startStopLimit)
		defer cancel()
		return nil, errors.Join(err, e.Stop(stopCtx))
	}
	e.log.ready()
	held.keep(e.fail, log) //nolint:contextcheck // it outlives the context, until Stop
	log.InfoContext(ctx, "Temporal is ready", slog.String("address", e.FrontendAddress()), slog.String("ui", e.UIURL()),
		slog.String("namespace", cfg.Namespace), slog.Duration("took", time.Since(began)))
	return e, nil
}

// startStopLimit is how long the stop of an engine may take that did not start.
const startStopLimit = 10 * time.Second

func (e *Engine) start(ctx context.Context, cfg Config, addrs addresses) error {
	if err := e.startServer(cfg, addrs); err != nil { //nolint:contextcheck // its connections outlive the context
		return err
	}
	if err := e.openNamespace(ctx, cfg); err != nil {
		return err
	}
	e.tuning.open.Store(true)
	ui, err := startUI(ctx, addrs.ui, e.frontend, cfg.Namespace, e.identity)
	e.ui = ui
	return err
}

// startServer starts Temporal. Where Temporal gives up it wants to end the process, and our logger ends the goroutine
// instead; so this is one of its own.
func (e *Engine) startServer(cfg Config, addrs addresses) error {
	ended := make(chan struct{})
	var server temporal.Server
	var err error
	go func() {
		defer close(ended)
		server, err = temporal.NewServer(serverOptions(cfg, addrs, e.identity, e.tuning, e.log)...)
		if err == nil {
			err = server.Start()
		}
		if err == nil {
			e.server = server
		}
	}()
	<-ended
	switch {
	case err != nil:
		return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not start: %w", err)
	case e.server == nil:
		return e.Err()
	}
	return nil
}

// FrontendAddress returns the host and port that clients on this machine connect to.
func (e *Engine) FrontendAddress() string { return e.frontend }

// Namespace returns the namespace for everything of ours.
func (e *Engine) Namespace() string { return e.namespace }

// ClientTLS returns what clients in this process connect with, which may do everything; nil without TLS.
func (e *Engine) ClientTLS() *tls.Config { return e.identity.clientConfig() }

// UIURL returns the address of the Web UI.
func (e *Engine) UIURL() string { return e.ui.url() }

// Done is closed when the engine cannot go on. It stays open when Stop ends it.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err says why the engine cannot go on; nil while it can.
func (e *Engine) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// fail is what happens where Temporal would end the process: it tells the engine's user, and ends the goroutine.
func (e *Engine) fail(message string) {
	e.failOnce.Do(func() {
		e.err = cyborg.Errorf(cyborg.ErrUnavailable, "Temporal gave up: %s", message)
		close(e.done)
	})
	runtime.Goexit()
}

// Stop ends the Web UI and the server. Workers must have been stopped before: what they still ask is refused. When the
// context ends before the server has, Stop returns, and what the server still had to do is left to the next start; its
// state is safe at any moment.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopOnce.Do(func() { e.stopErr = e.stop(ctx) })
	return e.stopErr
}

func (e *Engine) stop(ctx context.Context) error {
	e.log.stopping()
	e.ui.stop()
	stopped := make(chan error, 1)
	go func() {
		if e.server == nil {
			stopped <- nil
			return
		}
		stopped <- e.server.Stop()
	}()
	var err error
	select {
	case err = <-stopped:
		if err != nil {
			err = cyborg.Errorf(cyborg.ErrInternal, "Temporal did not stop as it should: %w", err)
		}
	case <-ctx.Done():
		err = cyborg.Errorf(cyborg.ErrTimeout, "Temporal did not stop in time: %w", context.Cause(ctx))
	}
	e.lock.release(ctx)
	return err
}

// address is where something listens.
type address struct {
	ip   net.IP
	port int
}

func (a address) String() string { return net.JoinHostPort(a.ip.String(), strconv.Itoa(a.port)) }

// dial is the address for clients on this machine.
func (a address) dial() string {
	if a.ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port))
	}
	return a.String()
}
