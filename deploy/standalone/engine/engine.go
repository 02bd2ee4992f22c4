// Package engine runs a Temporal server with its Web UI inside this process,
// with its state in PostgreSQL. The standalone uses it. The package makes the
// databases, keeps their schemas current, makes the namespace and its search
// attributes, and is ready when a workflow can start.
//
// It is in a Go module of its own, because Temporal's server is large: no
// package that the agent, the server or the CLI link may import it. It knows
// nothing about accelerators. Of Cyborg it imports only the root package, for
// the kinds of errors, internal/clock, internal/identity, internal/pki, and
// temporalauth, which decides what a client may do.
package engine

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/temporal"

	"github.com/cyborg-project/cyborg"
	trust "github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// The values that replace zero values in Config.
const (
	DefaultListen    = "127.0.0.1:7233"
	DefaultUIListen  = "127.0.0.1:8233"
	DefaultNamespace = "cyborg"
	DefaultRetention = 7 * 24 * time.Hour
)

// Config describes the engine that Start runs. PostgresURL, TLS and ServeUI are
// required.
type Config struct {
	// PostgresURL returns the connection URL of a database by its name. If the
	// databases temporal and temporal_visibility do not exist, the role must be
	// allowed to create databases.
	PostgresURL func(database string) string

	// Listen is the IP address and port of Temporal's frontend, which clients and
	// workers connect to. Port 0 means any free port.
	Listen string
	// ListenFlag is the flag that sets Listen, for error messages.
	ListenFlag string
	// UIListen is the IP address and port of the Web UI. It must be on loopback,
	// because the UI speaks plain HTTP.
	UIListen string
	// UIListenFlag is the flag that sets UIListen, for error messages.
	UIListenFlag string

	// Namespace is the namespace to open. It is made if it is missing.
	Namespace string
	// Retention is how long the namespace keeps the histories of closed workflows.
	// It is at least an hour.
	Retention time.Duration
	// SearchAttributes are the types of the search attributes by their names.
	// Missing ones are added to the namespace.
	SearchAttributes map[string]enumspb.IndexedValueType

	// TLS names the certificate and the key of the frontend, and the authorities
	// that sign the certificates of its clients; all are required. Files that are
	// replaced count from the next connection on. What a client may do depends on
	// the identity in its certificate; see temporalauth.
	TLS pki.Files
	// TrustDomain is that of the identities in those certificates.
	TrustDomain string
	// Revocations are asked about the certificate of each client outside this process;
	// nil refuses none.
	Revocations Revocations
	// UIGuard decides which requests reach the Web UI; nil lets all of them through.
	UIGuard func(http.Handler) http.Handler
	// ServeUI serves the Web UI on the listener until the context ends, and then
	// returns soon. It must bound the connections and how long each may take:
	// everybody on the machine can open them.
	ServeUI func(context.Context, net.Listener, http.Handler, *slog.Logger) error
	// UIWrites lets the Web UI change something: signal, cancel, reset and terminate
	// runs. Otherwise it only reads.
	UIWrites bool
}

// Revocations say whose certificate counts no more.
type Revocations interface {
	// Check is asked in the handshake and at each call. It must answer at once.
	Check(certificate *x509.Certificate) error
	// OnRevocation is called once, with what closes the connections that Check has come
	// to refuse.
	OnRevocation(grown func())
}

// withDefaults returns the configuration with the zero values replaced.
func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.ListenFlag = cmp.Or(c.ListenFlag, "--temporal-listen")
	c.UIListen = cmp.Or(c.UIListen, DefaultUIListen)
	c.UIListenFlag = cmp.Or(c.UIListenFlag, "--temporal-ui-listen")
	c.Namespace = cmp.Or(c.Namespace, DefaultNamespace)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.TrustDomain = cmp.Or(c.TrustDomain, trust.DefaultTrustDomain)
	return c
}

// Engine is a running Temporal server with its Web UI.
type Engine struct {
	frontend  string
	namespace string
	ui        *webUI // nil until Start has started it
	identity  *identity
	tuning    *tuning
	server    temporal.Server // nil if Temporal did not start
	lock      *lock
	ports     *reservation // of Temporal's own services
	log       *logger

	stopOnce sync.Once
	stopErr  error

	done     chan struct{} // closed when the engine cannot go on
	failOnce sync.Once
	err      error // why; set before done is closed
}

// Check returns the error that Start would return before it changes anything:
// for addresses that are in use or not allowed, and for certificates that
// cannot be used. A caller that starts other things before the engine can call
// it first. The ports of Temporal's own services are chosen anew by Start.
func Check(cfg Config) error {
	cfg = cfg.withDefaults()
	addrs, err := settleAddresses(cfg)
	if err != nil {
		return err
	}

	ports, err := addrs.reserveInternal()
	if err != nil {
		return err
	}
	ports.release()

	_, err = load(cfg, slog.New(slog.DiscardHandler))
	return err
}

// Start runs the engine and returns when a workflow can start in the namespace.
// The context bounds the start, not the engine's life.
//
// Nothing is changed before the addresses are known to be free. The errors are
// single sentences. Their kind is ErrUnavailable for problems that can pass (a
// busy port, a database that does not answer), ErrClaimed if another engine
// uses the databases, and ErrInvalid for mistakes in the configuration.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Engine, error) {
	began := time.Now()
	cfg = cfg.withDefaults()

	addrs, err := settleAddresses(cfg)
	if err != nil {
		return nil, err
	}

	id, err := load(cfg, log)
	if err != nil {
		return nil, err
	}

	held, err := prepareDatabases(ctx, cfg.PostgresURL, log)
	if err != nil {
		return nil, err
	}

	// Preparing the databases may take long. The ports are chosen after that, so
	// that little time passes before Temporal listens on them.
	ports, err := addrs.reserveInternal()
	if err != nil {
		held.release(ctx)
		return nil, err
	}

	e := &Engine{
		frontend: addrs.frontend.dial(), namespace: cfg.Namespace, identity: id, tuning: newTuning(), lock: held, ports: ports,
		log: newLogger(log), done: make(chan struct{}),
	}
	e.log.fatal = e.fail

	// If the start fails, Stop releases the lock and ends whatever has started. The
	// context may be the reason of the failure, so Stop gets one of its own.
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

// startStopLimit is how long it may take to stop an engine whose start has
// failed.
const startStopLimit = 10 * time.Second

// start starts Temporal, opens the namespace and starts the Web UI. On an error
// the caller stops what has started.
func (e *Engine) start(ctx context.Context, cfg Config, addrs addresses) error {
	if err := e.startServer(cfg, addrs); err != nil { //nolint:contextcheck // its connections outlive the context
		return err
	}

	if err := e.openNamespace(ctx, cfg); err != nil {
		return err
	}

	// Temporal's services looked for new namespaces often, to find this one soon.
	// From now on they need not.
	e.tuning.open.Store(true)

	ui, err := startUI(ctx, addrs.ui, e.frontend, cfg, e.identity, e.log.out)
	e.ui = ui
	return err
}

// startServer starts Temporal in a goroutine of its own. If Temporal gives up,
// it calls Fatal of its logger, which here ends the calling goroutine and not
// the process. The goroutine of the caller must survive that.
func (e *Engine) startServer(cfg Config, addrs addresses) error {
	ended := make(chan struct{}) // closed also if the goroutine is ended by Fatal
	var server temporal.Server
	var err error

	go func() {
		defer close(ended)
		if server, err = newServer(cfg, addrs, e.identity, e.lock.timeline, e.tuning, e.log); err == nil {
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

// FrontendAddress returns the host and port of Temporal's frontend for clients
// on this machine.
func (e *Engine) FrontendAddress() string { return e.frontend }

// Namespace returns the name of the namespace that was opened.
func (e *Engine) Namespace() string { return e.namespace }

// ClientTLS returns the TLS configuration for a client in this process with this
// identity, which decides what the client may do.
func (e *Engine) ClientTLS(who trust.Identity) (*tls.Config, error) { return e.identity.client(who) }

// UIURL returns the address of the Web UI.
func (e *Engine) UIURL() string { return e.ui.url() }

// Done returns a channel that is closed when the engine cannot go on. Stop does
// not close it.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err returns why the engine cannot go on. It is nil as long as the engine can,
// and Stop does not set it.
func (e *Engine) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// fail is called when Temporal wants to end the process. It closes done, so
// that the user of the engine can stop, and ends the calling goroutine, which
// must not go on. Only the first message is kept.
func (e *Engine) fail(message string) {
	e.failOnce.Do(func() {
		e.err = cyborg.Errorf(cyborg.ErrUnavailable, "Temporal gave up: %s", message)
		close(e.done)
	})

	runtime.Goexit()
}

// Stop ends the Web UI and the server, and gives up the lock on the databases.
// Workers must have been stopped before, because their requests are refused
// from now on. If the context ends before the server has, Stop returns and
// leaves the rest of the server's work to the next start. Nothing is lost:
// Temporal's state in PostgreSQL is consistent at any moment.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopOnce.Do(func() { e.stopErr = e.stop(ctx) })
	return e.stopErr
}

// stop does the work of Stop. It also stops an engine that has started only in
// part.
func (e *Engine) stop(ctx context.Context) error {
	e.log.stopping()
	e.ui.stop()

	// The channel has a buffer, so that the goroutine can end after stop has
	// returned.
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

	// The lock is released last, because the server writes to the databases until
	// it ends.
	e.lock.release(ctx)
	e.ports.release()
	return err
}

// address is an IP address and a port to listen on.
type address struct {
	ip   net.IP
	port int
}

// String returns the address in the form host:port.
func (a address) String() string { return net.JoinHostPort(a.ip.String(), strconv.Itoa(a.port)) }

// dial returns the address for clients on this machine. A listener on all
// addresses is reached through loopback.
func (a address) dial() string {
	if a.ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.port))
	}
	return a.String()
}
