package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// cardUnits is how many units of a card its parts share.
const cardUnits = 4

// partKind is a kind of parts into which a card can be divided.
type partKind struct {
	name        string
	units       int // that a part of it takes
	description string
}

// partKinds lists the kinds of parts. The order gives the parts their addresses.
func partKinds() []partKind {
	return []partKind{
		{name: "half", units: 2, description: "half of the card"},
		{name: "quarter", units: 1, description: "a quarter of the card"},
	}
}

// most returns how many parts of this kind a card can have.
func (k partKind) most() int { return cardUnits / k.units }

// partsOfCard is how many parts a card can have at different times.
func partsOfCard() (count int) {
	for _, kind := range partKinds() {
		count += kind.most()
	}
	return count
}

// addParts makes the card divisible: it adds all parts that it can have. Each has one
// handle. These are the functions from that number on.
func (s *slot) addParts(function int) {
	s.divisible = true
	for _, kind := range partKinds() {
		for number := range kind.most() {
			key := kind.name + strconv.Itoa(number)
			s.regions = append(s.regions, region{key: key, name: s.reportedName(key), handles: []cyborg.PCIAddress{s.function(function)}})
			function++
		}
	}
}

// partOfKey returns the kind of the part that has this key in the card's file, and its
// number. The kind is empty for what the whole card has.
func partOfKey(key string) (kind string, number int) {
	for _, kind := range partKinds() {
		if number, err := strconv.Atoi(strings.TrimPrefix(key, kind.name)); err == nil && strings.HasPrefix(key, kind.name) {
			return kind.name, number
		}
	}
	return "", 0
}

// partitioning says how the card can be divided, and is; nil where it cannot.
func (s *slot) partitioning(card *Card) *cyborg.Partitioning {
	if !s.divisible {
		return nil
	}

	out := &cyborg.Partitioning{Layout: card.Layout.Normal()}
	for _, kind := range partKinds() {
		out.Parts = append(out.Parts, cyborg.PartKind{Name: kind.name, Most: kind.most(), Description: kind.description})
	}
	return out
}

// there lists the parts of the card that it has now.
func (s *slot) there(card *Card) []region {
	return slices.DeleteFunc(slices.Clone(s.regions), func(part region) bool { return !card.has(part.key) })
}

// has says whether the card has the part of that key now.
func (c *Card) has(key string) bool { return hasPart(c.Layout, key) }

// hasPart says whether a card with this layout has the part of that key.
func hasPart(layout cyborg.Layout, key string) bool {
	kind, number := partOfKey(key)
	if kind == "" {
		return layout == nil
	}
	return number < layout[kind]
}

// checkLayout returns an error of kind ErrInvalid that says why no card can be divided
// like that.
func checkLayout(layout cyborg.Layout) error {
	names, units := map[string]int{}, 0
	for _, kind := range partKinds() {
		names[kind.name] = kind.units
	}

	for _, kind := range slices.Sorted(maps.Keys(layout)) {
		count := layout[kind]
		if names[kind] == 0 || count < 0 || count > cardUnits {
			return cyborg.Errorf(cyborg.ErrInvalid, "a fake card cannot have %d parts of kind %.80q", count, kind)
		}
		units += count * names[kind]
	}
	if units > cardUnits {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s takes %d units, and a fake card has %d", layout, units, cardUnits).
			WithHint("A half takes two units and a quarter one.")
	}
	return nil
}

// divide makes one change on the way to the wanted layout; no layout is the whole card.
// What was installed or attached of a part that goes is gone with it. What its holders
// have left stays, and so does the firmware of the card.
func (c *Card) divide(next, wanted cyborg.Layout, losesImage bool) {
	for key, state := range c.Deployables {
		returns := !c.has(key) && hasPart(wanted, key) // a boot has taken it
		if hasPart(next, key) || returns {
			continue
		}

		state.Installed = false
		if losesImage {
			state.empty()
		}
		for _, handle := range state.Handles {
			handle.detach()
		}
	}
	c.Layout = maps.Clone(next)
}

// layoutSteps lists the layouts through which a card comes to the wanted one, which is
// the last one. It first loses all that it has, unless it goes on with a partition that
// was interrupted, and then gets part by part, or is whole again. There are none where it
// is divided like that already.
func layoutSteps(now, wanted cyborg.Layout, goesOn bool) (steps []cyborg.Layout) {
	whole := len(wanted) == 0
	if (now == nil) == whole && now.Equal(wanted) {
		return nil
	}

	fits := !slices.ContainsFunc(partKinds(), func(kind partKind) bool { return now[kind.name] > wanted[kind.name] })
	if between := now != nil && len(now) == 0; !between && (now == nil || !goesOn || !fits) {
		now = cyborg.Layout{}
		steps = append(steps, now)
	}
	if whole {
		return append(steps, nil)
	}

	for _, kind := range partKinds() {
		for now[kind.name] < wanted[kind.name] {
			now = maps.Clone(now)
			now[kind.name]++
			steps = append(steps, now)
		}
	}
	return steps
}

// findCard returns the place of a device. The error is of kind ErrNotFound.
func (d *driver) findCard(device cyborg.DeviceReport) (*slot, error) {
	at := slices.IndexFunc(d.slots, func(s *slot) bool { return s.identity() == device.Identity })
	if at < 0 {
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "the fake park has no card %q", device.Identity)
	}
	return d.slots[at], nil
}

// CheckLayout refuses a layout whose parts take more than the card has.
func (d *driver) CheckLayout(_ context.Context, device cyborg.DeviceReport, layout cyborg.Layout) error {
	s, err := d.findCard(device)
	if err != nil {
		return err
	}
	if err := s.partitioning(newCard()).Check(layout); err != nil {
		return err
	}
	return checkLayout(layout)
}

// partitionNote says what a partition is about to do.
type partitionNote struct {
	Wanted cyborg.Layout `json:"wanted"`
	// Number counts the notes of the device since the host has booted.
	Number int `json:"number"`
}

// priorPartition reads the last note of the device. A note that it does not know says
// nothing.
func priorPartition(text json.RawMessage) partitionNote {
	var prior partitionNote
	if err := json.Unmarshal(text, &prior); err != nil {
		return partitionNote{}
	}
	return prior
}

// Partition divides a card in several changes, and stores a note before each. Between
// them the card has fewer parts than wanted, or none and is not whole either; where the
// step dies there, the next one goes on or begins anew. The error is of kind ErrInUse
// while somebody uses a handle that the card has, and of kind ErrHardware where it has
// other parts afterwards.
func (d *driver) Partition(ctx context.Context, request drivers.PartitionRequest) error {
	if err := d.CheckLayout(ctx, request.Device, request.Layout); err != nil {
		return err
	}
	s, err := d.findCard(request.Device)
	if err != nil {
		return err
	}

	c := newChange(StepPartition, s, drivers.Target{Device: request.Device})
	c.due = func(card *Card) (bool, error) { return true, d.checkCardUnused(s, card) }
	wanted, prior := request.Layout.Normal(), priorPartition(request.Prior)

	card, err := d.currentCard(ctx, s)
	if err != nil {
		return err
	}
	steps := layoutSteps(card.Layout, wanted, prior.Wanted.Equal(wanted))
	if len(steps) == 0 {
		c.due = func(*Card) (bool, error) { return false, nil }
		return d.run(ctx, c)
	}

	c.share = len(steps)
	for done, next := range steps {
		c.note = func() error {
			prior = partitionNote{Wanted: wanted, Number: prior.Number + 1}
			note, err := json.Marshal(prior)
			if err != nil {
				return cyborg.Errorf(cyborg.ErrInternal, "the note of a partition cannot be written: %w", err)
			}
			return request.Note(note)
		}
		c.progress = func(percent int) {
			request.Progress((100*done+percent)/c.share, "dividing "+s.identity()+": "+wanted.String())
		}
		c.finish = func(card *Card) {
			if last := done == len(steps)-1; last && len(wanted) > 0 && card.makesFewer() {
				return
			}
			card.divide(next, steps[len(steps)-1], s.volatile)
		}

		if err := d.run(ctx, c); err != nil {
			return err
		}
	}

	if err := d.checkDivided(ctx, s, wanted); err != nil {
		return err
	}
	request.Progress(100, "verified")
	return nil
}

// makesFewer says whether the script has the card leave out a part, and counts that.
func (c *Card) makesFewer() bool {
	if c.Fewer == 0 {
		return false
	}
	if c.Fewer != Always {
		c.Fewer--
	}
	return true
}

// checkCardUnused returns an error of kind ErrInUse where somebody uses a handle of the
// card.
func (d *driver) checkCardUnused(s *slot, card *Card) error {
	for _, part := range s.there(card) {
		for _, address := range part.handles {
			if err := d.checkUnused(address.String(), card.Deployables[part.key].Handles[address.String()]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkDivided reads back how a card is divided.
func (d *driver) checkDivided(ctx context.Context, s *slot, wanted cyborg.Layout) error {
	card, err := d.currentCard(ctx, s)
	if err != nil {
		return err
	}
	if len(layoutSteps(card.Layout, wanted, true)) == 0 {
		return nil
	}

	found := cmp.Or(partsText(card.Layout), "no parts")
	return cyborg.Errorf(cyborg.ErrHardware, "fake card %s reads back %s after it was divided: %s", s.identity(), found, wanted).
		WithHint("Divide it again; if that does not help, replace the card.")
}

// partsText says which parts a layout has; empty where it has none and is not whole.
func partsText(layout cyborg.Layout) string {
	if layout != nil && len(layout.Normal()) == 0 {
		return ""
	}
	return layout.String()
}
