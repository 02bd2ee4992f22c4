// Package passthrough gives PCI functions to VFIO, for the host's own software or
// for a virtual machine, and gives them back to their kernel drivers. It finds
// them in sysfs, resets them between two holders, and divides those that can have
// virtual functions. It never touches what the host itself needs.
//
// It is what the drivers of cards that are handed out as PCI functions have in
// common. Each of them says which functions are its own and what they are (Cards),
// and has Driver do the rest.
//
// It imports the root package, drivers and the packages of drivers/sysfs.
package passthrough

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
)

// Cards says which functions a backend looks after, and what they are. Its methods are called
// from several goroutines, and depend on nothing but the function.
type Cards interface {
	// Chosen says whether the backend looks after the function. A virtual function is
	// also chosen with its physical one.
	Chosen(f sysfs.Function) bool
	// Describe says what a function is that is chosen, or that may belong to one that is.
	// pf is the physical function of a virtual one that is chosen with it, and nil
	// otherwise.
	Describe(f sysfs.Function, pf *sysfs.Function) Description
}

// Description says what a function is.
type Description struct {
	Type          cyborg.DeviceType
	ResourceClass string // of Placement
	Traits        []string
}

// Kind is a kind of backends: what a driver over this package has of its own.
type Kind struct {
	Driver string // the driver's name, for messages
	Cards  Cards
	// Options read the options that only this driver has, by their names. They are called
	// before Cards is asked anything.
	Options map[string]func(value any) error
}

// Driver is one backend. It keeps nothing about the hardware between two calls,
// so no decision depends on what was true earlier.
type Driver struct {
	backend string
	cards   Cards
	options options
	tree    *sysfs.Tree
	names   *sysfs.Names
	kernel  sysfs.Kernel  // nil where the root is a recording, which cannot be changed
	binder  *sysfs.Binder // nil where kernel is nil
	log     *slog.Logger

	answerLimit time.Duration // defaultAnswerLimit, but for tests
}

// The interfaces that the driver implements.
var (
	_ drivers.Driver        = (*Driver)(nil)
	_ drivers.Installer     = (*Driver)(nil)
	_ drivers.Attacher      = (*Driver)(nil)
	_ drivers.Cleaner       = (*Driver)(nil)
	_ drivers.Partitioner   = (*Driver)(nil)
	_ drivers.Users         = (*Driver)(nil)
	_ drivers.HealthChecker = (*Driver)(nil)
)

// New makes a backend of this kind. The driver changes the running kernel where
// the root has a real sysfs, the simulated kernel with the option simulate, and
// nothing where the root is a recording. The error is of kind ErrInvalid and names
// every mistake in the options.
func New(env drivers.Environment, given map[string]any, kind Kind) (*Driver, error) {
	root := cmp.Or(env.Root, "/")
	options, err := parseOptions(env.Backend, given, kind)
	if err != nil {
		return nil, err
	}

	var kernel sysfs.Kernel
	switch {
	case options.simulate:
		simulated, err := simulator.Open(root)
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrorKindOf(err), "option %s of backend %q: %w", optionSimulate, env.Backend, err)
		}
		kernel = simulated
	case sysfs.NewTree(root, env.Log).Live():
		kernel = sysfs.LiveKernel(root)
	}

	return newDriver(env, options, kind, kernel), nil
}

// NewWithKernel makes a backend that changes this kernel. Tests use it with a
// kernel that fails.
func NewWithKernel(kernel sysfs.Kernel, env drivers.Environment, given map[string]any, kind Kind) (*Driver, error) {
	options, err := parseOptions(env.Backend, given, kind)
	if err != nil {
		return nil, err
	}
	return newDriver(env, options, kind, kernel), nil
}

// newDriver makes a backend; kernel is nil where nothing can be changed.
func newDriver(env drivers.Environment, options options, kind Kind, kernel sysfs.Kernel) *Driver {
	log := cmp.Or(env.Log, slog.New(slog.DiscardHandler))
	notes := ""
	if env.StateDir != "" {
		notes = filepath.Join(env.StateDir, "accesses")
	}

	d := &Driver{
		backend: env.Backend, cards: kind.Cards, options: options, tree: sysfs.NewTree(cmp.Or(env.Root, "/"), log).NotingIn(notes),
		names: sysfs.NewNames(options.pciIDs, log), kernel: kernel, answerLimit: defaultAnswerLimit, log: log,
	}

	if kernel != nil {
		d.binder = sysfs.NewBinder(d.tree, kernel, notes, options.deadline, log)
	}

	return d
}

// WithAnswerLimit has the discoveries of the driver wait this long for the cards to
// answer. Tests that need their answers use it, on machines where they are slow.
func (d *Driver) WithAnswerLimit(limit time.Duration) *Driver {
	d.answerLimit = limit
	return d
}

// requireKernel returns an error where the context has ended or nothing can be
// changed.
func (d *Driver) requireKernel(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return cyborg.Errorf(cyborg.ErrTimeout, "not begun: %w", err)
	}

	if d.kernel == nil {
		return cyborg.Errorf(cyborg.ErrUnsupported, "backend %q reads a recorded tree; nothing in it can be changed", d.backend)
	}

	return nil
}

// attributes returns the resource class and the traits of a function. If it leads to a
// physical network, it has the traits and the attribute of that, too.
func attributes(description Description, network string) []cyborg.Attribute {
	list := []cyborg.Attribute{{Key: "rc", Value: description.ResourceClass}}
	traits := description.Traits
	if network != "" {
		traits = append(slices.Clip(traits), networkTraits(network)...)
	}
	for i, trait := range traits {
		list = append(list, cyborg.Attribute{Key: fmt.Sprintf("trait%d", i), Value: trait})
	}

	if network != "" {
		list = append(list, cyborg.Attribute{Key: keyPhysicalNetwork, Value: network})
	}
	return list
}
