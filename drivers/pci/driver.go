// Package pci is the driver of cards that need no more than to be handed out: GPUs,
// QAT, AI chips, and FPGAs and disks that nobody has to program or erase. A table of
// profiles knows them by their ids, and what they are for Placement; package
// passthrough gives them out, whole or in virtual functions.
//
// It imports the root package, drivers, drivers/passthrough and drivers/sysfs.
package pci

import (
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Name is the name under which the driver is registered.
const Name = "pci"

// optionProfiles is the option that chooses profiles, and adds some.
const optionProfiles = "profiles"

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
	known := &cards{rows: builtinRows()}
	return passthrough.Kind{Driver: Name, Cards: known, Options: map[string]func(any) error{
		optionProfiles: func(value any) (err error) {
			known.rows, err = parseRows(value)
			return err
		},
	}}
}

// cards are the functions of the rows.
type cards struct{ rows []row }

// row is a profile that the backend looks after.
type row struct {
	profile
	// spec restricts it; nil for all functions of the profile.
	spec *passthrough.Spec
}

// matches says whether the function is one of the row.
func (r *row) matches(f sysfs.Function) bool {
	return (r.profile.match == nil || r.profile.match(f)) && (r.spec == nil || r.spec.Match(f))
}

// row returns the first row that matches the function; nil where none does.
func (c *cards) row(f sysfs.Function) *row {
	for i := range c.rows {
		if c.rows[i].matches(f) {
			return &c.rows[i]
		}
	}
	return nil
}

// Chosen says whether a row matches the function.
func (c *cards) Chosen(f sysfs.Function) bool { return c.row(f) != nil }

// Describe says what a function is by the first row that matches it or, for a virtual
// function that no row matches, its physical one.
func (c *cards) Describe(f sysfs.Function, pf *sysfs.Function) passthrough.Description {
	r := c.row(f)
	part := false // of a card that the same row is about
	if pf != nil {
		whole := c.row(*pf)
		part = r == nil || r == whole
		if r == nil {
			r = whole
		}
	}
	if r == nil {
		return passthrough.Description{} // it is not the backend's
	}
	return r.describe(f, part)
}
