// Package inventory knows a host's hardware: the drivers' backends, what each
// of them saw last, and who may change a device now. It imports the root
// package, drivers, the journal and small packages of internal; never Temporal,
// the database or HTTP.
package inventory

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/redact"
)

// Journal is the part of the agent's journal that the inventory uses. It is
// implemented by journal.Journal and documented there.
type Journal interface {
	BootID() string
	NextSequence() (int64, error)
	Attachments() []journal.Attachment
	Attachment(key journal.AttachmentKey) (journal.Attachment, bool)
	Layouts() []journal.Layout
	Layout(key journal.DeviceKey) (journal.Layout, bool)
	Write(change journal.Change) error
	Lost(attachment journal.Attachment) bool
}

// Config is what an inventory is made with. Every field but Backends, Whitelist
// and Facts is required.
type Config struct {
	Host    string
	Version string
	// Root is the directory that stands for "/", below which the drivers find
	// sysfs.
	Root string
	// StateDir is the agent's state directory.
	StateDir string
	// Backends are the configured backends. What was changed through Configure
	// overrides them.
	Backends []Setting
	// ScanTimeout limits one look of one backend.
	ScanTimeout time.Duration
	// UsageTimeout limits one measurement of a device.
	UsageTimeout time.Duration
	// FullScanInterval is the time between two looks at all backends that nothing
	// else has asked for.
	FullScanInterval time.Duration
	// HealthInterval is the time between two questions to a driver how its devices are;
	// 0 asks only before the first look.
	HealthInterval time.Duration
	// Whitelist reads the state of Nova's whitelist file; nil where this host has
	// none.
	Whitelist func() cyborg.WhitelistFile
	// Facts are those of the machine; nil where they are not known.
	Facts *cyborg.HostFacts
}

// Setting is the configuration of one backend. Those of an Inventory have none
// of the options that only the host may set (drivers.OwnOption): these come from
// Config alone, and a driver gets them when it is made.
type Setting struct {
	Name    string         `json:"name"`
	Driver  string         `json:"driver"`
	Options map[string]any `json:"options,omitempty"`
	Enabled bool           `json:"enabled"`
}

// Inventory holds the backends of one host. Its methods may be called from
// several goroutines. No driver is called while mu is held: a driver may hang.
type Inventory struct {
	config   Config
	registry *drivers.Registry
	journal  Journal
	log      *slog.Logger
	locks    deviceLocks
	// own are the options that only the host may set, by backend, as Config has
	// them. They never change.
	own map[string]Setting

	observations observations
	// configuring holds an item while the backends are changed, so that one change
	// happens at a time.
	configuring chan struct{}

	// whitelistLook is held from the read of Nova's whitelist until it is kept. It
	// is taken before mu.
	whitelistLook sync.Mutex

	// layouts is held while the journal's layouts are changed. It is taken before mu.
	layouts sync.Mutex

	// mu guards everything below that is no channel, except overrides.
	mu       sync.Mutex
	backends map[string]*backend
	// overrides are the settings that were made through Configure. They are guarded
	// by configuring.
	overrides map[string]Setting
	// withheld says of backends why they are not reported yet, by name.
	withheld map[string]string
	// restores are the devices whose layouts were begun to be restored in this process; true
	// where that has ended.
	restores map[journal.DeviceKey]bool
	// whitelist is the state of Nova's whitelist when it was read last; nil where
	// it was not.
	whitelist *cyborg.WhitelistFile

	// acked is what the conductor has acknowledged last, at first to an earlier
	// process.
	acked Acknowledged
	// reported is the newest report that was made.
	reported view
	// base is the newest report that was acknowledged to this process; its digest
	// is empty where there is none.
	base view

	// changed receives an item when something that is reported has changed.
	changed chan struct{}
	// backendsChanged receives an item when a backend got another driver, whose
	// watcher must be started.
	backendsChanged chan struct{}
	// looked receives an item when all devices of a backend were looked at.
	looked chan struct{}
	// scanRequests receives the names of backends that are to be looked at.
	scanRequests chan string
	// ready is closed after the first look at all backends.
	ready chan struct{}
}

// backend is one named driver. setting and making never change: a backend with
// another setting is a new one. The other fields are guarded by Inventory.mu.
type backend struct {
	setting Setting
	// instance is nil where the backend is disabled or its driver could not be
	// made.
	instance *instance
	// making limits the creation of the driver.
	making *watchdog
	// failure is why the backend cannot be used now.
	failure string
	// look is the sequence number of the newest look; 0 where there was none.
	look int64
	// lookedAt is the time at which that look ended.
	lookedAt time.Time
	// devices are what the looks saw, by identity.
	devices map[string]seen
}

// seen is a device, with the sequence number of the look that saw it.
type seen struct {
	sequence int64
	report   cyborg.DeviceReport
	digest   string // digest of the report
	// observed is the sequence number of the last look that an operation took at
	// the device.
	observed int64
}

// newSeen returns the record of a device, with its digest computed.
func newSeen(sequence int64, report cyborg.DeviceReport) seen {
	return seen{sequence: sequence, report: report, digest: agentapi.DeviceDigest(&report)}
}

// Open makes the inventory of a host. It makes no driver yet: that happens at
// the first look, and a driver that cannot be made fails its own backend and
// nothing else.
func Open(config Config, registry *drivers.Registry, j Journal, log *slog.Logger) (*Inventory, error) {
	i := &Inventory{
		config: config, registry: registry, journal: j, log: log,
		configuring: make(chan struct{}, 1), backends: map[string]*backend{}, own: map[string]Setting{},
		withheld: map[string]string{}, restores: map[journal.DeviceKey]bool{},
		changed: make(chan struct{}, 1), backendsChanged: make(chan struct{}, 1), looked: make(chan struct{}, 1),
		scanRequests: make(chan string, 64), ready: make(chan struct{}),
	}

	overrides, err := readOverrides(i.overridesPath())
	if err != nil {
		return nil, err
	}
	i.overrides = overrides

	for _, setting := range config.Backends {
		rest, own := i.splitOwn(setting.Driver, setting.Options)
		i.own[setting.Name] = Setting{Driver: setting.Driver, Options: own}
		setting.Options = rest
		i.backends[setting.Name] = &backend{setting: setting, making: &watchdog{}}
	}

	// Earlier releases took all options from the API.
	for name, setting := range overrides {
		rest, own := i.splitOwn(setting.Driver, setting.Options)
		if len(own) > 0 && !sameSetting(i.own[name], Setting{Driver: setting.Driver, Options: own}) {
			log.Warn("options that only the host may set were set through the API, and are not used; set them in agent.backends", "backend", name,
				"options", slices.Sorted(maps.Keys(own)))
		}
		setting.Options = rest
		overrides[name] = setting
	}

	// What an operator changed through the API takes precedence over the
	// configuration file; otherwise a restart would undo it.
	for name, setting := range overrides {
		if b, ok := i.backends[name]; ok && !sameSetting(b.setting, setting) {
			log.Warn("a backend is set as an operator changed it through the API, not as it is configured", "backend", name)
		}
		i.backends[name] = &backend{setting: setting, making: &watchdog{}}
	}

	i.readCache()
	return i, nil
}

// Host returns the host's name.
func (i *Inventory) Host() string { return i.config.Host }

// Enabled reports whether the host has a backend of that name that is not
// disabled.
func (i *Inventory) Enabled(backendName string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, ok := i.backends[backendName]
	return ok && b.setting.Enabled
}

// BackendOf returns the enabled backend that has shown the deployable of a device;
// empty where none has.
func (i *Inventory) BackendOf(device, deployable string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(i.backends)) {
		b := i.backends[name]
		if shown, ok := b.devices[device]; ok && b.setting.Enabled {
			for _, d := range shown.report.Deployables {
				if d.Name == deployable {
					return name
				}
			}
		}
	}
	return ""
}

// make makes a backend's driver, and the directory for its state. A driver that
// hangs in its creation is limited by w.
func (i *Inventory) make(ctx context.Context, w *watchdog, setting Setting) (*instance, error) {
	dir := filepath.Join(i.config.StateDir, "backends", setting.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of backend %s cannot be made: %w", setting.Name, err)
	}

	var known []cyborg.DeviceReport
	i.mu.Lock()
	if b := i.backends[setting.Name]; b != nil {
		known = b.sorted()
	}
	i.mu.Unlock()

	log := i.log.With("backend", setting.Name)
	return withWatchdog(ctx, w, i.config.ScanTimeout, "making of driver "+setting.Driver, func(context.Context) (*instance, error) {
		made := &instance{backend: setting.Name, log: log, health: newHealth(nil), replaced: make(chan struct{})}
		err := Guard(log, "making driver "+setting.Driver, func() (err error) {
			made.driver, err = i.registry.New(setting.Driver, drivers.Environment{
				Host: i.config.Host, Backend: setting.Name, Root: i.config.Root, StateDir: dir, Log: log,
			}, i.optionsOf(setting))
			return err
		})
		if _, checks := made.driver.(drivers.HealthChecker); checks {
			made.health = newHealth(known)
		}
		return made, err
	})
}

// optionsOf returns the options to make a backend's driver with: those of the
// setting, and those that only the host's own configuration has for a backend of
// that name and driver.
func (i *Inventory) optionsOf(setting Setting) map[string]any {
	options := map[string]any{}
	maps.Copy(options, setting.Options)
	if own := i.own[setting.Name]; own.Driver == setting.Driver {
		maps.Copy(options, own.Options)
	}
	return options
}

// splitOwn separates the options that only the host's own configuration may set
// from the rest: those of which the driver says so, and whatever looks secret,
// because a request, a report and a record are no place for a secret.
func (i *Inventory) splitOwn(driver string, options map[string]any) (rest, own map[string]any) {
	rest, own = i.registry.SplitOwn(driver, options)
	for option, value := range rest {
		if len(redact.Secrets(map[string]any{option: value})) > 0 {
			own[option] = value
			delete(rest, option)
		}
	}
	return rest, own
}

// Found is a deployable, with the driver that manages it. Where a device as a whole was
// looked for, the deployable is the zero value.
type Found struct {
	Backend string
	Driver  drivers.Driver
	drivers.Target
}

// Handle returns the deployable's handle of that identity. The error is of kind
// ErrNotFound and lists the handles that exist.
func (f Found) Handle(identity string) (cyborg.HandleReport, error) {
	for _, handle := range f.Deployable.Handles {
		if handle.Identity == identity {
			return handle, nil
		}
	}
	return cyborg.HandleReport{}, cyborg.Errorf(cyborg.ErrNotFound, "%s has no handle %q; it has: %s", f.Deployable.Name, identity,
		listed(f.Deployable.Handles, func(h cyborg.HandleReport) string { return h.Identity }))
}

// Find returns a deployable as it was seen last. It looks again first where
// that is longer ago than fresh, or where the deployable was not seen. Errors:
// ErrNotFound, listing what exists; ErrChanged for a disabled backend;
// ErrUnavailable for a failed one.
func (i *Inventory) Find(ctx context.Context, backendName, deployable string, fresh time.Duration) (Found, error) {
	return i.findAfterLook(ctx, backendName, fresh, wanted{
		what: "deployable " + strconv.Quote(deployable),
		in: func(device cyborg.DeviceReport) (target drivers.Target, names []string, there bool) {
			for _, d := range device.Deployables {
				if d.Name == deployable {
					return drivers.Target{Device: device, Deployable: d}, nil, true
				}
				names = append(names, d.Name)
			}
			return drivers.Target{}, names, false
		},
	})
}

// FindDevice is Find for a device as a whole, which may have no deployables.
func (i *Inventory) FindDevice(ctx context.Context, backendName, identity string, fresh time.Duration) (Found, error) {
	return i.findAfterLook(ctx, backendName, fresh, wanted{
		what: "device " + strconv.Quote(identity),
		in: func(device cyborg.DeviceReport) (target drivers.Target, names []string, there bool) {
			return drivers.Target{Device: device}, []string{device.Identity}, device.Identity == identity
		},
	})
}

// wanted is what is looked for in a backend.
type wanted struct {
	what string // for a message
	// in returns it from a device that has it, and else the names that the device has.
	in func(device cyborg.DeviceReport) (target drivers.Target, names []string, there bool)
}

// findAfterLook is Find for anything.
func (i *Inventory) findAfterLook(ctx context.Context, backendName string, fresh time.Duration, want wanted) (Found, error) {
	found, err := i.find(backendName, fresh, want)
	if err == nil || !found.lookAgain {
		return found.Found, err
	}

	if err := i.look(ctx, backendName).Err; err != nil {
		if ctx.Err() != nil {
			return Found{}, err
		}
		return Found{}, cyborg.Errorf(cyborg.ErrUnavailable, "backend %s of host %s has failed: %w", backendName, i.config.Host, err)
	}

	found, err = i.find(backendName, time.Hour, want) // the look has just ended, so its age no longer matters
	return found.Found, err
}

// finding is the result of find. lookAgain is true where a new look may turn
// the error into a success.
type finding struct {
	Found
	lookAgain bool
}

// find is findAfterLook without a new look.
func (i *Inventory) find(backendName string, fresh time.Duration, want wanted) (finding, error) {
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
		target, others, there := want.in(device)
		if there {
			return finding{Found: Found{Backend: backendName, Driver: b.instance.driver, Target: target}}, nil
		}
		names = append(names, others...)
	}

	return finding{lookAgain: true}, cyborg.Errorf(cyborg.ErrNotFound, "backend %s of host %s has no %s; it has: %s",
		backendName, i.config.Host, want.what, listed(names, func(name string) string { return name }))
}

// sorted returns the device reports in the order of their identities.
func (b *backend) sorted() []cyborg.DeviceReport {
	reports := make([]cyborg.DeviceReport, 0, len(b.devices))
	for _, identity := range slices.Sorted(maps.Keys(b.devices)) {
		reports = append(reports, b.devices[identity].report)
	}
	return reports
}

// listed returns the names of items for a message, cut off where there are too
// many to read.
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
