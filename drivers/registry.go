package drivers

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Environment describes the host and the backend that a driver is made for.
type Environment struct {
	// Host is the name of the host.
	Host string
	// Backend is the name of the backend that the driver is made for.
	Backend string
	// Root is the directory that stands for "/", so that sysfs is at Root/sys. It
	// is "/" except in tests, and where a recorded or simulated host is read.
	Root string
	// StateDir is the backend's own directory. It survives restarts of the agent.
	StateDir string
	// Log receives what the driver reports to operators.
	Log *slog.Logger
}

// Factory makes the driver of one backend. The options come from configuration
// or from the API. An unknown or wrong option is an error of kind ErrInvalid
// that names the option.
type Factory func(env Environment, options map[string]any) (Driver, error)

// Registry holds the drivers that are compiled in. It is filled once, at the
// start of the program, and only read after that, so it needs no lock.
type Registry struct {
	factories map[string]Factory
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{factories: map[string]Factory{}} }

// Register adds a driver. A second driver of the same name is an error of kind
// ErrInvalid.
func (r *Registry) Register(name string, factory Factory) error {
	if _, ok := r.factories[name]; ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "driver %q is registered twice", name)
	}

	r.factories[name] = factory
	return nil
}

// Names lists the names of the drivers, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.factories)) }

// New makes the driver of that name. An unknown name is an error of kind
// ErrNotFound that lists the known names.
func (r *Registry) New(name string, env Environment, options map[string]any) (Driver, error) {
	factory, ok := r.factories[name]
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "there is no driver %q; this agent has: %s",
			name, strings.Join(r.Names(), ", "))
	}

	return factory(env, options)
}
