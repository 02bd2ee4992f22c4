package fake

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// Install makes the deployable able to attach. A deployable stays installed
// when the host boots.
func (d *driver) Install(ctx context.Context, target drivers.Target) error {
	s, part, err := d.find(target)
	if err != nil {
		return err
	}

	c := newChange(StepInstall, s, target)
	c.due = func(card *Card) (bool, error) { return !card.Deployables[part.key].Installed, nil }
	c.finish = func(card *Card) { card.Deployables[part.key].Installed = true }

	return d.run(ctx, c)
}

// Uninstall undoes Install. The error is of kind ErrInUse while a handle is
// attached.
func (d *driver) Uninstall(ctx context.Context, target drivers.Target) error {
	s, part, err := d.find(target)
	if err != nil {
		return err
	}

	c := newChange(StepUninstall, s, target)
	c.due = func(card *Card) (bool, error) {
		state := card.Deployables[part.key]
		for _, address := range part.handles {
			if state.Handles[address.String()].Attached {
				return false, cyborg.Errorf(cyborg.ErrInUse, "handle %s of %s is attached", address, part.name).
					WithHint("Detach it first.")
			}
		}

		return state.Installed, nil
	}

	c.finish = func(card *Card) { card.Deployables[part.key].Installed = false }
	return d.run(ctx, c)
}
