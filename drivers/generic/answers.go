package generic

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// answerLimit is how long a discovery waits for the cards to answer. What the
// kernel has not read by then is reported as it was: nothing speaks against it.
const answerLimit = 5 * time.Second

// silent returns the functions among these cards that do not answer on the bus any
// more, because the card was pulled out or its link is down.
func (d *Driver) silent(ctx context.Context, cards []sysfs.Function) map[cyborg.PCIAddress]bool {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()

	var mu sync.Mutex // guards silent
	silent := map[cyborg.PCIAddress]bool{}

	const atOnce = 8
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, card := range cards {
		all.Go(func() error {
			// A driver of its own may have sent the card to a deep sleep on purpose, from
			// which it takes seconds to wake. VFIO sends all to sleep that nobody uses.
			answers, err := d.tree.Answers(limited, card, card.Driver == d.options.vfio)
			if err != nil && ctx.Err() == nil {
				d.log.WarnContext(ctx, "nobody can tell whether a card answers", "address", card.Address.String(), "error", err)
			}
			if err != nil || answers {
				return nil
			}

			mu.Lock()
			defer mu.Unlock()
			silent[card.Address] = true
			return nil
		})
	}
	_ = all.Wait() // none returns an error

	for _, card := range cards {
		if silent[card.Address] {
			d.log.WarnContext(ctx, "a card does not answer on its bus: it was pulled out, or its link is down", "address", card.Address.String())
		}
	}
	return silent
}
