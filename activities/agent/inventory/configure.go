package inventory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// nameFormat is the format of a backend's name, which is also the name of a
// directory.
var nameFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckName returns an error of kind ErrInvalid for what cannot be the name of
// a backend.
func CheckName(name string) error {
	if !nameFormat.MatchString(name) {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"%q is not the name of a backend: use letters, digits, '.', '_' and '-', at most 64, a letter or digit first", name)
	}
	return nil
}

// Configured is the state of a backend after Configure.
type Configured struct {
	State    cyborg.BackendState
	Services []string
	Devices  int
}

// Configure installs, updates or uninstalls a backend, and keeps that over
// restarts. A new driver is made, and must discover its devices, before it
// replaces the old one; where that fails, nothing changes.
//
// Begin is called when no other change of a backend can come in between any
// more. Where it fails, nothing changes, and its error is returned.
//
// Errors: ErrInvalid, ErrNotFound, ErrChanged, ErrInUse while something of the
// backend is attached or in use, and those of the driver.
func (i *Inventory) Configure(ctx context.Context, request cyborg.ConfigureRequest, begin func() error) (Configured, error) {
	// One change at a time: each is computed from the settings that the one before
	// has left.
	select {
	case i.configuring <- struct{}{}:
		defer func() { <-i.configuring }()
	case <-ctx.Done():
		return Configured{}, context.Cause(ctx)
	}

	if err := begin(); err != nil {
		return Configured{}, err
	}

	want, err := i.plan(request)
	if err != nil {
		return Configured{}, err
	}

	// The locks keep operations off the backend's devices while its driver is
	// exchanged under them.
	unlock, err := i.locks.lockAll(ctx, i.devicesOf(want.Name), string(request.Action)+" of backend "+want.Name)
	if err != nil {
		return Configured{}, err
	}
	defer unlock()

	if !want.Enabled {
		return i.disable(ctx, want)
	}

	return i.replace(ctx, want)
}

// plan returns the setting that the request leads to. It changes nothing. An
// install without a driver enables a backend that is already known.
func (i *Inventory) plan(request cyborg.ConfigureRequest) (Setting, error) {
	if err := CheckName(request.Backend); err != nil {
		return Setting{}, err
	}

	i.mu.Lock()
	defer i.mu.Unlock()
	b, known := i.backends[request.Backend]

	if !known && (request.Action != cyborg.ConfigureInstall || request.Driver == "") {
		if request.Action == cyborg.ConfigureInstall {
			return Setting{}, cyborg.Errorf(cyborg.ErrInvalid, "host %s has no backend %q yet, so a driver must be named; there are: %s",
				i.config.Host, request.Backend, listed(i.registry.Names(), func(name string) string { return name }))
		}
		return Setting{}, cyborg.Errorf(cyborg.ErrNotFound, "host %s has no backend %q; it has: %s", i.config.Host, request.Backend,
			listed(slices.Sorted(maps.Keys(i.backends)), func(name string) string { return name }))
	}

	want := Setting{Name: request.Backend, Driver: request.Driver, Enabled: true}
	if known {
		want = b.setting
		if request.Driver != "" && request.Driver != want.Driver {
			if want.Enabled {
				return Setting{}, cyborg.Errorf(cyborg.ErrChanged, "backend %s is one of driver %s", want.Name, want.Driver).
					WithHint("Uninstall it first, or install driver %s under another name.", request.Driver)
			}
			want.Driver, want.Options = request.Driver, nil // another driver does not understand the old options
		}
	}

	if err := i.refuseOwn(want, request.Options); err != nil {
		return Setting{}, err
	}
	if request.Options != nil {
		want.Options = map[string]any(request.Options)
	}

	switch request.Action {
	case cyborg.ConfigureInstall:
		want.Enabled = true
	case cyborg.ConfigureUpdate:
		if !want.Enabled {
			return Setting{}, cyborg.Errorf(cyborg.ErrChanged, "backend %s is disabled", want.Name).WithHint("Install it instead.")
		}
	case cyborg.ConfigureUninstall:
		want = b.setting
		want.Enabled = false
	default:
		return Setting{}, cyborg.Errorf(cyborg.ErrInvalid, "there is no action %q; use install, uninstall or update", request.Action)
	}

	return want, nil
}

// refuseOwn returns an error of kind ErrInvalid where only the host may set an
// option. A request comes through the API and through Temporal, and who has
// reached one of them must not choose what the agent reads, writes and loads. An
// option that the host has set so for the backend wins in any case.
func (i *Inventory) refuseOwn(want Setting, options map[string]any) error {
	_, refused := i.splitOwn(want.Driver, options)
	if own := i.own[want.Name]; own.Driver == want.Driver {
		for set := range own.Options {
			for option, value := range options {
				if strings.EqualFold(option, set) {
					refused[option] = value
				}
			}
		}
	}

	if len(refused) == 0 {
		return nil
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "on host %s, no request may set these options of driver %s so: %s",
		i.config.Host, want.Driver, strings.Join(slices.Sorted(maps.Keys(refused)), ", ")).
		WithHint("Leave it out, and set it in the configuration of the host's agent: agent.backends.")
}

// devicesOf returns the identities of the devices that a backend has shown
// last.
func (i *Inventory) devicesOf(name string) []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if b, ok := i.backends[name]; ok {
		return slices.Collect(maps.Keys(b.devices))
	}
	return nil
}

// disable takes a backend out of use. Its setting stays, so that it can be
// installed again under the same name.
func (i *Inventory) disable(ctx context.Context, want Setting) (Configured, error) {
	if err := i.checkUnused(ctx, want.Name); err != nil {
		return Configured{}, err
	}

	// The file is written first: after a crash in between, the backend is disabled
	// on the next start.
	if err := i.persist(want); err != nil {
		return Configured{}, err
	}

	i.swap(want, nil, 0, nil)
	return Configured{State: cyborg.BackendDisabled, Services: []string{}}, nil
}

// checkUnused refuses, with kind ErrInUse, to disable a backend while something
// of it is attached or in use. A failed backend is not asked: it must be
// possible to remove a driver that does not work.
func (i *Inventory) checkUnused(ctx context.Context, name string) error {
	for _, entry := range i.journal.Attachments() {
		if entry.Backend == name && !i.journal.Lost(entry) {
			return cyborg.Errorf(cyborg.ErrInUse, "handle %s of backend %s is attached to %s %s", entry.Handle, name, entry.HolderKind, entry.HolderID).
				WithHint("Detach it first.")
		}
	}

	i.mu.Lock()
	b := i.backends[name]
	in, devices, failure := b.instance, b.sorted(), i.failureOf(b)
	i.mu.Unlock()

	if in == nil || failure != "" {
		return nil
	}
	users, ok := in.driver.(drivers.Users)
	if !ok {
		return nil
	}

	for _, device := range devices {
		for _, deployable := range device.Deployables {
			for _, handle := range deployable.Handles {
				var who string
				err := Guard(in.log, "asking who uses "+handle.Identity, func() (err error) {
					who, err = users.InUse(ctx, drivers.Target{Device: device, Deployable: deployable}, handle)
					return err
				})
				if err != nil {
					return err
				}
				if who != "" {
					return cyborg.Errorf(cyborg.ErrInUse, "handle %s of backend %s is in use by %s", handle.Identity, name, who)
				}
			}
		}
	}

	return nil
}

// replace exchanges a backend's driver for a new one with the wanted setting.
func (i *Inventory) replace(ctx context.Context, want Setting) (Configured, error) {
	made, err := i.make(ctx, &watchdog{}, want)
	if err != nil {
		return Configured{}, err
	}

	// The number is taken before the look, so that a change during the look is
	// observed under a later number.
	sequence, err := i.journal.NextSequence()
	if err != nil {
		return Configured{}, err
	}

	devices, err := made.discover(ctx, i.config.ScanTimeout)
	if err != nil {
		return Configured{}, err
	}

	if err := i.checkReplacement(want.Name, devices); err != nil {
		return Configured{}, err
	}

	if err := i.persist(want); err != nil {
		return Configured{}, err
	}

	i.swap(want, made, sequence, devices)
	return Configured{State: cyborg.BackendOK, Services: drivers.Services(made.driver), Devices: len(devices)}, nil
}

// checkReplacement refuses devices that another backend already has, and a
// setting under which the backend would no longer show something that is
// attached.
func (i *Inventory) checkReplacement(name string, devices []cyborg.DeviceReport) error {
	attachments := i.journal.Attachments() // before mu is taken, so that it never nests with the journal's lock
	i.mu.Lock()
	defer i.mu.Unlock()

	fresh := map[string]seen{}
	things := map[string]bool{}
	for _, device := range devices {
		fresh[device.Identity] = seen{report: device}
		for _, deployable := range device.Deployables {
			for _, handle := range deployable.Handles {
				things[handle.Identity] = true
			}
		}
	}

	for _, other := range slices.Sorted(maps.Keys(i.backends)) {
		if b := i.backends[other]; other != name && b.setting.Enabled && b.failure == "" {
			if what := overlap(b.devices, fresh); what != "" {
				return cyborg.Errorf(cyborg.ErrInvalid, "%s", seenTwice(what, other))
			}
		}
	}

	for _, entry := range attachments {
		if entry.Backend == name && !i.journal.Lost(entry) && i.backends[name].hasHandle(entry.Handle) && !things[entry.Handle] {
			return cyborg.Errorf(cyborg.ErrInUse, "with these options backend %s would lose sight of handle %s, which is attached to %s %s",
				name, entry.Handle, entry.HolderKind, entry.HolderID).WithHint("Detach it first.")
		}
	}

	return nil
}

// hasHandle reports whether the backend's last look saw the handle. A nil
// backend shows nothing.
func (b *backend) hasHandle(handle string) bool {
	if b == nil {
		return false
	}
	for _, device := range b.devices {
		for _, deployable := range device.report.Deployables {
			if slices.ContainsFunc(deployable.Handles, func(h cyborg.HandleReport) bool { return h.Identity == handle }) {
				return true
			}
		}
	}

	return false
}

// swap replaces the state of a backend; made is nil for a disabled one. The old
// driver is closed outside mu, because closing may take long.
func (i *Inventory) swap(want Setting, made *instance, sequence int64, devices []cyborg.DeviceReport) {
	fresh := &backend{
		setting: want, instance: made, making: &watchdog{}, look: sequence, lookedAt: time.Now(), devices: map[string]seen{},
	}

	for _, device := range devices {
		fresh.devices[device.Identity] = newSeen(sequence, device)
	}

	i.mu.Lock()
	old := i.backends[want.Name]
	i.backends[want.Name] = fresh
	i.mu.Unlock()

	if old != nil && old.instance != nil {
		old.instance.close()
	}

	i.log.Info("backend configured", "backend", want.Name, "driver", want.Driver, "enabled", want.Enabled, "devices", len(devices))
	notify(i.backendsChanged)
	notify(i.changed)
}

// overrideFile is backends.json: the settings that were made through Configure.
type overrideFile struct {
	Format   int       `json:"format"`
	Backends []Setting `json:"backends"`
}

func (i *Inventory) overridesPath() string { return filepath.Join(i.config.StateDir, "backends.json") }

// readOverrides reads backends.json; a missing file has no overrides. Unknown
// fields are an error, because a person may have edited the file.
func readOverrides(path string) (map[string]Setting, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return map[string]Setting{}, nil
	}

	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the changed backends cannot be read: %w", err)
	}

	var file overrideFile
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields() // a misspelt field would otherwise be ignored
	if err := decoder.Decode(&file); err != nil || file.Format != 1 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s cannot be read (format %d, %v)", path, file.Format, err).
			WithHint("It holds what was changed through the API. Correct it, or move it away to use the configured backends.")
	}
	overrides := map[string]Setting{}
	for _, setting := range file.Backends {
		if err := CheckName(setting.Name); err != nil {
			return nil, err
		}
		overrides[setting.Name] = setting
	}

	return overrides, nil
}

// persist writes the setting into backends.json.
func (i *Inventory) persist(want Setting) error {
	// The map is replaced only after the file is written, so that memory and disk
	// agree also after a failure.
	overrides := maps.Clone(i.overrides)
	overrides[want.Name] = want
	file := overrideFile{Format: 1}
	for _, name := range slices.Sorted(maps.Keys(overrides)) {
		file.Backends = append(file.Backends, overrides[name])
	}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the options of backend %s cannot be kept: %w", want.Name, err)
	}
	if err := atomicfile.Write(i.overridesPath(), append(text, '\n'), 0o600); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the change of backend %s cannot be kept: %w", want.Name, err)
	}
	i.overrides = overrides
	return nil
}

// sameSetting compares two settings as they are written: a number from a file
// and one from JSON have different types.
func sameSetting(a, b Setting) bool {
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)
	return errLeft == nil && errRight == nil && bytes.Equal(left, right)
}
