// Package inventory is what an agent knows of its host's hardware: the drivers' backends, what each of them saw last, and
// who may change a device now. It imports the root package, drivers and the journal; never Temporal, the database or HTTP.
package inventory

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// Journal is what the inventory needs of the agent's journal.
type Journal interface {
	BootID() string
	NextSequence() (int64, error)
	Attachments() []journal.Attachment
	Attachment(key journal.AttachmentKey) (journal.Attachment, bool)
	Write(change journal.Change) error
	Lost(attachment journal.Attachment) bool
}

// Config is what an inventory is made with; every field is needed.
type Config struct {
	Host    string
	Version string
	// Root stands for "/".
	Root string
	// StateDir is the agent's.
	StateDir string
	// Backends are those of the configuration; what was changed through Configure goes before them.
	Backends         []Setting
	ScanTimeout      time.Duration
	FullScanInterval time.Duration
	// Whitelist reads the file of Nova's whitelist; nil where there is none to write.
	Whitelist func() cyborg.WhitelistFile
}

// Setting is one backend as it is configured.
type Setting struct {
	Name    string         `json:"name"`
	Driver  string         `json:"driver"`
	Options map[string]any `json:"options,omitempty"`
	Enabled bool           `json:"enabled"`
}

// Inventory holds the backends of one host. Its methods may be called from several goroutines.
type Inventory struct {
	config   Config
	registry *drivers.Registry
	journal  Journal
	log      *slog.Logger
	locks    deviceLocks

	observations observations
	// configuring lets one change of the backends happen at a time.
	configuring chan struct{}

	mu       sync.Mutex
	backends map[string]*backend
	// overrides are the settings made through Configure.
	overrides map[string]Setting
	whitelist *cyborg.WhitelistFile // as it was read last

	acked   Acknowledged // of an earlier process, or the newest
	told    view         // the newest report that was made
	base    view         // the newest that was acknowledged to this process; its digest is empty where none was
	changed chan struct{}
	rewired chan struct{}
	wanted  chan string
	ready   chan struct{}
}

// backend is one named driver. Its fields are guarded by Inventory.mu.
type backend struct {
	setting Setting
	// instance is nil where the backend is disabled or its driver could not be made.
	instance *instance
	making   *leash
	// failure is why the backend cannot be used now.
	failure string
	// look is the sequence number of the newest look, and lookedAt the time when it ended.
	look     int64
	lookedAt time.Time
	devices  map[string]seen // by identity
}

// seen is a device with the sequence number of the look that saw it so.
type seen struct {
	sequence int64
	report   cyborg.DeviceReport
	digest   string // of the report
	// observed is the number of the last look that an operation took at the device.
	observed int64
}

func newSeen(sequence int64, report cyborg.DeviceReport) seen {
	return seen{sequence: sequence, report: report, digest: report.Digest()}
}

// Open makes the inventory of a host. The drivers are made when they are first looked at; one that cannot be made fails
// its backend and nothing else.
func Open(config Config, registry *drivers.Registry, j Journal, log *slog.Logger) (*Inventory, error) {
	i := &Inventory{
		config: config, registry: registry, journal: j, log: log,
		configuring: make(chan struct{}, 1), backends: map[string]*backend{},
		changed: make(chan struct{}, 1), rewired: make(chan struct{}, 1), wanted: make(chan string, 64), ready: make(chan struct{}),
	}
	overrides, err := readOverrides(i.overridesPath())
	if err != nil {
		return nil, err
	}
	i.overrides = overrides
	for _, setting := range config.Backends {
		i.backends[setting.Name] = &backend{setting: setting, making: &leash{}}
	}
	for name, setting := range overrides {
		if b, ok := i.backends[name]; ok && !sameSetting(b.setting, setting) {
			log.Warn("a backend is set as an operator changed it through the API, not as it is configured", "backend", name)
		}
		i.backends[name] = &backend{setting: setting, making: &leash{}}
	}
	i.readCache()
	return i, nil
}

// Host is the host's name.
func (i *Inventory) Host() string { return i.config.Host }

// Enabled says whether the host has a backend of that name that is not disabled.
func (i *Inventory) Enabled(backendName string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[backendName]
	return ok && b.setting.Enabled
}

// make makes a backend's driver.
func (i *Inventory) make(ctx context.Context, l *leash, setting Setting) (*instance, error) {
	dir := filepath.Join(i.config.StateDir, "backends", setting.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of backend %s cannot be made: %w", setting.Name, err)
	}
	log := i.log.With("backend", setting.Name)
	return leashed(ctx, l, i.config.ScanTimeout, "making of driver "+setting.Driver, func(context.Context) (*instance, error) {
		made := &instance{backend: setting.Name, log: log}
		err := Guard(log, "making driver "+setting.Driver, func() (err error) {
			made.driver, err = i.registry.New(setting.Driver, drivers.Environment{
				Host: i.config.Host, Backend: setting.Name, Root: i.config.Root, StateDir: dir, Log: log,
			}, maps.Clone(setting.Options))
			return err
		})
		return made, err
	})
}

// Found is a deployable with the driver that looks after it.
type Found struct {
	Backend string
	Driver  drivers.Driver
	drivers.Target
}

// Handle returns the deployable's handle of that identity; an unknown one is an error of kind ErrNotFound.
func (f Found) Handle(identity string) (cyborg.HandleReport, error) {
	for _, handle := range f.Deployable.Handles {
		if handle.Identity == identity {
			return handle, nil
		}
	}
	return cyborg.HandleReport{}, cyborg.Errorf(cyborg.ErrNotFound, "%s has no handle %q; it has: %s", f.Deployable.Name, identity,
		listed(f.Deployable.Handles, func(h cyborg.HandleReport) string { return h.Identity }))
}

// Find returns a deployable as it was seen last, or looks anew where that is longer ago than fresh, or where it was not
// seen. Errors: ErrNotFound, naming what there is; Changed for a disabled backend; Unavailable for a failed one.
func (i *Inventory) Find(ctx context.Context, backendName, deployable string, fresh time.Duration) (Found, error) {
	found, err := i.find(backendName, deployable, fresh)
	if err == nil || !found.lookAgain {
		return found.Found, err
	}
	if err := i.look(ctx, backendName).Err; err != nil {
		if ctx.Err() != nil {
			return Found{}, err
		}
		return Found{}, cyborg.Errorf(cyborg.ErrUnavailable, "backend %s of host %s has failed: %w", backendName, i.config.Host, err)
	}
	found, err = i.find(backendName, deployable, time.Hour)
	return found.Found, err
}

type finding struct {
	Found
	lookAgain bool
}

func (i *Inventory) find(backendName, deployable string, fresh time.Duration) (finding, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[backendName]
	if !ok {
		return finding{}, cyborg.Errorf(cyborg.ErrNotFound, "host %s has no backend %q; it has: %s", i.config.Host, backendName,
			listed(slices.Sorted(maps.Keys(i.backends)), func(name string) string { return name }))
	}
	if !b.setting.Enabled {
		return finding{}, cyborg.Errorf(cyborg.ErrChanged, "backend %s of host %s is disabled", backendName, i.config.Host).
			WithHint("Install its driver again: cyborg driver install.")
	}
	if failure := i.failureOf(b); failure != "" {
		return finding{lookAgain: true}, cyborg.Errorf(cyborg.ErrUnavailable, "backend %s of host %s has failed: %s", backendName, i.config.Host, failure)
	}
	if time.Since(b.lookedAt) > fresh {
		return finding{lookAgain: true}, cyborg.Errorf(cyborg.ErrUnavailable, "backend %s of host %s was looked at too long ago", backendName, i.config.Host)
	}
	var names []string
	for _, device := range b.sorted() {
		for _, d := range device.Deployables {
			if d.Name == deployable {
				return finding{Found: Found{
					Backend: backendName, Driver: b.instance.driver, Target: drivers.Target{Device: device, Deployable: d},
				}}, nil
			}
			names = append(names, d.Name)
		}
	}
	return finding{lookAgain: true}, cyborg.Errorf(cyborg.ErrNotFound, "backend %s of host %s has no deployable %q; it has: %s",
		backendName, i.config.Host, deployable, listed(names, func(name string) string { return name }))
}

// sorted lists the devices by identity.
func (b *backend) sorted() []cyborg.DeviceReport {
	reports := make([]cyborg.DeviceReport, 0, len(b.devices))
	for _, identity := range slices.Sorted(maps.Keys(b.devices)) {
		reports = append(reports, b.devices[identity].report)
	}
	return reports
}

// listed is a list for a message, cut where it gets long.
func listed[T any](items []T, name func(T) string) string {
	const most = 20
	if len(items) == 0 {
		return "none"
	}
	var names []string
	for n, item := range items {
		if n == most {
			names = append(names, "…")
			break
		}
		names = append(names, name(item))
	}
	return strings.Join(names, ", ")
}
