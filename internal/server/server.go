package server

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/api/auth"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/imagesource"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// touchInterval is how often a process says that it lives; well below conductor.silent_after.
const touchInterval = 5 * time.Second

// Deps is what a server process stands on.
type Deps struct {
	// Temporal is connected, or lazy; its namespace is Namespace.
	Temporal  client.Client
	Namespace string
	// DatabaseURL is that of a migrated database.
	DatabaseURL string
	Listeners   *Listeners
	Registry    *prometheus.Registry
	Log         *slog.Logger
}

// Run serves the configured roles until ctx ends, then stops in order: it takes no more requests, lets workflow tasks
// come to an end, writes what agents have said, and leaves the database.
func Run(ctx context.Context, c *config.Config, deps Deps) error {
	store, err := db.Open(ctx, deps.DatabaseURL, db.Options{
		MaxConns: c.Database.MaxConns, SilentAfter: c.Conductor.SilentAfter, DeployableName: c.Inventory.NameDeployable,
	}, deps.Log)
	if err != nil {
		return err
	}
	defer store.Close()
	s := &server{Deps: deps, config: c, store: store, limits: workflows.Limits(c.Operations)}
	parts := []Part{s.worker()}
	if c.Server.Has(config.RoleConductor) {
		conducting, err := s.conductor()
		if err != nil {
			return err
		}
		parts = append(parts, conducting...)
	}
	if c.Server.Has(config.RoleAPI) {
		serving, err := s.api()
		if err != nil {
			return err
		}
		parts = append(parts, serving)
	}
	return RunParts(ctx, deps.Log, append(parts, s.presence())...)
}

type server struct {
	Deps
	config *config.Config
	store  *db.Store
	limits workflows.Limits
}

// worker serves the conductor's queue. The API runs one, too, on the client with which it starts operations, so that
// they start in this process.
func (s *server) worker() Part {
	acts := activities.New(s.store, s.Temporal, activities.Policy{
		ForgetMissing: s.config.Inventory.ForgetMissingAfter,
		AutoAdmit:     s.config.Inventory.Admission == config.AdmitAutomatically,
		Retention: db.Retention{
			Events:      s.config.Retention.Events,
			Operations:  s.config.Retention.Operations,
			Services:    s.config.Retention.Operations,
			Idempotency: s.config.Retention.Idempotency,
		},
	}, s.Log)
	w := conductor.NewWorker(s.Temporal, acts, conductor.Identity("conductor", hostname(), cyborg.Version, os.Getpid()))
	return Part{Name: "worker", Run: func(ctx context.Context) error { return conductor.Serve(ctx, w, s.Log) }}
}

// conductor hears from agents and keeps the schedules.
func (s *server) conductor() ([]Part, error) {
	intake := db.NewIntake(s.store, db.IntakeOptions{
		FlushInterval: s.config.Conductor.FlushInterval, BatchSize: s.config.Conductor.BatchSize,
	}, s.Log)
	images, err := imagesource.New(imagesource.Options{
		Allow: s.config.Images.Allow, Max: int64(s.config.Images.Max),
	})
	if err != nil {
		return nil, err
	}
	endpoint, err := agents.New(
		agents.Config{Certificates: s.config.AgentEndpoint.TLS.ClientCA != ""},
		agents.Deps{Intake: intake, Operations: s.store, Images: images, Registry: s.Registry, Log: s.Log})
	if err != nil {
		return nil, err
	}
	return []Part{
		{Name: "intake", Run: intake.Run},
		{Name: "agent endpoint", Run: func(ctx context.Context) error {
			return api.Serve(ctx, s.Listeners.agents, endpoint, api.ServeOptions{Log: s.Log})
		}},
		{Name: "schedules", Run: s.schedules},
	}, nil
}

func (s *server) api() (Part, error) {
	c := s.config.API
	tokens := make([]auth.Token, 0, len(c.Tokens))
	for _, t := range c.Tokens {
		tokens = append(tokens, auth.Token{Name: t.Name, Secret: t.Token.Reveal(), Role: auth.Role(t.Role)})
	}
	handler, err := api.New(api.Config{
		Auth: auth.Config{Tokens: tokens, Certificates: c.TLS.ClientCA != ""},
		V1: v1.Config{
			SyncWait: c.SyncWait, MaxInFlight: c.MaxInFlight, QueueWait: c.QueueWait, BodyLimit: int64(c.BodyLimit),
			MaxStreams: c.MaxStreams, CensusWait: c.CensusWait,
		},
	}, api.Deps{
		Store: s.store, Engine: conductor.NewEngine(s.Temporal, s.limits), Registry: s.Registry, Log: s.Log,
	})
	if err != nil {
		return Part{}, err
	}
	return Part{Name: "api", Run: func(ctx context.Context) error {
		return api.Serve(ctx, s.Listeners.api, handler, api.ServeOptions{Write: c.SyncWait + time.Minute, Log: s.Log})
	}}, nil
}

// schedules makes what Temporal must have, as soon as Temporal answers, and is then done.
func (s *server) schedules(ctx context.Context) error {
	in := workflows.ReconcileInput{
		Limits: s.limits, OrphanAfter: s.config.Conductor.OrphanAfter, AgentWait: s.limits.AgentWait,
	}
	wait := time.Second
	for {
		err := conductor.EnsureSearchAttributes(ctx, s.Temporal, s.Namespace)
		if err == nil {
			err = conductor.EnsureSchedules(ctx, s.Temporal, s.config.Conductor.ReconcileInterval, in)
		}
		if err == nil {
			break
		}
		s.Log.WarnContext(ctx, "Temporal is not prepared yet", slog.String("error", err.Error()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
			wait = min(2*wait, 30*time.Second)
		}
	}
	<-ctx.Done()
	return nil
}

// presence keeps this process in the list of services while it lives, and takes it out at a clean stop.
func (s *server) presence() Part {
	started := time.Now()
	services := make([]cyborg.Service, 0, len(s.config.Server.Roles))
	for _, role := range s.config.Server.Roles {
		services = append(services, cyborg.Service{
			Role: string(role), Host: hostname(), Instance: instance(), Version: cyborg.Version, StartedAt: started,
		})
	}
	each := func(ctx context.Context, do func(context.Context, cyborg.Service) error) {
		for _, service := range services {
			if err := do(ctx, service); err != nil && ctx.Err() == nil {
				s.Log.WarnContext(ctx, "the list of services is not true of this process",
					slog.String("role", service.Role), slog.String("error", err.Error()))
			}
		}
	}
	return Part{Name: "presence", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(touchInterval)
		defer ticker.Stop()
		for {
			each(ctx, s.store.Touch)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), touchInterval)
				defer cancel()
				each(leaving, s.store.Retire)
				return nil
			}
		}
	}}
}
