package drivers

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Environment is what a host gives to its drivers.
type Environment struct {
	Host string
	// Backend is the name of the backend that the driver is made for.
	Backend string
	// Root is the directory that stands for "/": sysfs is Root/sys. It is "/" but in tests and captures.
	Root string
	// StateDir is a directory of the backend's own that outlives the agent.
	StateDir string
	Log      *slog.Logger
}

// Factory makes a driver for one backend. Options come from configuration or from the API; an unknown or wrong one is
// an error of kind ErrInvalid that names it.
type Factory func(env Environment, options map[string]any) (Driver, error)

// Registry holds the drivers compiled in. It is filled once, in the agent's main, and then only read.
type Registry struct {
	factories map[string]Factory
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{factories: map[string]Factory{}} }

// Register adds a driver; a second one of the same name is an error of kind ErrInvalid.
func (r *Registry) Register(name string, factory Factory) error {
	if _, ok := r.factories[name]; ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "driver %q is registered twice", name)
	}
	r.factories[name] = factory
	return nil
}

// Names lists the drivers, sorted.
func (r *Registry) Names() []string { return slices.Sorted(maps.Keys(r.factories)) }

// New makes a driver. An unknown name is an error of kind ErrNotFound that lists the known ones.
func (r *Registry) New(name string, env Environment, options map[string]any) (Driver, error) {
	factory, ok := r.factories[name]
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "there is no driver %q; this agent has: %s",
			name, strings.Join(r.Names(), ", "))
	}
	return factory(env, options)
}
