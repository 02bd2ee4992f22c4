package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/server"
	"github.com/cyborg-project/cyborg/internal/statedir"
	"github.com/cyborg-project/cyborg/workflows"
)

// stopLimit is how long each of Temporal and PostgreSQL may take to stop.
const stopLimit = 30 * time.Second

// standalone is the one process while it starts, runs and stops.
type standalone struct {
	config   *config.Config
	machine  string // this machine's name
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
// wrong first. What can be refused is refused before anything is started.
func run(ctx context.Context, c *config.Config, out, stderr io.Writer) error {
	s := &standalone{
		config: c, out: out, log: slog.New(slog.DiscardHandler), registry: server.NewRegistry(), began: time.Now(),
	}
	err := s.serve(ctx, stderr)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // told to stop before everything was started
		s.say("Stopping before everything has started.")
	}
	return s.stop(ctx, err)
}

func (s *standalone) serve(ctx context.Context, stderr io.Writer) error {
	if err := s.open(stderr); err != nil {
		return err
	}
	listeners, err := server.Listen(ctx, s.config)
	if err != nil {
		return err
	}
	s.later(func(context.Context) error { return listeners.Close() })
	if err := engine.Check(s.engineConfig(nil)); err != nil {
		return err
	}
	agents, err := s.agents()
	if err != nil {
		return err
	}
	records, err := s.database(ctx)
	if err != nil {
		return err
	}
	if err := s.migrate(ctx, records.url(database)); err != nil {
		return err
	}
	temporal, err := s.engine(ctx, records.url)
	if err != nil {
		return err
	}
	connected, err := s.connect(ctx, temporal)
	if err != nil {
		return err
	}
	parts := []server.Part{
		watched("PostgreSQL", records.done, records.err),
		watched("Temporal", temporal.Done(), temporal.Err),
		{Name: "server", Run: func(ctx context.Context) error {
			return server.Run(ctx, s.config, server.Deps{
				Temporal: connected, Namespace: temporal.Namespace(), DatabaseURL: records.url(database),
				Listeners: listeners, Registry: s.registry, Log: s.log,
			})
		}},
	}
	running, err := s.agentParts(agents, connected)
	if err != nil {
		return err
	}
	parts = append(parts, running...)
	parts = append(parts, server.Part{Name: "welcome", Run: func(ctx context.Context) error {
		s.welcome(ctx, records.url(database), temporal.UIURL())
		<-ctx.Done()
		s.say("Stopping; what is in flight goes on at the next start.")
		s.say("A step that runs has %s to end; a second Ctrl-C does not wait for it.", min(s.config.Agent.StopTimeout, stopLimit))
		return nil
	}})
	return server.RunParts(ctx, s.log, parts...)
}

// open settles what hosts there are, and takes the state directory.
func (s *standalone) open(stderr io.Writer) (err error) {
	if s.machine, err = os.Hostname(); err != nil {
		return cyborg.Errorf(cyborg.Unavailable, "this machine's name cannot be read: %w", err)
	}
	if s.hosts, err = parseHosts(s.config.Standalone.Hosts, s.machine); err != nil {
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
	return s.openLog(stderr)
}

func (s *standalone) migrate(ctx context.Context, databaseURL string) error {
	from, to, err := db.Migrate(ctx, databaseURL)
	if err == nil && from != to {
		s.say("The schema went from version %d to %d.", from, to)
	}
	return err
}

func (s *standalone) engineConfig(urls func(string) string) engine.Config {
	return engine.Config{
		PostgresURL: urls,
		Listen:      s.config.Standalone.TemporalListen, UIListen: s.config.Standalone.TemporalUIListen,
		Namespace: s.config.Temporal.Namespace, Retention: s.config.Retention.Histories,
		SearchAttributes: workflows.SearchAttributes(),
	}
}

func (s *standalone) engine(ctx context.Context, urls func(string) string) (*engine.Engine, error) {
	began := time.Now()
	e, err := engine.Start(ctx, s.engineConfig(urls), s.log)
	if err != nil {
		return nil, err
	}
	s.later(e.Stop)
	s.say("Temporal is ready (%s).", since(began))
	return e, nil
}

func (s *standalone) connect(ctx context.Context, temporal *engine.Engine) (client.Client, error) {
	connected, err := client.DialContext(ctx, client.Options{
		HostPort: temporal.FrontendAddress(), Namespace: temporal.Namespace(),
		Identity: fmt.Sprintf("standalone@%s/%s", s.machine, cyborg.Version),
		Logger:   temporallog.NewStructuredLogger(s.log),
	})
	if err != nil {
		return nil, cyborg.Errorf(cyborg.Unavailable, "the embedded Temporal does not answer: %w", err)
	}
	s.later(func(context.Context) error { connected.Close(); return nil })
	return connected, nil
}

// later keeps what stops a part that has started.
func (s *standalone) later(stop func(ctx context.Context) error) { s.undo = append(s.undo, stop) }

// stop stops what has started, last first, also where ctx has ended. It returns the cause of the stop, or else the first
// thing that did not stop as it should; the rest is logged.
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
