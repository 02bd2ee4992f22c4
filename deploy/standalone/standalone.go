package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/internal/server"
	"github.com/cyborg-project/cyborg/internal/statedir"
	"github.com/cyborg-project/cyborg/workflows"
)

// stopLimit is how long each of Temporal and PostgreSQL may take to stop.
const stopLimit = 30 * time.Second

// standalone is the one process while it starts, runs and stops.
type standalone struct {
	config   *config.Config
	hosts    []host
	state    *statedir.Dir
	out      io.Writer // for the person who started it
	log      *slog.Logger
	registry *prometheus.Registry
	began    time.Time
	// undo holds what stops the parts that have started, in order.
	undo []func(ctx context.Context) error
}

// run starts everything, says when it is ready, and returns when ctx has ended and all is stopped, or with what went
// wrong. What can be refused is refused before anything is started.
func run(ctx context.Context, c *config.Config, out io.Writer, log *slog.Logger) (err error) {
	machine, err := os.Hostname()
	if err != nil {
		return cyborg.Errorf(cyborg.Unavailable, "this machine's name cannot be read: %w", err)
	}
	hosts, err := parseHosts(c.Standalone.Hosts, machine)
	if err != nil {
		return err
	}
	if err := checkCaptures(hosts); err != nil {
		return err
	}
	s := &standalone{config: c, hosts: hosts, out: out, log: log, registry: server.NewRegistry(), began: time.Now()}
	defer func() { err = errors.Join(err, s.stop(ctx)) }()

	if s.state, err = statedir.Open(c.Standalone.StateDir); err != nil {
		return err
	}
	s.later(func(context.Context) error { return s.state.Close() })
	s.say("State is in %s.", s.state.Path())
	listeners, err := server.Listen(ctx, c)
	if err != nil {
		return err
	}
	s.later(func(context.Context) error { return listeners.Close() })
	if err := s.portsAreFree(ctx); err != nil {
		return err
	}
	urls, postgresDone, err := s.database(ctx)
	if err != nil {
		return err
	}
	if err := s.migrate(ctx, urls); err != nil {
		return err
	}
	temporal, err := s.engine(ctx, urls)
	if err != nil {
		return err
	}
	connected, err := client.DialContext(ctx, client.Options{
		HostPort: temporal.FrontendAddress(), Namespace: temporal.Namespace(),
		Identity: fmt.Sprintf("standalone@%s/%s", machine, cyborg.Version),
		Logger:   temporallog.NewStructuredLogger(log),
	})
	if err != nil {
		return cyborg.Errorf(cyborg.Unavailable, "the embedded Temporal does not answer: %w", err)
	}
	s.later(func(context.Context) error { connected.Close(); return nil })
	agents, err := s.agents(connected)
	if err != nil {
		return err
	}
	parts := []server.Part{
		watched("PostgreSQL", postgresDone, func() error { return errors.New("PostgreSQL ended") }),
		watched("Temporal", temporal.Done(), temporal.Err),
		{Name: "server", Run: func(ctx context.Context) error {
			return server.Run(ctx, c, server.Deps{
				Temporal: connected, Namespace: temporal.Namespace(), DatabaseURL: urls(database),
				Listeners: listeners, Registry: s.registry, Log: log,
			})
		}},
	}
	parts = append(parts, agents...)
	parts = append(parts, server.Part{Name: "welcome", Run: func(ctx context.Context) error {
		s.welcome(ctx, temporal.UIURL())
		<-ctx.Done()
		s.say("Stopping; what is in flight goes on at the next start.")
		return nil
	}})
	return server.RunParts(ctx, log, parts...)
}

// database is the name of our own among the server's; Temporal has two more.
const database = "cyborg"

// database starts the private PostgreSQL, or takes the one that is configured. It returns the URL of each database.
func (s *standalone) database(ctx context.Context) (urls func(name string) string, done <-chan struct{}, err error) {
	if configured := s.config.Database.URL.Reveal(); configured != "" {
		base, err := url.Parse(configured)
		if err != nil {
			return nil, nil, cyborg.Errorf(cyborg.Invalid, "database.url cannot be read: %w", err)
		}
		s.say("Using the PostgreSQL at %s.", s.config.Database.URL)
		return func(name string) string {
			if name == database {
				return configured
			}
			u := *base
			u.Path = "/" + name
			return u.String()
		}, nil, nil
	}
	began := time.Now()
	pg, err := postgres.Start(ctx, postgres.Config{Dir: s.state.Join("postgres")}, s.log)
	if err != nil {
		return nil, nil, err
	}
	s.later(pg.Stop)
	how := "started"
	if pg.Adopted() {
		how = "taken over from a process that was killed"
	}
	s.say("PostgreSQL is ready (%s, %s).", how, since(began))
	return pg.URL, pg.Done(), pg.CreateDatabase(ctx, database)
}

func (s *standalone) migrate(ctx context.Context, urls func(string) string) error {
	from, to, err := db.Migrate(ctx, urls(database))
	if err == nil && from != to {
		s.say("The schema went from version %d to %d.", from, to)
	}
	return err
}

func (s *standalone) engine(ctx context.Context, urls func(string) string) (*engine.Engine, error) {
	began := time.Now()
	e, err := engine.Start(ctx, engine.Config{
		PostgresURL: urls,
		Listen:      s.config.Standalone.TemporalListen, UIListen: s.config.Standalone.TemporalUIListen,
		Namespace: s.config.Temporal.Namespace, Retention: s.config.Retention.Histories,
		SearchAttributes: workflows.SearchAttributes(),
	}, s.log)
	if err != nil {
		return nil, err
	}
	s.later(e.Stop)
	s.say("Temporal is ready (%s).", since(began))
	return e, nil
}

// portsAreFree looks at the ports that Temporal will want, so that a busy one leaves everything as it was.
func (s *standalone) portsAreFree(ctx context.Context) error {
	for flag, address := range map[string]string{
		"--temporal-listen": s.config.Standalone.TemporalListen, "--temporal-ui-listen": s.config.Standalone.TemporalUIListen,
	} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return cyborg.Errorf(cyborg.Unavailable, "%s: cannot listen on %s: %w", flag, address, err).
				WithHint("Stop what listens there, or choose another port with %s.", flag)
		}
		if err := listener.Close(); err != nil {
			return cyborg.Errorf(cyborg.Unavailable, "%s: cannot give back %s: %w", flag, address, err)
		}
	}
	return nil
}

// later keeps what stops a part that has started.
func (s *standalone) later(stop func(ctx context.Context) error) { s.undo = append(s.undo, stop) }

// stop stops what has started, last first, also where ctx has ended.
func (s *standalone) stop(ctx context.Context) error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		errs = append(errs, s.undo[i](limited))
		cancel()
	}
	return errors.Join(errs...)
}

// watched is a part that fails when what it stands for ends. A nil channel never does.
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

func (s *standalone) say(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func since(began time.Time) string { return time.Since(began).Round(10 * time.Millisecond).String() }
