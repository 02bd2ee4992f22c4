// Package generic is the reference driver. It looks after every PCI function
// that its device_spec chooses, whatever the hardware is: it finds the
// functions in sysfs, gives them to VFIO for the host's own software or for a
// virtual machine, and gives them back to their kernel drivers. It reports the
// functions that the host itself needs, but never touches them.
//
// It imports the root package, drivers and the packages of drivers/sysfs.
package generic

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
)

// Name is the name under which the driver is registered.
const Name = "generic"

// Register adds the driver to a registry.
func Register(registry *drivers.Registry) error {
	return registry.Register(Name, New, drivers.OwnOption{Name: optionPCIIDs}, drivers.OwnOption{Name: optionVFIO, Open: isVFIODriver})
}

// Driver is one backend. It keeps nothing about the hardware between two calls,
// so no decision depends on what was true earlier.
type Driver struct {
	backend string
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

// New makes a backend; it is a drivers.Factory. The driver changes the running
// kernel where the root has a real sysfs, the simulated kernel with the option
// simulate, and nothing where the root is a recording. The error is of kind
// ErrInvalid and names every mistake in the options.
func New(env drivers.Environment, given map[string]any) (drivers.Driver, error) {
	root := cmp.Or(env.Root, "/")
	options, err := parseOptions(env.Backend, given)
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

	return newDriver(env, options, kernel), nil
}

// NewWithKernel makes a backend that changes this kernel. Tests use it with a
// kernel that fails.
func NewWithKernel(kernel sysfs.Kernel, env drivers.Environment, given map[string]any) (*Driver, error) {
	options, err := parseOptions(env.Backend, given)
	if err != nil {
		return nil, err
	}
	return newDriver(env, options, kernel), nil
}

// newDriver makes a backend; kernel is nil where nothing can be changed.
func newDriver(env drivers.Environment, options options, kernel sysfs.Kernel) *Driver {
	log := cmp.Or(env.Log, slog.New(slog.DiscardHandler))
	notes := ""
	if env.StateDir != "" {
		notes = filepath.Join(env.StateDir, "accesses")
	}

	d := &Driver{
		backend: env.Backend, options: options, tree: sysfs.NewTree(cmp.Or(env.Root, "/"), log).NotingIn(notes),
		names: sysfs.NewNames(options.pciIDs, log), kernel: kernel, answerLimit: defaultAnswerLimit, log: log,
	}

	if kernel != nil {
		d.binder = sysfs.NewBinder(d.tree, kernel, notes, options.deadline, log)
	}

	return d
}

// chosen says whether one of the specs matches the function.
func (d *Driver) chosen(f sysfs.Function) bool {
	for _, spec := range d.options.specs {
		if spec.Match(f) {
			return true
		}
	}
	return false
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
