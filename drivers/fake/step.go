package fake

import (
	"cmp"
	"context"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// pollInterval is how often a waiting step reads its card's file again, so that
// a change of the script, such as a shorter latency, takes effect soon.
const pollInterval = 100 * time.Millisecond

// change is a step that changes a card. The card is changed at the end, in one
// write. A step with a state in between, such as a card that is empty while it
// is programmed, also changes it at the beginning, and leaves it in that state
// where the step fails, is cancelled or dies.
type change struct {
	step Step
	slot *slot
	of   cyborg.Fingerprint // of the card that is to be changed
	part *region            // that is to be changed; nil for the card
	// due says whether there is anything to do. Its error rejects the change.
	due func(card *Card) (bool, error)
	// note is called before the card is changed for the first time.
	note func() error
	// begin makes the state in between. It is nil for a step without one.
	begin func(card *Card)
	// finish makes the final state.
	finish func(card *Card)
	// progress is called while the latency passes.
	progress func(percent int)
	// share is of how many changes it is one that take the step's latency together.
	share int
}

// newChange returns a change without a note, a state in between or progress.
// The caller adds due and finish.
func newChange(step Step, s *slot, target drivers.Target) change {
	return change{
		step: step, slot: s, of: target.Device.Fingerprint, part: s.region(target.Deployable.Name),
		note: func() error { return nil }, progress: func(int) {}, share: 1,
	}
}

// run takes the step. It checks the card again each time it reads it: while the
// latency passed, somebody may have started to use it, or it may have vanished.
func (d *driver) run(ctx context.Context, c change) error {
	var todo bool
	err := d.update(ctx, c.slot, func(card *Card) error {
		due, err := c.check(card)
		todo = due
		if err != nil || !due {
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
	if err := d.wait(ctx, c, stillDue); err != nil {
		return err
	}

	return d.update(ctx, c.slot, func(card *Card) error {
		todo, err := c.check(card)
		if err != nil || !todo {
			return err
		}

		err = card.failure(c.step, After, c.slot.identity())
		// A failure after a state in between leaves the card in that state; any other
		// failure comes after the change.
		if err == nil || c.begin == nil {
			c.finish(card)
		}
		return err
	})
}

// check says whether there is anything to do on the card, or returns why the
// change is rejected. A vanished card can still be detached from and
// uninstalled, because settle has reset what needs power. On another card in its
// place there is nothing to undo, and neither is there of a part that is gone.
func (c *change) check(card *Card) (todo bool, err error) {
	undoes := c.step == StepDetach || c.step == StepUninstall
	now := c.slot.fingerprint(card)
	switch {
	case card.Vanished && !undoes:
		return false, vanishedError(c.slot)
	case c.of.Other(now) && undoes:
		return false, nil
	case c.of.Other(now):
		return false, otherCard(c.slot, now, c.of)
	case c.part != nil && !card.has(c.part.key) && undoes:
		return false, nil
	case c.part != nil && !card.has(c.part.key):
		return false, partGone(c.slot, card, c.part)
	}

	return c.due(card)
}

// vanishedError is the error of a step on a card that has left the bus.
func vanishedError(s *slot) error {
	return cyborg.Errorf(cyborg.ErrHardware, "fake card %s is gone from the bus", s.identity())
}

// otherCard is the error where another card is in the place of the target's.
func otherCard(s *slot, now, was cyborg.Fingerprint) error {
	return cyborg.Errorf(cyborg.ErrChanged, "at %s there is now another card (%s); it was %s", s.identity(), now, was)
}

// partGone is the error where the card is divided otherwise than when the target was
// discovered.
func partGone(s *slot, card *Card, part *region) error {
	return cyborg.Errorf(cyborg.ErrChanged, "fake card %s no longer has %s; it has: %s", s.identity(), part.name, cmp.Or(partsText(card.Layout), "no parts"))
}

// wait returns when the change's share of its step's latency has passed. It calls check
// with the present card again and again, and returns the error of check as soon as there
// is one. The latency is read each time, so it can be changed while the step
// waits.
func (d *driver) wait(ctx context.Context, c change, check func(card *Card) error) error {
	start := time.Now()

	for {
		card, err := d.currentCard(ctx, c.slot)
		if err != nil {
			return err
		}

		if err := check(card); err != nil {
			return err
		}

		latency, past := d.latencyOf(card, c.step)/time.Duration(c.share), time.Since(start)
		if past >= latency {
			return nil
		}

		c.progress(int(100 * past / latency))
		if err := sleep(ctx, min(pollInterval, latency-past)); err != nil {
			return err
		}
	}
}

// latencyOf returns the latency of the step: the card's own, or else that of
// the options.
func (d *driver) latencyOf(card *Card, step Step) time.Duration {
	if latency, ok := card.Latency[step]; ok {
		return time.Duration(latency)
	}
	return d.latency[step]
}

// readStep takes a step that changes nothing on the card except its script, and
// returns the card.
func (d *driver) readStep(ctx context.Context, s *slot, step Step) (*Card, error) {
	card, err := d.currentCard(ctx, s)
	if err != nil {
		return nil, err
	}

	if d.latencyOf(card, step) > 0 {
		if err := d.wait(ctx, newChange(step, s, drivers.Target{}), func(*Card) error { return nil }); err != nil {
			return nil, err
		}
		card, err = d.currentCard(ctx, s)
		if err != nil {
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
