package fake

import (
	"context"
	"time"

	"github.com/cyborg-project/cyborg"
)

// pollInterval is how often a step that waits looks whether its card's script still wants that.
const pollInterval = 100 * time.Millisecond

// change is a step that changes a card. The card is touched at the end in one write; a step with a middle state
// touches it at the beginning as well and leaves it there where it fails, is cancelled or dies.
type change struct {
	step Step
	slot *slot
	// due says whether there is anything to do; its error refuses the change.
	due func(card *Card) (bool, error)
	// note is called before the card is touched; begin may be nil.
	note     func() error
	begin    func(card *Card)
	finish   func(card *Card)
	progress func(percent int)
}

// newChange is a change without a note, a middle state or progress.
func newChange(step Step, s *slot) change {
	return change{step: step, slot: s, note: func() error { return nil }, progress: func(int) {}}
}

// run takes the step. The card is looked at again whenever time has passed: somebody may have come to use it.
func (d *driver) run(ctx context.Context, c change) error {
	var todo bool
	err := d.update(ctx, c.slot, func(card *Card) (err error) {
		if todo, err = c.check(card); err != nil || !todo {
			return err
		}
		return card.failure(c.step, Before, c.slot.identity())
	})
	if err != nil || !todo {
		return err
	}
	if err := c.note(); err != nil {
		return err
	}
	if c.begin != nil {
		err := d.update(ctx, c.slot, func(card *Card) error {
			if _, err := c.check(card); err != nil {
				return err
			}
			c.begin(card)
			return nil
		})
		if err != nil {
			return err
		}
	}
	stillDue := func(card *Card) error {
		_, err := c.check(card)
		return err
	}
	if err := d.wait(ctx, c.slot, c.step, stillDue, c.progress); err != nil {
		return err
	}
	return d.update(ctx, c.slot, func(card *Card) error {
		todo, err := c.check(card)
		if err != nil || !todo {
			return err
		}
		err = card.failure(c.step, After, c.slot.identity())
		if err == nil || c.begin == nil {
			c.finish(card)
		}
		return err
	})
}

func (c *change) check(card *Card) (todo bool, err error) {
	undoes := c.step == StepDetach || c.step == StepUninstall // of what is gone, there is nothing left to undo
	if card.Vanished && !undoes {
		return false, vanishedError(c.slot)
	}
	return c.due(card)
}

func vanishedError(s *slot) error {
	return cyborg.Errorf(cyborg.ErrHardware, "fake card %s is gone from the bus", s.identity())
}

// wait lets the step's latency pass, but no longer than still finds nothing wrong.
func (d *driver) wait(ctx context.Context, s *slot, step Step, still func(card *Card) error, progress func(percent int)) error {
	start := time.Now()
	for {
		card, err := d.currentCard(ctx, s)
		if err != nil {
			return err
		}
		if err := still(card); err != nil {
			return err
		}
		latency, past := d.latencyOf(card, step), time.Since(start)
		if past >= latency {
			return nil
		}
		progress(int(100 * past / latency))
		if err := sleep(ctx, min(pollInterval, latency-past)); err != nil {
			return err
		}
	}
}

func (d *driver) latencyOf(card *Card, step Step) time.Duration {
	if latency, ok := card.Latency[step]; ok {
		return time.Duration(latency)
	}
	return d.latency[step]
}

// inspect takes a step that changes nothing on the card but its script, and returns the card.
func (d *driver) readStep(ctx context.Context, s *slot, step Step) (*Card, error) {
	card, err := d.currentCard(ctx, s)
	if err != nil {
		return nil, err
	}
	if d.latencyOf(card, step) > 0 {
		if err := d.wait(ctx, s, step, func(*Card) error { return nil }, func(int) {}); err != nil {
			return nil, err
		}
		if card, err = d.currentCard(ctx, s); err != nil {
			return nil, err
		}
	}
	if _, scripted := card.Fail[step]; scripted {
		err := d.update(ctx, s, func(card *Card) error {
			if err := card.failure(step, Before, s.identity()); err != nil {
				return err
			}
			return card.failure(step, After, s.identity())
		})
		if err != nil {
			return nil, err
		}
	}
	return card, nil
}
