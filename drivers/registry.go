package drivers

import (
	"cmp"
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

// Registry holds the drivers that are compiled in, and says which of them a
// host allows. It is filled once, at the start of the program, and only read
// after that, so it needs no lock.
type Registry struct {
	drivers map[string]registered
	// allowed are the drivers that may be made; nil means all.
	allowed []string
}

// registered is a driver of a registry.
type registered struct {
	factory Factory
	// pathOptions are the names of the options that name files or directories.
	pathOptions []string
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{drivers: map[string]registered{}} }

// Register adds a driver, with the names of those of its options that name
// files or directories of the host. Only the host's own configuration may set
// these: whoever could set them from elsewhere would read and write as the
// agent, which is often root. A second driver of the same name is an error of
// kind ErrInvalid.
func (r *Registry) Register(name string, factory Factory, pathOptions ...string) error {
	if _, ok := r.drivers[name]; ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "driver %q is registered twice", name)
	}

	r.drivers[name] = registered{factory: factory, pathOptions: pathOptions}
	return nil
}

// Only returns a registry that makes no other drivers than the named ones. A
// name that is not registered is an error of kind ErrInvalid that lists those
// that are.
func (r *Registry) Only(names ...string) (*Registry, error) {
	for _, name := range names {
		if _, ok := r.drivers[name]; !ok {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "a driver %q cannot be allowed, because there is none; this agent has: %s",
				name, r.list())
		}
	}

	return &Registry{drivers: r.drivers, allowed: append([]string{}, names...)}, nil
}

// Names lists the names of the drivers that may be made, sorted.
func (r *Registry) Names() []string {
	names := slices.Sorted(maps.Keys(r.drivers))
	return slices.DeleteFunc(names, func(name string) bool { return !r.allows(name) })
}

// list returns the names for a message.
func (r *Registry) list() string { return cmp.Or(strings.Join(r.Names(), ", "), "none") }

// allows reports whether the registry makes drivers of that name.
func (r *Registry) allows(name string) bool {
	return r.allowed == nil || slices.Contains(r.allowed, name)
}

// New makes the driver of that name. An unknown name is an error of kind
// ErrNotFound, and one that is not allowed is an error of kind ErrUnsupported;
// both list the names that may be used.
func (r *Registry) New(name string, env Environment, options map[string]any) (Driver, error) {
	driver, ok := r.drivers[name]
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "there is no driver %q; this agent has: %s", name, r.list())
	}
	if !r.allows(name) {
		return nil, cyborg.Errorf(cyborg.ErrUnsupported, "host %s does not allow driver %q; in agent.drivers it has: %s", env.Host, name, r.list()).
			WithHint("Who looks after the host can allow it there, in the configuration of its agent.")
	}

	return driver.factory(env, options)
}

// SplitPaths separates the options that name paths from the rest. A name counts
// however it is capitalized, because a driver may read it so, too. The given
// map stays as it is; paths is empty for an unknown driver.
func (r *Registry) SplitPaths(name string, options map[string]any) (rest, paths map[string]any) {
	names := r.drivers[name].pathOptions
	isPath := func(option string) bool {
		return slices.ContainsFunc(names, func(path string) bool { return strings.EqualFold(path, option) })
	}

	paths = map[string]any{}
	for option, value := range options {
		if isPath(option) {
			paths[option] = value
		}
	}

	rest = maps.Clone(options)
	maps.DeleteFunc(rest, func(option string, _ any) bool { return isPath(option) })
	return rest, paths
}
