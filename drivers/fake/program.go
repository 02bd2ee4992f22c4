package fake

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// halfWritten is the bitstream id of what a flash memory has that was not written to its
// end.
const halfWritten = "half-written"

// activation checks the option of that name.
func (o *options) activation(wrong *mistakes) cyborg.Activation {
	activation := cyborg.Activation(o.Activation)
	if activation != "" && !slices.Contains(cyborg.Activations(), activation) {
		wrong.add("activation: there is no %q; write %s, %s or nothing", o.Activation, cyborg.ActivationReboot, cyborg.ActivationPowerCycle)
	}
	return activation
}

// Program loads an image and reads it back. Every part that the image disturbs
// is empty from the first change until the image is loaded; it stays empty
// where the agent dies in between. Where images take effect later, it is the flash memory
// that is written, and that stays half-written; the image in effect is left alone. The error is of kind ErrInUse while somebody
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

	loaded := Image{BitstreamID: cmp.Or(request.Image.ID, request.Image.SHA256, checksum), Function: function, SHA256: checksum}
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

			due = due || state.loadedLast() != loaded
		}

		return due, nil
	}

	c.begin = func(card *Card) {
		for _, one := range disturbed {
			s.unload(card.Deployables[one.key])
		}
	}

	c.finish = func(card *Card) {
		for _, one := range disturbed {
			s.load(card.Deployables[one.key], loaded)
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
		if now := card.Deployables[one.key].loadedLast(); now != loaded {
			return cyborg.Errorf(cyborg.ErrHardware, "%s reads back %q after %q was loaded", one.name, now.BitstreamID, loaded.BitstreamID)
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

// unload begins to load an image into a part.
func (s *slot) unload(part *Region) {
	if s.activation == "" {
		part.empty()
		return
	}
	part.Pending = &PendingImage{Image: Image{BitstreamID: halfWritten}, Until: s.activation}
}

// load loads an image into a part. What is in effect already does not have to take effect.
func (s *slot) load(part *Region, image Image) {
	switch part.Pending = nil; {
	case s.activation == "":
		part.Image = image
	case part.Image != image:
		part.Pending = &PendingImage{Image: image, Until: s.activation}
	}
}

// pendingImage reports an image that takes effect later; nil where there is none, or where
// nobody can tell it from the one in effect.
func (r *Region) pendingImage() *cyborg.PendingImage {
	if r.Pending == nil || r.Pending.BitstreamID == r.BitstreamID {
		return nil
	}
	return &cyborg.PendingImage{BitstreamID: r.Pending.BitstreamID, Until: r.Pending.Until}
}
