// Package generic is the reference driver. It looks after every PCI function
// that its device_spec chooses, whatever the hardware is: package passthrough
// gives it out, and the class code says what it is.
//
// It imports the root package, drivers, drivers/passthrough and drivers/sysfs.
package generic

import (
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Name is the name under which the driver is registered.
const Name = "generic"

// optionSpec is the option that chooses functions.
const optionSpec = "device_spec"

// Driver is one backend.
type Driver = passthrough.Driver

// Register adds the driver to a registry.
func Register(registry *drivers.Registry) error {
	return registry.Register(Name, New, passthrough.OwnOptions()...)
}

// New makes a backend; it is a drivers.Factory. See passthrough.New.
func New(env drivers.Environment, given map[string]any) (drivers.Driver, error) {
	return passthrough.New(env, given, kind())
}

// NewWithKernel makes a backend that changes this kernel. Tests use it with a
// kernel that fails.
func NewWithKernel(kernel sysfs.Kernel, env drivers.Environment, given map[string]any) (*Driver, error) {
	return passthrough.NewWithKernel(kernel, env, given, kind())
}

// kind returns what the backends of this driver have of their own.
func kind() passthrough.Kind {
	chosen := &cards{}
	return passthrough.Kind{Driver: Name, Cards: chosen, Options: map[string]func(any) error{
		optionSpec: func(value any) (err error) {
			chosen.specs, err = passthrough.ParseSpecs(optionSpec, value)
			return err
		},
	}}
}

// cards are the functions that one of the specs matches; without any, none are.
type cards struct{ specs []passthrough.Spec }

// Chosen says whether one of the specs matches the function.
func (c *cards) Chosen(f sysfs.Function) bool {
	for _, spec := range c.specs {
		if spec.Match(f) {
			return true
		}
	}
	return false
}

// Describe says what a function is by its class code.
func (*cards) Describe(f sysfs.Function, _ *sysfs.Function) passthrough.Description {
	return passthrough.Description{Type: deviceType(f), ResourceClass: resourceClass(f), Traits: traits(f)}
}
