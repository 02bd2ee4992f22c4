package server

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/imagesource"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// touchInterval is how often a process records that it is alive; well below
// conductor.silent_after.
const touchInterval = 5 * time.Second

// Deps is what a server process needs from outside.
type Deps struct {
	// Temporal is a client of the namespace; it may be lazy.
	Temporal  client.Client
	Namespace string
	// DatabaseURL is the URL of a migrated PostgreSQL database.
	DatabaseURL string
	Listeners   *Listeners
	Registry    *prometheus.Registry
	Log         *slog.Logger
}

// Run serves the configured roles until ctx ends. Then it stops in order: it
// takes no more requests, writes the reports that agents have sent, lets
// running activities end, and closes the database.
func Run(ctx context.Context, c *config.Config, deps Deps) error {
	metrics, err := newMetrics(deps.Registry)
	if err != nil {
		return err
	}

	s := &server{Deps: deps, config: c, limits: workflows.Limits(c.Operations), metrics: metrics}
	store, err := db.Open(ctx, deps.DatabaseURL, db.Options{
		MaxConns: c.Database.MaxConns, SilentAfter: c.Conductor.SilentAfter, DeployableName: c.Inventory.NameDeployable,
		MaxUnboundARQs: c.ARQs.MaxUnbound, ToSettle: func(hosts []string) { s.settler.TakeBack(hosts) }, Tracer: metrics,
	}, deps.Log)
	if err != nil {
		return err
	}
	defer store.Close()
	s.store, s.settler = store, s.newSettler(store)

	if c.OpenStack.Enabled() {
		s.cloud, err = openstack.New(c.OpenStack, deps.Log)
		if err != nil {
			return err
		}
		defer s.cloud.Close()

		s.images = glance.New(s.cloud, glance.Options{Max: int64(c.Images.Max), AllowMD5: c.Glance.AllowMD5})

		if c.Nova.Enabled {
			s.nova = nova.New(s.cloud)
		}
	}

	if err := s.followPlacement(ctx); err != nil {
		return err
	}

	if err := s.drawGrantKey(ctx); err != nil {
		return err
	}
	s.activities = s.newActivities()

	// Parts are stopped in reverse order: those that take requests come after those
	// that do the work.
	if err := s.Listeners.revoked.Load(ctx, store); err != nil {
		return err
	}
	parts := []Part{s.revocations(), s.worker(), s.grantKey()}

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
		parts = append(parts, serving...)
	}

	if s.Listeners.pprof != nil {
		parts = append(parts, s.profiles())
	}

	return RunParts(ctx, deps.Log, append(parts, s.presence())...)
}

// server is one server process.
type server struct {
	Deps
	config *config.Config
	store  *db.Store
	limits workflows.Limits
	// grants signs what operations may have hosts do.
	grants activities.Grants
	// activities are those of this process's worker.
	activities *activities.Activities
	metrics    *metrics
	// settler has hosts settle their attachments at once.
	settler *conductor.Settler

	// The services of OpenStack, each nil where it is not configured.
	cloud     *openstack.Session
	images    *glance.Images
	placement *activities.Placement
	nova      *nova.Nova

	// placementCounted sets the gauges about Placement; nil without Placement.
	placementCounted func(db.PlacementState)
}

// newActivities returns the conductor's activities with the configured services
// and policy.
func (s *server) newActivities() *activities.Activities {
	// Images and Nova are interfaces: a nil pointer in one of them would not be
	// nil.
	cloud := activities.Cloud{Placement: s.placement}
	if s.images != nil {
		cloud.Images = s.images
	}
	if s.nova != nil {
		cloud.Nova = s.nova
	}

	var rescueWithin time.Duration
	if s.config.Nova.Rescue == config.RescueHardReboot {
		rescueWithin = s.config.Nova.RescueTimeout
	}

	return activities.New(s.store, s.Temporal, activities.Policy{
		ForgetMissing: s.config.Inventory.ForgetMissingAfter,
		AutoAdmit:     s.config.Inventory.Admission == config.AdmissionAuto,
		ReloadLost:    s.config.Inventory.ReloadLostImages,
		Retention: db.Retention{
			Events:      s.config.Retention.Events,
			Operations:  s.config.Retention.Operations,
			Services:    servicesKept,
			Idempotency: s.config.Retention.Idempotency,
		},
		ForgetUnbound:  s.config.ARQs.ForgetUnboundAfter,
		CheckInstances: s.config.Nova.CheckInstances,
		RescueWithin:   rescueWithin,
	}, cloud, s.grants, s.Log)
}

// servicesKept is for how long a process that was killed stays in the list of
// services, as silent.
const servicesKept = 24 * time.Hour

// worker returns the part that serves the conductor's queue. A process with
// only the role api runs it, too, on the client with which it starts
// operations, so that they run in the process that waits for them.
func (s *server) worker() Part {
	identity := workerIdentity(hostname(), cyborg.Version, instance())
	return Part{Name: "worker", Run: func(ctx context.Context) error {
		return conductor.Serve(ctx, s.Temporal, s.activities, identity, s.Log)
	}}
}

// revocations returns the part that knows which certificates of hosts were revoked.
func (s *server) revocations() Part {
	return Part{Name: "revocations", Run: func(ctx context.Context) error {
		return s.Listeners.revoked.Follow(ctx, s.store)
	}}
}

// conductor returns the parts of the role conductor: the agents' endpoint with
// the ingester of what they send, the schedules, and what keeps Nova's and
// Placement's state known.
func (s *server) conductor() ([]Part, error) {
	ingester := db.NewIngester(s.store, db.IngesterOptions{
		FlushInterval: s.config.Conductor.FlushInterval, BatchSize: s.config.Conductor.BatchSize, Flushed: s.metrics.flushed,
		JournalsChanged: s.settler.Changed,
	}, s.Log)

	images, err := imagesource.New(imagesource.Options{
		Allow: s.config.Images.Allow, Max: int64(s.config.Images.Max),
	})
	if err != nil {
		return nil, err
	}

	deps := agents.Deps{Ingester: ingester, Records: s.store, Images: images, Registry: s.Registry, Log: s.Log}
	if s.images != nil {
		deps.Glance = s.images
	}

	endpoint, err := agents.New(agents.Config{
		Certificates: s.config.AgentEndpoint.TLS.ClientCA != "", TrustDomain: s.config.Identity.TrustDomain,
		GrantsValid: s.grantsTold(),
		Hosts:       s.config.AgentEndpoint.TLS.Names(), Enrollment: enrollment(s.config), Refuse: s.Listeners.revoked.Check,
	}, deps)
	if err != nil {
		return nil, err
	}

	novaParts, err := s.novaParts()
	if err != nil {
		return nil, err
	}

	prepared := make(chan struct{})
	parts := []Part{{Name: "ingester", Run: ingester.Run}}
	if s.Listeners.agents != nil {
		parts = append(parts, Part{Name: "agent endpoint", Run: func(ctx context.Context) error {
			return api.Serve(ctx, s.Listeners.agents, endpoint, api.ServeOptions{
				Connections: s.config.AgentEndpoint.MaxConnections, Connected: agents.Connected, Registry: s.Registry, Name: "agents", Log: s.Log,
			})
		}})
	}

	if s.Listeners.inProcess != nil {
		parts = append(parts, Part{Name: "agent endpoint in the process", Run: func(ctx context.Context) error {
			return api.Serve(ctx, s.Listeners.inProcess, agents.InProcess(endpoint), api.ServeOptions{Log: s.Log})
		}})
	}

	parts = append(parts, Part{Name: "schedules", Run: func(ctx context.Context) error { return s.schedules(ctx, prepared) }})

	parts = append(parts, oncePrepared("settling", prepared, s.settler.Run))
	if s.config.Inventory.Admission == config.AdmissionAuto {
		parts = append(parts, s.admission(prepared))
	}
	parts = append(parts, s.cleaning(prepared))

	return slices.Concat(novaParts, parts, s.placementParts()), nil
}

// admission returns the part that takes new hardware into service at once. It
// begins when Temporal is prepared: before that, runs could not be started, and
// the admitted operations would be orphans.
func (s *server) admission(prepared <-chan struct{}) Part {
	admitter := conductor.Admitter{
		What:   "the provision of new hardware",
		Notify: s.store.Notify,
		Admit:  func(ctx context.Context) (int, error) { return s.activities.AdmitNew(ctx, s.limits) },
		Log:    s.Log,
	}

	return oncePrepared("admission", prepared, admitter.Run)
}

// newSettler returns what has the attachments of a host settled as soon as a report has
// shown that they are not as recorded, or as soon as its host has still to take something
// back that nobody has any more.
func (s *server) newSettler(store *db.Store) *conductor.Settler {
	disagrees := func(ctx context.Context, host string) (bool, error) {
		found, err := store.DisagreementsOf(ctx, host, 1)
		return len(found) > 0, err
	}
	return conductor.NewSettler(disagrees, func(ctx context.Context, host string, reason workflows.SettleReason) error {
		return workflows.StartSettleHost(ctx, s.Temporal, workflows.SettleHostInput{
			Host: host, Limits: s.limits, AgentWait: s.limits.AgentWait, Every: s.config.Conductor.ReconcileInterval,
		}, reason)
	}, s.Log)
}

// cleaning returns the part that has handles cleaned after their last holders at once. It
// begins when Temporal is prepared, for the same reason as admission.
func (s *server) cleaning(prepared <-chan struct{}) Part {
	admitter := conductor.Admitter{
		What:   "the cleaning of handles",
		Notify: s.store.Notify,
		Admit:  func(ctx context.Context) (int, error) { return s.activities.AdmitCleanings(ctx, s.limits) },
		Log:    s.Log,
	}

	return oncePrepared("cleaning", prepared, admitter.Run)
}

// oncePrepared returns a part that begins when Temporal is prepared.
func oncePrepared(name string, prepared <-chan struct{}, run func(context.Context) error) Part {
	return Part{Name: name, Run: func(ctx context.Context) error {
		select {
		case <-prepared:
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}}
}

// api returns the parts of the role api: the HTTP server, its audit and its
// policy.
func (s *server) api() ([]Part, error) {
	c := s.config.API
	callers, err := s.callers()
	if err != nil {
		return nil, err
	}

	rules, err := newPolicy(s.config, s.Log)
	if err != nil {
		return nil, err
	}

	trail, err := s.audit()
	if err != nil {
		return nil, err
	}

	var (
		instances    v2.Instances
		rescueWithin time.Duration
	)

	if s.nova != nil {
		instances, rescueWithin = s.nova, s.config.Nova.RescueTimeout
	}

	names := c.TLS.Names()
	if public, err := url.Parse(c.PublicEndpoint); err == nil && public.Hostname() != "" {
		names = append(names, public.Hostname())
	}

	handler, err := api.New(api.Config{
		Auth:    callers,
		Hosts:   names,
		Limits:  limiter.Config{Connections: int(s.config.Database.MaxConns), QueueWait: c.QueueWait},
		Operate: operate.Config{MaxInFlight: c.MaxInFlight},
		V1: v1.Config{
			SyncWait: c.SyncWait, BodyLimit: int64(c.BodyLimit), MaxStreams: c.MaxStreams, CensusWait: c.CensusWait,
			RescueWithin: rescueWithin, Invitation: invitation(s.config), Warnings: s.warnings,
		},
		V2: v2.Config{
			PublicEndpoint: c.PublicEndpoint, SyncWait: c.SyncWait, BodyLimit: int64(c.BodyLimit), BindTimeout: s.config.ARQs.BindTimeout,
		},
	}, api.Deps{
		Store: s.store, Engine: temporalclient.NewEngine(s.Temporal, s.activities.Runs(), s.limits), Policy: rules, Account: trail.account,
		Instances: instances, Registry: s.Registry, Log: s.Log,
	})
	if err != nil {
		return nil, err
	}

	// Whoever deletes accelerator requests has their hosts settle that. A conductor in this
	// process does so as soon as Temporal is prepared; another process has prepared it.
	var settling []Part
	if !s.config.Server.Has(config.RoleConductor) {
		settling = append(settling, Part{Name: "settling", Run: s.settler.Run})
	}

	return append(settling, []Part{
		{Name: "audit", Run: trail.run},
		{Name: "policy", Run: func(ctx context.Context) error {
			rules.Watch(ctx, s.config.Policy.Reload)
			return nil
		}},
		{Name: "api", Run: func(ctx context.Context) error {
			return api.Serve(ctx, s.Listeners.api, handler, api.ServeOptions{
				Write: max(c.SyncWait, s.config.ARQs.BindTimeout) + time.Minute, Connections: c.MaxConnections, Registry: s.Registry, Name: "api", Log: s.Log,
			})
		}},
	}...), nil
}

// schedules registers the search attributes and the schedule with Temporal as
// soon as Temporal answers, and then closes prepared. After that it only waits
// for ctx to end, because a part that returns has failed.
func (s *server) schedules(ctx context.Context, prepared chan<- struct{}) error {
	in := workflows.ReconcileInput{
		Limits: s.limits, OrphanAfter: s.config.Conductor.OrphanAfter, AgentWait: s.limits.AgentWait,
	}

	if s.placement != nil {
		in.Placement = comparedPerRound
	}

	wait := time.Second
	for {
		err := conductor.EnsureSearchAttributes(ctx, s.Temporal, s.Namespace)
		if err == nil {
			err = conductor.EnsureSchedules(ctx, s.Temporal, s.config.Conductor.ReconcileInterval, in)
		}

		if ctx.Err() != nil {
			return nil //nolint:nilerr // a stop is no failure
		}

		if err == nil {
			close(prepared)
			break
		}

		s.Log.WarnContext(ctx, "Temporal is not prepared yet", slog.String("error", err.Error()), slog.String("hint", cyborg.AsError(err).Hint))
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

// presence returns the part that keeps this process in the list of services,
// and removes it at a clean stop. It is started last and stopped first.
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
				s.Log.WarnContext(ctx, "the list of services does not show this process as it is",
					slog.String("role", service.Role), slog.String("error", err.Error()))
			}
		}
	}

	return Part{Name: "presence", Run: func(ctx context.Context) error {
		ticker := time.NewTicker(touchInterval)
		defer ticker.Stop()

		for {
			each(ctx, s.store.RecordService)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				// ctx has ended, and the removal still has to reach the database.
				leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), touchInterval)
				defer cancel()
				each(leaving, s.store.DeleteService)

				return nil
			}
		}
	}}
}
