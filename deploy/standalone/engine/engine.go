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
	"strconv"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
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

// Config describes the engine that Start runs. PostgresURL and TLS are required.
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
	// Refuse is asked about the certificate of each client outside this process, in the
	// handshake and at each call; nil refuses none. It must answer at once.
	Refuse func(*x509.Certificate) error
	// UIGuard decides which requests reach the Web UI; nil lets all of them through.
	UIGuard func(http.Handler) http.Handler
	// UIWrites lets the Web UI change something: signal, cancel, reset and terminate
	// runs. Otherwise it only reads.
	UIWrites bool
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
	cfg      Config // with its defaults
	addrs    addresses
	identity *identity
	log      *slog.Logger

	ui       *webUI
	current  *instance // used only by the goroutine of watch while that runs
	endWatch context.CancelFunc
	watched  chan struct{} // closed when watch has returned

	stopOnce sync.Once
	stopErr  error

	done chan struct{} // closed when the engine cannot go on
	err  error         // why; set before done is closed
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

	e := &Engine{cfg: cfg, addrs: addrs, identity: id, log: log, watched: make(chan struct{}), done: make(chan struct{})}
	held, err := prepareDatabases(ctx, cfg.PostgresURL, log)
	if err != nil {
		return nil, err
	}
	if e.current, err = e.launch(ctx, held); err != nil {
		return nil, err
	}

	if e.ui, err = startUI(ctx, addrs.ui, e.FrontendAddress(), cfg, id, e.current.log.out); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startStopLimit)
		defer cancel()
		return nil, errors.Join(err, e.current.stop(stopCtx))
	}

	watching, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	e.endWatch = endWatch
	go e.watch(watching)

	log.InfoContext(ctx, "Temporal is ready", slog.String("address", e.FrontendAddress()), slog.String("ui", e.UIURL()),
		slog.String("namespace", cfg.Namespace), slog.Duration("took", time.Since(began)))

	return e, nil
}

const (
	// startStopLimit is how long it may take to stop a Temporal whose start has
	// failed.
	startStopLimit = 10 * time.Second
	// startOverStopLimit is how long it may take to stop a Temporal that starts over.
	startOverStopLimit = time.Minute
	// startOverPause is the time between two tries to prepare the databases again.
	startOverPause = time.Second
)

// watch has Temporal start over when PostgreSQL is on another timeline. It ends
// with Stop, or when the engine cannot go on.
func (e *Engine) watch(ctx context.Context) {
	defer close(e.watched)

	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-e.current.failed:
			err = e.current.err
		case <-e.current.lock.timeline.left:
			err = e.startOver(ctx)
		}

		if ctx.Err() != nil {
			return
		}
		if err != nil {
			e.err = err
			close(e.done)
			return
		}
	}
}

// startOver replaces Temporal by one that knows only what PostgreSQL has now. The
// addresses and certificates stay, so clients find the new one where the old one
// was.
func (e *Engine) startOver(ctx context.Context) error {
	began := time.Now()
	e.log.WarnContext(ctx, "PostgreSQL has failed over, and may lack what Temporal remembers: Temporal starts over",
		slog.String("from", e.current.lock.timeline.id))

	// The new one needs the addresses of the old one, so that has to end even if the
	// engine is stopped meanwhile.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), startOverStopLimit)
	defer cancel()
	if err := e.current.stop(limited); err != nil {
		return err
	}

	held, err := e.awaitDatabases(ctx)
	if err != nil {
		return err
	}
	next, err := e.launch(ctx, held)
	if err != nil {
		return err
	}

	e.current = next
	e.log.InfoContext(ctx, "Temporal has started over", slog.String("on", held.timeline.id), slog.Duration("took", time.Since(began)))
	return nil
}

// awaitDatabases prepares the databases as soon as PostgreSQL lets it.
func (e *Engine) awaitDatabases(ctx context.Context) (*lock, error) {
	for {
		held, err := prepareDatabases(ctx, e.cfg.PostgresURL, e.log)
		if cyborg.ErrorKindOf(err) != cyborg.ErrUnavailable {
			return held, err
		}

		e.log.WarnContext(ctx, "Temporal waits for PostgreSQL", slog.String("error", err.Error()))
		if err := clock.Sleep(ctx, startOverPause); err != nil {
			return nil, err
		}
	}
}

// FrontendAddress returns the host and port of Temporal's frontend for clients
// on this machine.
func (e *Engine) FrontendAddress() string { return e.addrs.frontend.dial() }

// Namespace returns the name of the namespace that was opened.
func (e *Engine) Namespace() string { return e.cfg.Namespace }

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

// Stop ends the Web UI and the server, and gives up the lock on the databases.
// Workers must have been stopped before, because their requests are refused
// from now on. If the context ends before the server has, Stop returns and
// leaves the rest of the server's work to the next start. Nothing is lost:
// Temporal's state in PostgreSQL is consistent at any moment.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopOnce.Do(func() { e.stopErr = e.stop(ctx) })
	return e.stopErr
}

// stop does the work of Stop.
func (e *Engine) stop(ctx context.Context) error {
	e.endWatch()
	e.ui.stop()

	select {
	case <-e.watched:
		return e.current.stop(ctx)
	case <-ctx.Done():
		return cyborg.Errorf(cyborg.ErrTimeout, "Temporal was starting over, and did not stop in time: %w", context.Cause(ctx))
	}
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
