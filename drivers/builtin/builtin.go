// Package builtin lists the drivers that are compiled into every agent. It is
// the only package that names them all: a new driver is added here.
package builtin

import (
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/drivers/generic"
)

// Registry returns a new registry with all built-in drivers. The error, of kind
// ErrInvalid, names a driver that is listed twice.
func Registry() (*drivers.Registry, error) {
	registry := drivers.NewRegistry()

	for _, register := range []func(*drivers.Registry) error{fake.Register, generic.Register} {
		if err := register(registry); err != nil {
			return nil, err
		}
	}

	return registry, nil
}
