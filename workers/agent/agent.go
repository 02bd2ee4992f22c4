package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/activities/agent/hostfacts"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// layoutsWithin is how long the devices that a boot has made whole again may take to be
// divided before they are reported.
const layoutsWithin = 2 * time.Minute

// factsWithin is how long the start may wait for the facts of the host, which take some
// milliseconds. An agent reads them once, because it does not outlive the boot of its
// host; the first report has them already.
const factsWithin = 5 * time.Second

// Agent is one host's agent.
type Agent struct {
	config Config
	deps   Deps
	log    *slog.Logger
	ready  chan struct{}
}

// New makes an agent and touches nothing yet. The error is of kind ErrInvalid
// and lists everything that is wrong with the configuration.
func New(config Config, deps Deps) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if deps.Temporal == nil || deps.Drivers == nil || deps.Log == nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "an agent needs a Temporal client, drivers and a logger")
	}

	if deps.Clock == nil {
		deps.Clock = time.Now
	}

	return &Agent{
		config: config.withDefaults(), deps: deps, log: deps.Log.With("host", config.Host), ready: make(chan struct{}),
	}, nil
}

// Ready returns a channel that is closed when the agent has looked at its
// hardware once, the conductor has heard it, and it takes steps from Temporal.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Run runs the agent until the context ends; it is called once. It starts even
// while Temporal and the conductor are away, and keeps trying to reach them.
// When the context has ended, it waits for the running steps, but no longer
// than StopTimeout, and returns nil. An error says why the agent could not
// start, or that its files could not be closed.
func (a *Agent) Run(ctx context.Context) (err error) {
	dir, err := statedir.Open(a.config.StateDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()

	bootID := a.deps.BootID
	if bootID == "" {
		if bootID, err = readBootID(a.config.Root); err != nil {
			return err
		}
	}

	j, err := journal.Open(dir.Path(), journal.Options{BootID: bootID, Log: a.log, Now: a.deps.Clock})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()

	parts, err := a.assemble(ctx, dir, j)
	if err != nil {
		return err
	}
	defer parts.endpoint.close()
	defer parts.metrics.unregister()

	a.log.InfoContext(ctx, "agent started", "version", a.deps.Version, "boot_id", bootID, "instance", parts.reporter.instance,
		"state_dir", dir.Path())

	// Inventory and reporter serve the steps, so their context lasts until the last
	// step has ended. The end of Run's own context only stops the agent from taking
	// new steps.
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	var all sync.WaitGroup
	all.Go(func() {
		parts.inventory.Run(lasting, inventory.Restore{
			First: func(ctx context.Context) { parts.activities.RestoreLayouts(ctx, layoutsWithin) },
			Later: func(ctx context.Context) { parts.activities.RestoreAppeared(ctx, layoutsWithin) },
		})
	})
	all.Go(func() { parts.reporter.run(lasting) })
	all.Go(func() { parts.reporter.heartbeat(lasting) })

	// The kernel's messages are about this machine, so another root has none.
	if a.config.Root == "/" {
		all.Go(func() { a.watchKernel(lasting, parts.inventory) })
	}

	if a.config.Renews {
		all.Go(func() { a.renewCertificate(lasting, dir.Path()) })
	}

	serving := make(chan struct{})
	all.Go(func() {
		for _, part := range []<-chan struct{}{parts.inventory.Ready(), serving} {
			select {
			case <-part:
			case <-lasting.Done():
				return
			}
		}
		close(a.ready)
		a.log.InfoContext(ctx, "agent ready")
	})

	// If a thousand hosts start at the same time, they must not also connect to
	// Temporal all at once. The conductor limits how many reports it takes, so
	// waiting for the first report spreads the connections, too.
	select {
	case <-parts.reporter.introduced:
	case <-ctx.Done():
	}

	a.serve(ctx, parts.activities, parts.reporter.approval, bootID, serving)
	stop()
	all.Wait()
	a.log.InfoContext(ctx, "agent stopped")
	return nil
}

// parts are the components of a running agent.
type parts struct {
	inventory  *inventory.Inventory
	endpoint   *endpoint
	reporter   *reporter
	activities *activity.Activities
	metrics    *metrics
}

// assemble makes the components and connects them. It starts nothing.
func (a *Agent) assemble(ctx context.Context, dir *statedir.Dir, j *journal.Journal) (parts, error) {
	settings := make([]inventory.Setting, len(a.config.Backends))
	for n, b := range a.config.Backends {
		settings[n] = inventory.Setting(b)
	}

	nova := novaconf.File{Host: a.config.Host, Dir: a.config.NovaConfDir}
	var whitelist func() cyborg.WhitelistFile
	if nova.Dir != "" {
		whitelist = nova.Look
	}

	known, err := inventory.Open(inventory.Config{
		Host: a.config.Host, Version: a.deps.Version, Root: a.config.Root, StateDir: dir.Path(), Backends: settings,
		ScanTimeout: a.config.ScanTimeout, UsageTimeout: a.config.UsageTimeout, FullScanInterval: a.config.FullScanInterval,
		HealthInterval: a.config.HealthInterval, Whitelist: whitelist,
		Facts: hostfacts.Read(ctx, a.config.Root, factsWithin, a.log),
	}, a.deps.Drivers, j, a.log)
	if err != nil {
		return parts{}, err
	}

	own, err := a.identify(j.BootID(), dir)
	if err != nil {
		return parts{}, err
	}

	conductors := newEndpoint(a.config.Host, a.config.Endpoints, a.config.TLS, a.deps.Dial)
	conductors.proof = own.proof

	store, err := images.Open(images.Config{
		Dir: dir.Join("images"), ImageDir: a.config.ImageDir, MaxBytes: a.config.ImageMaxBytes, CacheBytes: a.config.ImageCacheBytes,
		Source: conductors, Now: a.deps.Clock,
		Needed: func() map[string]bool { return j.Images(a.deps.Clock().Add(-activity.StagedFor)) },
	}, a.log)
	if err != nil {
		return parts{}, err
	}

	measured, err := newMetrics(a.deps.Metrics, a.config.Host)
	if err != nil {
		return parts{}, err
	}
	measured.stop, err = exportMeasurements(a.deps.Metrics, a.config.Host, known, a.config.UsageTimeout, a.log)
	if err != nil {
		measured.unregister()
		return parts{}, cyborg.Errorf(cyborg.ErrInternal, "the measurements of host %s cannot be collected: %w", a.config.Host, err)
	}

	sender := &reporter{
		endpoint: conductors, inventory: known, bootID: j.BootID(), instance: own.instance, version: a.deps.Version, started: a.deps.Clock().UTC(),
		interval: a.config.HeartbeatInterval, log: a.log, metrics: measured, exceed: j.Exceed, assignments: j, clock: a.deps.Clock,
		requests: make(chan reportRequest), forced: make(chan struct{}, 1), approval: newApproval(), introduced: make(chan struct{}),
	}

	// With a boot id from outside, this machine's uptime is not that boot's.
	if a.deps.BootID == "" {
		sender.uptime = func() time.Duration { return readUptime(a.config.Root) }
	}

	sender.introduce = sync.OnceFunc(func() { close(sender.introduced) })

	activities := &activity.Activities{
		Inventory: known, Journal: j, Images: store, Reporter: sender, Log: a.log,
		Nova: nova, Allowed: a.config.Activities, Instance: sender.instance,
		Grants: sender.Grants, Uptime: sender.uptime,
		UsageTimeout: a.config.UsageTimeout, Ended: measured.stepEnded, Now: a.deps.Clock,
	}

	// A reporter needs to know the activities, which need the reporter: so this is
	// set last.
	sender.busy = func() bool { return activities.Running() >= a.config.Slots }

	return parts{inventory: known, endpoint: conductors, reporter: sender, metrics: measured, activities: activities}, nil
}
