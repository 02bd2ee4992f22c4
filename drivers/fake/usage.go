package fake

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// InUse returns who uses the handle, as the card's file says. Nobody uses that of
// a card in whose place another one stands.
func (d *driver) InUse(ctx context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	s, part, err := d.findHandle(target, handle)
	if err != nil {
		return "", err
	}

	card, err := d.readStep(ctx, s, StepInUse)
	if err != nil {
		return "", err
	}

	if target.Device.Fingerprint.Other(s.fingerprint(card)) {
		return "", nil
	}
	return card.Deployables[part.key].Handles[handle.Identity].InUseBy, nil
}

// Metrics returns what a real card would measure: it gets warmer with each
// handle that is attached or in use.
func (d *driver) Metrics(ctx context.Context, target drivers.Target) (map[string]float64, error) {
	s, part, err := d.find(target)
	if err != nil {
		return nil, err
	}

	card, err := d.readStep(ctx, s, StepUsage)
	if err != nil {
		return nil, err
	}

	if card.Vanished {
		return nil, vanishedError(s)
	}

	var attached, used float64
	for _, handle := range card.Deployables[part.key].Handles {
		if handle.Attached {
			attached++
		}
		if handle.InUseBy != "" {
			used++
		}
	}

	all := float64(len(part.handles))
	return map[string]float64{
		"temperature_celsius": 40 + 10*attached/all + 30*used/all,
		"power_watts":         25 + 5*attached/all + 120*used/all,
		"utilization_ratio":   used / all,
	}, nil
}
