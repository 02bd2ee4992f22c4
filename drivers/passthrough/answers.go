package passthrough

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// defaultAnswerLimit is how long a discovery waits for the cards to answer. What the
// kernel has not read by then is reported without its serial number: nothing
// speaks against the card.
const defaultAnswerLimit = 5 * time.Second

// present returns what these cards answer on the bus until then. Of those that do
// not, the card was pulled out, or its link is down.
func (d *Driver) present(ctx context.Context, until time.Time, cards []sysfs.Function) map[cyborg.PCIAddress]sysfs.Presence {
	limited, cancel := context.WithDeadline(ctx, until)
	defer cancel()

	var mu sync.Mutex // guards present
	present := map[cyborg.PCIAddress]sysfs.Presence{}

	const atOnce = 8
	var all errgroup.Group
	all.SetLimit(atOnce)
	for _, card := range cards {
		all.Go(func() error {
			presence, err := d.presence(limited, card, false)
			if err != nil && ctx.Err() == nil {
				d.log.WarnContext(ctx, "nobody can tell whether a card answers", "address", card.Address.String(), "error", err)
			}
			if err != nil {
				presence = sysfs.Presence{Answers: true}
			}

			mu.Lock()
			defer mu.Unlock()
			present[card.Address] = presence
			return nil
		})
	}
	_ = all.Wait() // none returns an error

	for _, card := range cards {
		if !present[card.Address].Answers {
			d.log.WarnContext(ctx, "a card does not answer on its bus: it was pulled out, or its link is down", "address", card.Address.String())
		}
	}
	return present
}

// presence asks a card whether it is there. A driver of its own may have sent the
// card to a deep sleep on purpose, from which it takes seconds to wake: that one is
// woken up with wake only. VFIO sends all to sleep that nobody uses.
func (d *Driver) presence(ctx context.Context, card sysfs.Function, wake bool) (sysfs.Presence, error) {
	return d.tree.Presence(ctx, card, wake || card.Driver == d.options.vfio)
}
