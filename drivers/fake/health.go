package fake

import (
	"context"
	"slices"

	"github.com/cyborg-project/cyborg"
)

// Health returns what the files of the cards say. A card off the bus says nothing.
func (d *driver) Health(ctx context.Context) (map[string][]cyborg.Condition, error) {
	said := map[string][]cyborg.Condition{}
	for _, s := range d.slots {
		card, err := d.readStep(ctx, s, StepHealth)
		if err != nil {
			return nil, err
		}
		if card.Vanished {
			continue
		}

		for _, part := range s.there(card) {
			if conditions := card.Deployables[part.key].Health; len(conditions) > 0 {
				said[part.name] = slices.Clone(conditions)
			}
		}
	}
	return said, nil
}
