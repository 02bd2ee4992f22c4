package fake

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// InUse returns who uses the handle, as the card's file says. The error
// is of kind ErrChanged where another card is in the place of the target's, or its part
// is gone.
func (d *driver) InUse(ctx context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	s, part, err := d.findHandle(target, handle)
	if err != nil {
		return "", err
	}

	card, err := d.readStep(ctx, s, StepInUse)
	if err != nil {
		return "", err
	}

	if now := s.fingerprint(card); target.Device.Fingerprint.Other(now) {
		return "", otherCard(s, now, target.Device.Fingerprint)
	}
	if !card.has(part.key) {
		return "", partGone(s, card, part)
	}
	return card.Deployables[part.key].Handles[handle.Identity].InUseBy, nil
}

// Metrics returns what a real card would measure: it gets warmer with each
// handle that is attached or in use.
func (d *driver) Metrics(ctx context.Context, device cyborg.DeviceReport) ([]drivers.Sample, error) {
	s, err := d.findCard(device)
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

	var samples []drivers.Sample
	for _, part := range s.there(card) {
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
		samples = append(samples,
			drivers.Sample{Deployable: part.name, Name: "temperature_celsius", Value: 40 + 10*attached/all + 30*used/all},
			drivers.Sample{Deployable: part.name, Name: "temperature_celsius", Sensor: "memory", Value: 35 + 20*used/all},
			drivers.Sample{Deployable: part.name, Name: "power_watts", Value: 25 + 5*attached/all + 120*used/all},
			drivers.Sample{Deployable: part.name, Name: "utilization_ratio", Value: used / all},
		)
	}
	return samples, nil
}
