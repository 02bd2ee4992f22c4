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
	own     []OwnOption
}

// OwnOption is an option that only the host's own configuration may set: one
// that names a file or a directory, one whose value is a secret, or any other
// with which whoever sets it from elsewhere could act as the agent, which is
// often root. Own options are in no report, so nobody is shown them.
type OwnOption struct {
	Name string
	// Open says to which values a request may set the option all the same; nil
	// means none.
	Open func(value any) bool
}

// Own returns options of these names, which no request may set.
func Own(names ...string) []OwnOption {
	var options []OwnOption
	for _, name := range names {
		options = append(options, OwnOption{Name: name})
	}
	return options
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{drivers: map[string]registered{}} }

// Register adds a driver, with those of its options that only the host's own
// configuration may set. A second driver of the same name is an error of kind
// ErrInvalid.
func (r *Registry) Register(name string, factory Factory, own ...OwnOption) error {
	if _, ok := r.drivers[name]; ok {
		return cyborg.Errorf(cyborg.ErrInvalid, "driver %q is registered twice", name)
	}

	r.drivers[name] = registered{factory: factory, own: own}
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

// SplitOwn separates the options that only the host's own configuration may set
// from the rest. A name counts however it is capitalized, because a driver may
// read it so, too; and wherever it is, so that an option counts which has one of
// them in its value. The given map stays as it is; own is empty for an unknown
// driver.
func (r *Registry) SplitOwn(name string, options map[string]any) (rest, own map[string]any) {
	known := r.drivers[name].own
	own = map[string]any{}
	for option, value := range options {
		if isOwn(known, option, value) {
			own[option] = value
		}
	}

	rest = maps.Clone(options)
	maps.DeleteFunc(rest, func(option string, _ any) bool {
		_, ok := own[option]
		return ok
	})
	return rest, own
}

// isOwn reports whether an option is one of the known ones, or has one in its
// value.
func isOwn(known []OwnOption, option string, value any) bool {
	i := slices.IndexFunc(known, func(o OwnOption) bool { return strings.EqualFold(o.Name, option) })
	if i >= 0 && (known[i].Open == nil || !known[i].Open(value)) {
		return true
	}

	switch value := value.(type) {
	case map[string]any:
		for name, inside := range value {
			if isOwn(known, name, inside) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, func(inside any) bool { return isOwn(known, "", inside) })
	}
	return false
}
