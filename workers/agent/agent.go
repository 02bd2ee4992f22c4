package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// bootIDFile, below the root, tells one boot from the next (Linux, random(4)).
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Agent is one host's agent.
type Agent struct {
	config Config
	deps   Deps
	log    *slog.Logger
	ready  chan struct{}
}

// New makes an agent. It touches nothing yet. The error, of kind Invalid, says all that is wrong with the configuration.
func New(config Config, deps Deps) (*Agent, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if deps.Temporal == nil || deps.Drivers == nil || deps.Log == nil {
		return nil, cyborg.Errorf(cyborg.Internal, "an agent needs a Temporal client, drivers and a logger")
	}
	return &Agent{
		config: config.withDefaults(), deps: deps, log: deps.Log.With("host", config.Host), ready: make(chan struct{}),
	}, nil
}

// Ready is closed when the agent has looked at its hardware once and takes steps from Temporal.
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
	j, err := journal.Open(dir.Path(), journal.Options{BootID: bootID, Log: a.log})
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
	a.log.InfoContext(ctx, "agent started", "version", a.deps.Version, "boot_id", bootID, "state_dir", dir.Path())

	// What serves the steps goes on until the last of them has ended.
	lasting, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { parts.inventory.Run(lasting) })
	all.Go(func() { parts.uplink.run(lasting) })
	all.Go(func() { parts.uplink.heartbeat(lasting) })
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
	a.serve(ctx, parts.activities, bootID, serving)
	stop()
	all.Wait()
	a.log.InfoContext(ctx, "agent stopped")
	return nil
}

// parts are what an agent is made of.
type parts struct {
	inventory  *inventory.Inventory
	endpoint   *endpoint
	uplink     *uplink
	activities *activity.Activities
	metrics    *metrics
}

func (a *Agent) assemble(dir *statedir.Dir, j *journal.Journal) (parts, error) {
	settings := make([]inventory.Setting, len(a.config.Backends))
	for n, b := range a.config.Backends {
		settings[n] = inventory.Setting(b)
	}
	known, err := inventory.Open(inventory.Config{
		Host: a.config.Host, Version: a.deps.Version, Root: a.config.Root, StateDir: dir.Path(), Backends: settings,
		ScanTimeout: a.config.ScanTimeout, FullScanInterval: a.config.FullScanInterval,
	}, a.deps.Drivers, j, a.log)
	if err != nil {
		return parts{}, err
	}
	link := newEndpoint(a.config.Endpoints, a.config.TLS)
	store, err := images.Open(images.Config{
		Dir: dir.Join("images"), ImageDir: a.config.ImageDir, MaxBytes: a.config.ImageMaxBytes, CacheBytes: a.config.ImageCacheBytes,
		Source: link,
		Needed: func() map[string]bool { return j.Images(time.Now().Add(-activity.StagedFor)) },
	}, a.log)
	if err != nil {
		return parts{}, err
	}
	measured, err := newMetrics(a.deps.Metrics, a.config.Host)
	if err != nil {
		return parts{}, err
	}
	up := &uplink{
		endpoint: link, inventory: known, bootID: j.BootID(), version: a.deps.Version, started: time.Now().UTC(),
		interval: a.config.HeartbeatInterval, log: a.log, metrics: measured,
		asks: make(chan ask), forced: make(chan struct{}, 1),
	}
	return parts{
		inventory: known, endpoint: link, uplink: up, metrics: measured,
		activities: &activity.Activities{
			Inventory: known, Journal: j, Images: store, Uplink: up, Log: a.log,
			UsageTimeout: a.config.UsageTimeout, Ended: measured.stepEnded,
		},
	}, nil
}

// readBootID reads the boot id of the machine whose root that is: drivers take it from there, too. A root without one,
// such as sysfs alone mounted into a container, boots with this machine.
func readBootID(root string) (string, error) {
	path := filepath.Join(root, bootIDFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		path = bootIDFile
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return "", cyborg.Errorf(cyborg.Unavailable, "the boot id of this machine cannot be read: %w", err)
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return "", cyborg.Errorf(cyborg.Unavailable, "the boot id of this machine, in %s, is not one: %w", path, err)
	}
	return id.String(), nil
}
