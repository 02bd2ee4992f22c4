// Package builtin lists the drivers of the production agent. A new driver is
// added here. The fake driver is not among them: no host with real hardware
// needs it. The standalone adds it to this list, and so does the agent of the
// tests.
package builtin

import (
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/pci"
)

// Registry returns a new registry with all built-in drivers. The error, of kind
// ErrInvalid, names a driver that is listed twice.
func Registry() (*drivers.Registry, error) {
	registry := drivers.NewRegistry()

	for _, register := range []func(*drivers.Registry) error{generic.Register, pci.Register} {
		if err := register(registry); err != nil {
			return nil, err
		}
	}

	return registry, nil
}
