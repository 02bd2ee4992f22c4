package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// scrubParts is in how many parts a scrub overwrites what a handle stores.
const scrubParts = 4

// Residue is what the holders of a handle have left on it. Each text names the last one
// who has left something there.
type Residue struct {
	// Registers are volatile: a reset and a boot remove what is there.
	Registers string `json:"registers,omitempty"`
	// Stored is removed by a scrub only.
	Stored string `json:"stored,omitempty"`
}

// leftOnlyBy says whether this holder has left something, and nobody else.
func (r Residue) leftOnlyBy(holder string) bool {
	return r != Residue{} && cmp.Or(r.Registers, holder) == holder && cmp.Or(r.Stored, holder) == holder
}

// of returns who, other than this holder, has left something that the method removes;
// empty for nobody.
func (r Residue) of(holder string, method cyborg.CleanMethod) string {
	switch {
	case method.Covers(cyborg.CleanReset) && r.Registers != "" && r.Registers != holder:
		return r.Registers
	case method.Covers(cyborg.CleanScrub) && r.Stored != "" && r.Stored != holder:
		return r.Stored
	}
	return ""
}

// leaverOf returns the name under which a holder leaves something.
func leaverOf(holder cyborg.Holder) string {
	holder.Kind = cmp.Or(holder.Kind, cyborg.HolderHost)
	return strings.TrimSpace(holder.String())
}

// leave has somebody write to all of the handle, also to what a scrub has overwritten.
func (h *Handle) leave(by string) { h.Residue, h.Scrubbed = Residue{Registers: by, Stored: by}, 0 }

// clean does one part of a clean; done says how many there are with it. A reset has one
// part. Nothing is clean before the last one.
func (h *Handle) clean(method cyborg.CleanMethod, done int) {
	h.Cleaned++
	if done < partsOf(method) {
		h.Scrubbed = done
		return
	}

	h.Scrubbed = 0
	if h.Sticks {
		return
	}
	h.Residue.Registers = ""
	if method == cyborg.CleanScrub {
		h.Residue.Stored = ""
	}
}

// partsOf returns in how many parts the method cleans.
func partsOf(method cyborg.CleanMethod) int {
	if method == cyborg.CleanScrub {
		return scrubParts
	}
	return 1
}

// cleaning checks the option clean, and returns the cleaning of all deployables.
func (o *options) cleaning(wrong *mistakes) *cyborg.Cleaning {
	after, err := cyborg.ParseCleanMethod(o.Clean)
	if err != nil {
		wrong.add("clean: %v", err)
	}
	return &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: after}
}

// cleanNote says how far a clean has come.
type cleanNote struct {
	Method cyborg.CleanMethod `json:"method"`
	Done   int                `json:"done"` // parts
}

// priorClean reads the last note of an interrupted clean. A note that it does not know
// says nothing: the clean then begins anew.
func priorClean(text json.RawMessage) cleanNote {
	var prior cleanNote
	if err := json.Unmarshal(text, &prior); err != nil || !slices.Contains(cyborg.CleanMethods(), prior.Method) {
		return cleanNote{}
	}
	return prior
}

// Clean removes what the holders of the handle have left on it. A scrub stores a note
// before each of its parts, goes on where an interrupted one was, and ends one also where
// only a reset is asked for: otherwise the handle would stay half scrubbed. The error is
// of kind ErrInUse while somebody uses the handle, and of kind ErrHardware where
// something of what it should remove is still there afterwards.
func (d *driver) Clean(ctx context.Context, request drivers.CleanRequest) (cyborg.Evidence, error) {
	s, part, err := d.findHandle(request.Target, request.Handle)
	if err != nil {
		return cyborg.Evidence{}, err
	}
	if _, err := s.cleaning.Choose(request.Method); err != nil {
		return cyborg.Evidence{}, err
	}

	card, err := d.currentCard(ctx, s)
	if err != nil {
		return cyborg.Evidence{}, err
	}

	handleOf := func(card *Card) *Handle { return card.Deployables[part.key].Handles[request.Handle.Identity] }
	prior, scrubbed := priorClean(request.Prior), handleOf(card).Scrubbed
	method := request.Method.Stronger(prior.Method)
	if scrubbed > 0 {
		method = cyborg.CleanScrub
	}

	c := newChange(StepClean, s, request.Target)
	c.share = partsOf(method)
	c.due = func(card *Card) (bool, error) { return true, d.checkUnused(request.Handle.Identity, handleOf(card)) }

	// The card may have been changed since the note, so the lesser of the two counts.
	for done := max(0, min(prior.Done, scrubbed, c.share-1)); done < c.share; done++ {
		c.note = func() error {
			note, err := json.Marshal(cleanNote{Method: method, Done: done})
			if err != nil {
				return cyborg.Errorf(cyborg.ErrInternal, "the note of a clean cannot be written: %w", err)
			}
			return request.Note(note)
		}
		c.progress = func(percent int) {
			request.Progress((100*done+percent)/c.share, string(method)+" of "+request.Handle.Identity)
		}
		c.finish = func(card *Card) { handleOf(card).clean(method, done+1) }

		if err := d.run(ctx, c); err != nil {
			return cyborg.Evidence{}, err
		}
	}

	evidence, err := d.readBack(ctx, c, method, handleOf)
	if err != nil {
		return cyborg.Evidence{}, err
	}
	request.Progress(100, "verified")
	return evidence, nil
}

// readBack looks for what is left on a handle after a clean.
func (d *driver) readBack(ctx context.Context, c change, method cyborg.CleanMethod, handleOf func(card *Card) *Handle) (cyborg.Evidence, error) {
	card, err := d.currentCard(ctx, c.slot)
	if err != nil {
		return cyborg.Evidence{}, err
	}
	if _, err := c.check(card); err != nil {
		return cyborg.Evidence{}, err
	}

	handle := handleOf(card)
	left := handle.Residue.of("", method)
	if handle.Sticks {
		left = cmp.Or(left, "somebody")
	}
	if left != "" {
		return cyborg.Evidence{}, cyborg.Errorf(cyborg.ErrHardware, "what %s has left can still be read on fake card %s after a %s", left, c.slot.identity(), method).
			WithHint("Clean it again; if that does not help, replace the card.")
	}

	found := "all registers read as after power-on"
	if method == cyborg.CleanScrub {
		found = "all registers read as after power-on, and all that is stored as zeros"
	}
	return cyborg.Evidence{Method: method, Tool: "fake " + string(method), ReadBack: found}, nil
}
