package passthrough

import (
	"context"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// companionVFIO is the kernel driver to which an attach binds companions. The one that
// the options name may be for the cards of one maker only.
const companionVFIO = defaultVFIO

// cards has the functions of each card, by the address of its function 0.
type cards map[cyborg.PCIAddress][]sysfs.Function

// byCard sorts functions into cards.
func byCard(functions []sysfs.Function) cards {
	all := cards{}
	for _, f := range functions {
		slot := slotOf(f.Address)
		all[slot] = append(all[slot], f)
	}
	return all
}

// slotOf returns the address of function 0 of the card.
func slotOf(address cyborg.PCIAddress) cyborg.PCIAddress {
	address.Function = 0
	return address
}

// accompanies says whether the function is of a kind that graphics cards bring along.
func accompanies(f sysfs.Function) bool {
	switch f.Class.Sub() {
	case sysfs.SubAudio, sysfs.SubUSB, sysfs.SubSerialBus:
		return true
	}
	return false
}

// mayLead says whether the function can have companions: only graphics have. The slot of
// another function may be one of the chipset, whose audio and USB are the host's.
func (d *Driver) mayLead(f sysfs.Function) bool {
	return f.IOMMUGroup != "" && f.PF == nil && d.cards.Describe(f, nil).Type == cyborg.DeviceTypeGPU
}

// companions returns the functions of a card that go with one of them to its holder:
// those of the same IOMMU group that a graphics card brings along and that the backend
// does not offer. VFIO takes the group as a whole, so nobody else can have them meanwhile.
// If the backend offers several functions of the group on the card, they go with the
// first.
func (d *Driver) companions(f sysfs.Function, card []sysfs.Function) []sysfs.Function {
	if !d.mayLead(f) {
		return nil
	}

	var with []sysfs.Function
	for _, other := range card {
		switch chosen := d.cards.Chosen(other); {
		case other.Address == f.Address || other.IOMMUGroup != f.IOMMUGroup || other.PF != nil || other.Class.Base() == sysfs.BaseBridge:
		case accompanies(other) && !chosen:
			with = append(with, other)
		case d.mayLead(other) && chosen && other.Address.Function < f.Address.Function:
			return nil
		}
	}
	return with
}

// companionsNow returns the companions as they are at this moment.
func (d *Driver) companionsNow(ctx context.Context, f sysfs.Function) ([]sysfs.Function, error) {
	if !d.mayLead(f) {
		return nil, nil
	}

	card, err := d.tree.Slot(ctx, f.Address)
	if err != nil {
		return nil, err
	}
	return d.companions(f, card), nil
}

// companionUser says who uses a companion: besides whom Users finds, somebody at a keyboard
// or mouse that is connected to its USB controller, which the kernel itself reads for the
// console.
func (d *Driver) companionUser(ctx context.Context, companion sysfs.Function) (string, error) {
	user, err := d.tree.Users(ctx, companion)
	if err != nil || user != "" || companion.Class.Sub() != sysfs.SubUSB {
		return user, err
	}

	input, err := d.tree.Input(ctx, companion)
	if err != nil || input == "" {
		return "", err
	}
	return "the input device " + input + " is connected to it", nil
}

// addCompanions says in the report of a function what goes with it, so that its host
// attaches it for every kind of holder. What the host lives on goes with nothing.
func (d *Driver) addCompanions(report *cyborg.DeployableReport, f sysfs.Function, all cards, protection sysfs.Protection) {
	for _, other := range d.companions(f, all[slotOf(f.Address)]) {
		if _, protected := protection[other.Address]; protected {
			continue
		}
		report.Preparation = &cyborg.Preparation{}
		report.Handles[0].With = append(report.Handles[0].With, other.Address)
	}
}

// withoutCompanions returns the functions that are companions of nothing that the backend
// offers.
func (d *Driver) withoutCompanions(ctx context.Context, functions []sysfs.Function) ([]sysfs.Function, error) {
	var others []sysfs.Function
	for _, f := range functions {
		is, err := d.isCompanion(ctx, f)
		if err != nil {
			return nil, err
		}
		if !is {
			others = append(others, f)
		}
	}
	return others, nil
}

// isCompanion says whether the function goes with one that the backend offers.
func (d *Driver) isCompanion(ctx context.Context, f sysfs.Function) (bool, error) {
	if !accompanies(f) {
		return false, nil
	}

	card, err := d.tree.Slot(ctx, f.Address)
	if err != nil {
		return false, err
	}
	for _, lead := range card {
		if d.cards.Chosen(lead) && slices.ContainsFunc(d.companions(lead, card), func(one sysfs.Function) bool { return one.Address == f.Address }) {
			return true, nil
		}
	}
	return false, nil
}
