package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// Agent is one host's agent.
type Agent struct {
	config Config
	deps   Deps
	log    *slog.Logger
	ready  chan struct{}
}

// New makes an agent. It touches nothing yet. The error, of kind ErrInvalid, says all that is wrong with the configuration.
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

// Ready is closed when the agent has looked at its hardware once, was heard, and takes steps from Temporal.
func (a *Agent) Ready() <-chan struct{} { return a.ready }

// Run is the agent's life. It begins also while Temporal and the conductor are away, and keeps trying to reach them. It
// returns nil when the context has ended and running steps have ended or StopTimeout is over; else an error that says why
// the state directory cannot be used. It is called once.
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
	parts, err := a.assemble(dir, j)
	if err != nil {
		return err
	}
	defer parts.endpoint.close()
	defer parts.metrics.unregister()
	a.log.InfoContext(ctx, "agent started", "version", a.deps.Version, "boot_id", bootID, "instance", parts.reporter.instance,
		"state_dir", dir.Path())

	// What serves the steps goes on until the last of them has ended.
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { parts.inventory.Run(lasting) })
	all.Go(func() { parts.reporter.run(lasting) })
	all.Go(func() { parts.reporter.heartbeat(lasting) })
	if a.config.Root == "/" {
		all.Go(func() { a.listen(lasting, parts.inventory) })
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
	// Where a thousand hosts start at once, they shall not come to Temporal all at once as well: a host that has something to
	// report is heard first.
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

// parts are what an agent is made of.
type parts struct {
	inventory  *inventory.Inventory
	endpoint   *endpoint
	reporter   *reporter
	activities *activity.Activities
	metrics    *metrics
}

func (a *Agent) assemble(dir *statedir.Dir, j *journal.Journal) (parts, error) {
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
		ScanTimeout: a.config.ScanTimeout, FullScanInterval: a.config.FullScanInterval, Whitelist: whitelist,
	}, a.deps.Drivers, j, a.log)
	if err != nil {
		return parts{}, err
	}
	link := newEndpoint(a.config.Endpoints, a.config.TLS)
	store, err := images.Open(images.Config{
		Dir: dir.Join("images"), ImageDir: a.config.ImageDir, MaxBytes: a.config.ImageMaxBytes, CacheBytes: a.config.ImageCacheBytes,
		Source: link, Now: a.deps.Clock,
		Needed: func() map[string]bool { return j.Images(a.deps.Clock().Add(-activity.StagedFor)) },
	}, a.log)
	if err != nil {
		return parts{}, err
	}
	measured, err := newMetrics(a.deps.Metrics, a.config.Host)
	if err != nil {
		return parts{}, err
	}
	up := &reporter{
		endpoint: link, inventory: known, bootID: j.BootID(), instance: instanceOf(j.BootID(), dir.ID()), version: a.deps.Version, started: a.deps.Clock().UTC(),
		interval: a.config.HeartbeatInterval, log: a.log, metrics: measured, exceed: j.Exceed, clock: a.deps.Clock,
		asks: make(chan ask), forced: make(chan struct{}, 1), approval: newApproval(), introduced: make(chan struct{}),
	}
	if a.deps.BootID == "" { // else nobody knows when that was
		up.uptime = func() time.Duration { return readUptime(a.config.Root) }
	}
	up.introduce = sync.OnceFunc(func() { close(up.introduced) })
	activities := &activity.Activities{
		Inventory: known, Journal: j, Images: store, Reporter: up, Log: a.log,
		Nova:         nova,
		UsageTimeout: a.config.UsageTimeout, Ended: measured.stepEnded, Now: a.deps.Clock,
	}
	up.busy = func() bool { return activities.Running() >= a.config.Slots }
	return parts{inventory: known, endpoint: link, reporter: up, metrics: measured, activities: activities}, nil
}

// Instance is what the agent with these directories calls itself since the machine's boot; empty where there was none yet.
// See Config for root and stateDir.
func Instance(root, stateDir string) (string, error) {
	id := statedir.ID(stateDir)
	if id == "" {
		return "", nil
	}
	bootID, err := readBootID(root)
	return instanceOf(bootID, id), err
}

// instanceOf tells an agent from all others that run at the same time. A copy of a machine has booted by itself, and on one
// machine no two processes have the same state directory; a process that is started again has both as before.
func instanceOf(bootID, stateDir string) string {
	sum := sha256.Sum256([]byte(bootID + " " + stateDir))
	return hex.EncodeToString(sum[:8])
}
