package fake

import (
	"cmp"
	"context"
	"strconv"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// Program loads an image and reads it back. Every part that the image disturbs
// is empty from the first change until the image is loaded; it stays empty
// where the agent dies in between. The error is of kind ErrInUse while somebody
// uses a handle of a disturbed part.
func (d *driver) Program(ctx context.Context, request drivers.ProgramRequest) error {
	s, part, err := d.find(request.Target)
	if err != nil {
		return err
	}

	function, checksum, err := s.readImage(ctx, request.Path)
	if err != nil {
		return err
	}

	loaded := Region{BitstreamID: cmp.Or(request.Image.ID, request.Image.SHA256, checksum), Function: function, SHA256: checksum}
	card, err := d.currentCard(ctx, s)
	if err != nil {
		return err
	}
	disturbed := s.disturbed(card, part, request.Image.WholeDevice)

	c := newChange(StepProgram, s, request.Target)
	c.due = func(card *Card) (due bool, err error) {
		for _, one := range disturbed {
			state := card.Deployables[one.key]
			for _, address := range one.handles {
				if err := d.checkUnused(address.String(), state.Handles[address.String()]); err != nil && card.has(one.key) {
					return false, err
				}
			}

			due = due || !state.holds(loaded)
		}

		return due, nil
	}

	c.begin = func(card *Card) {
		for _, one := range disturbed {
			card.Deployables[one.key].empty()
		}
	}

	c.finish = func(card *Card) {
		for _, one := range disturbed {
			state := card.Deployables[one.key]
			state.BitstreamID, state.Function, state.SHA256 = loaded.BitstreamID, loaded.Function, loaded.SHA256
		}
	}

	there := s.there(card)
	places := strconv.Itoa(min(len(disturbed), len(there))) + " of " + strconv.Itoa(len(there)) + " parts of " + s.identity()
	c.progress = func(percent int) { request.Progress(percent, "loading "+function+" into "+places) }

	if err := d.run(ctx, c); err != nil {
		return err
	}

	card, err = d.currentCard(ctx, s)
	if err != nil {
		return err
	}

	for _, one := range disturbed {
		if state := card.Deployables[one.key]; !state.holds(loaded) {
			return cyborg.Errorf(cyborg.ErrHardware, "%s reads back %q after %q was loaded", one.name, state.BitstreamID, loaded.BitstreamID)
		}
	}

	request.Progress(100, "verified")
	return nil
}

// disturbed lists the parts of the card that get the image. Firmware is for all parts that
// the card can have.
func (s *slot) disturbed(card *Card, part *region, wholeDevice bool) []region {
	var all []region
	for _, one := range s.regions {
		if s.volatile && !card.has(one.key) {
			continue
		}
		if wholeDevice || s.programSet(one) == s.programSet(*part) {
			all = append(all, one)
		}
	}

	return all
}

// holds says whether the image is loaded in the part.
func (r *Region) holds(image Region) bool {
	return r.BitstreamID == image.BitstreamID && r.SHA256 == image.SHA256 && r.Function == image.Function
}
