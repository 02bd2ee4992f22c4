package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/deploy/standalone/hosts"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/server"
	"github.com/cyborg-project/cyborg/internal/statedir"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workflows"
)

// stopLimit is how long each part of the process may take to stop.
const stopLimit = 30 * time.Second

// standalone is the state of the process while it starts, runs and stops.
type standalone struct {
	config   *config.Config
	machine  string // this machine's name
	hosts    []hosts.Host
	machines []machine // the agents of hosts, in the same order
	state    *statedir.Dir

	out      io.Writer // messages to the person who started the process
	log      *slog.Logger
	registry *prometheus.Registry
	began    time.Time

	// undo holds the functions that stop the parts that have started, in the order
	// of their start. They are called in the reverse order.
	undo []func(ctx context.Context) error
}

// run starts everything, and returns when ctx has ended and everything is
// stopped. If a part fails, run stops the others and returns the first failure.
// Mistakes in the configuration are found before anything is started, as far as
// that is possible.
func run(ctx context.Context, c *config.Config, out, stderr io.Writer) error {
	s := &standalone{
		config: c, out: out, log: slog.New(slog.DiscardHandler), registry: server.NewRegistry(), began: time.Now(),
	}

	parts, err := s.start(ctx, stderr)
	switch {
	case err == nil:
		err = server.RunParts(ctx, s.log, parts...)
	case ctx.Err() != nil:
		// The process was told to stop during the start. Whatever the error says, it
		// only means that the start was interrupted.
		s.log.InfoContext(ctx, "the start was interrupted", slog.String("error", err.Error()))
		s.say("Stopping before everything has started.")
		err = nil
	}
	return s.stop(ctx, err)
}

// start starts PostgreSQL and Temporal, and returns the parts that run on top
// of them.
//
// The order matters. Everything that may be refused comes first: the hosts, the
// listeners and the engine's addresses and certificates. Each part that has
// started is registered with later before the next one starts, so that a
// failure in between stops all of them.
func (s *standalone) start(ctx context.Context, stderr io.Writer) ([]server.Part, error) {
	if err := s.open(stderr); err != nil {
		return nil, err
	}

	if !s.config.Given("agent_endpoint.listen") {
		s.config.AgentEndpoint.Listen = "" // it is for agents outside the process
	}

	if err := s.chooseAuthority(ctx); err != nil {
		return nil, err
	}

	listeners, err := server.Listen(ctx, s.config, s.log)
	if err != nil {
		return nil, err
	}
	s.later(func(context.Context) error { return listeners.Close() })

	conductor := newPipeListener()
	listeners.ConnectAgents(conductor)

	embedded, held, err := s.engineConfig()
	if err != nil {
		return nil, err
	}
	warnOfEnrolledHosts(ctx, s.config, embedded.TLS.CA, s.log)
	embedded.Revocations = listeners.Revocations()
	if err := engine.Check(embedded); err != nil {
		return nil, err
	}

	if s.machines, err = s.agents(); err != nil {
		return nil, err
	}

	records, err := s.database(ctx)
	if err != nil {
		return nil, err
	}

	if err := s.migrate(ctx, records.url(database)); err != nil {
		return nil, err
	}

	embedded.PostgresURL = records.url
	temporal, err := s.engine(ctx, embedded)
	if err != nil {
		return nil, err
	}

	connected, err := s.connect(temporal, identity.Server, "standalone")
	if err != nil {
		return nil, err
	}

	parts := []server.Part{
		watched("PostgreSQL", records.done, records.err),
		watched("Temporal", temporal.Done(), temporal.Err),
		{Name: "certificates", Run: func(ctx context.Context) error { held.keep(ctx, s.log); return nil }},
		{Name: "server", Run: func(ctx context.Context) error {
			return server.Run(ctx, s.config, server.Deps{
				Temporal: connected, Namespace: temporal.Namespace(), DatabaseURL: records.url(database),
				Listeners: listeners, Registry: s.registry, Log: s.log,
			})
		}},
	}

	running, err := s.agentParts(temporal, conductor)
	if err != nil {
		return nil, err
	}

	parts = append(parts, running...)

	parts = append(parts, server.Part{Name: "welcome", Run: func(ctx context.Context) error {
		s.welcome(ctx, records.url(database), temporal.UIURL())
		<-ctx.Done()
		s.farewell(ctx, records.url(database))
		return nil
	}})

	return parts, nil
}

// open parses the hosts, locks the state directory and opens the log.
func (s *standalone) open(stderr io.Writer) (err error) {
	if s.machine, err = os.Hostname(); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "this machine's name cannot be read: %w", err)
	}

	if s.hosts, err = hosts.Parse(s.config.Standalone.Hosts, s.machine); err != nil {
		return err
	}
	if err := checkCaptures(s.hosts); err != nil {
		return err
	}

	if s.state, err = statedir.Open(s.config.Standalone.StateDir); err != nil {
		return err
	}

	s.later(func(context.Context) error { return s.state.Close() })
	s.say("State is in %s.", s.state.Path())
	if err := s.openLog(stderr); err != nil {
		return err
	}
	engine.LogRefusedConnections(s.log)
	engine.RedirectLibraries(s.log)
	return nil
}

// migrate brings the schema of Cyborg's database to the version of this
// program.
func (s *standalone) migrate(ctx context.Context, databaseURL string) error {
	done, err := db.Migrate(ctx, databaseURL)
	if err == nil && done.From != done.To {
		s.say("The schema went from version %d to %d.", done.From, done.To)
	}
	return err
}

// engineConfig returns the configuration of the embedded Temporal, without its
// database.
func (s *standalone) engineConfig() (engine.Config, certificates, error) {
	made, held, err := engineConfig(s.config, s.state)
	if err != nil {
		return engine.Config{}, nil, err
	}

	made.UIGuard, err = uiGuard(s.config)
	return made, held, err
}

// engineConfig returns the configuration of an embedded Temporal, without its
// database. Unless certificates are configured, it makes some in the state
// directory, which the caller keeps valid.
func engineConfig(c *config.Config, state *statedir.Dir) (engine.Config, certificates, error) {
	files := c.Standalone.TemporalTLS.Files()
	var held certificates
	if files.Cert == "" {
		var err error
		if files, held, err = makeCertificates(c, state); err != nil {
			return engine.Config{}, nil, err
		}
	}

	return engine.Config{
		Listen: c.Standalone.TemporalListen, UIListen: c.Standalone.TemporalUIListen,
		TLS: files, TrustDomain: c.Identity.TrustDomain,
		ServeUI: serveUI, UIWrites: c.Standalone.TemporalUIWrites,
		Namespace: c.Temporal.Namespace, Retention: c.Retention.Histories,
		SearchAttributes: workflows.SearchAttributes(),
	}, held, nil
}

// engine starts the embedded Temporal, and has it stopped at the end.
func (s *standalone) engine(ctx context.Context, c engine.Config) (*engine.Engine, error) {
	began := time.Now()
	e, err := engine.Start(ctx, c, s.log)
	if err != nil {
		return nil, err
	}

	s.later(e.Stop)
	s.say("Temporal is ready (%s).", since(began))
	return e, nil
}

// connect returns a connection to the embedded Temporal for a part of this
// process, which may do there what its role may.
func (s *standalone) connect(temporal *engine.Engine, role identity.Role, name string) (client.Client, error) {
	tls, err := temporal.ClientTLS(identity.Identity{TrustDomain: s.config.Identity.TrustDomain, Role: role, Name: name})
	if err != nil {
		return nil, err
	}

	connected, err := client.NewLazyClient(client.Options{
		HostPort: temporal.FrontendAddress(), Namespace: temporal.Namespace(),
		Identity: fmt.Sprintf("%s@%s/%s", name, s.machine, cyborg.Version),
		Logger:   temporalclient.NewLogger(s.log),
		ConnectionOptions: client.ConnectionOptions{
			TLS: tls, GrpcCompression: temporalclient.NoCompression(), DialOptions: []grpc.DialOption{temporalclient.LeaveLimitToTemporal()},
		},

		WorkerHeartbeatInterval: temporalclient.NoWorkerHeartbeats,
	})
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the connection of %s to the embedded Temporal cannot be set up: %w", name, err)
	}

	s.later(func(context.Context) error { connected.Close(); return nil })
	return connected, nil
}

// later registers the function that stops a part that has started.
func (s *standalone) later(stop func(ctx context.Context) error) { s.undo = append(s.undo, stop) }

// stop stops the parts that have started, the last one first, because later
// parts use earlier ones. Each gets stopLimit, even though ctx has usually
// ended. stop returns the cause, or if that is nil the first failure of a part
// to stop. It logs the other failures.
func (s *standalone) stop(ctx context.Context, cause error) error {
	for _, undo := range slices.Backward(s.undo) {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		err := undo(limited)
		cancel()

		switch {
		case err == nil:
		case cause == nil:
			cause = err
		default:
			s.log.ErrorContext(ctx, "a part did not stop as it should", slog.String("error", err.Error()))
		}
	}

	return cause
}

// watched returns a part that fails when done is closed, with the error that
// why returns. A nil channel is never closed: the part then runs until the end.
func watched(name string, done <-chan struct{}, why func() error) server.Part {
	return server.Part{Name: name, Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-done:
			return why()
		}
	}}
}

// say prints a line for the person who started the process.
func (s *standalone) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

// since returns the time since began, rounded for a person.
func since(began time.Time) string { return time.Since(began).Round(10 * time.Millisecond).String() }
