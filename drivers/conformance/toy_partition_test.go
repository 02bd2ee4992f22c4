package conformance_test

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// partitioning says how the toy can be divided: into pieces of two kinds, of which big
// ones take twice the room.
func (d toy) partitioning() *cyborg.Partitioning {
	out := &cyborg.Partitioning{
		Parts:  []cyborg.PartKind{{Name: "big", Most: 2, Description: "half a toy"}, {Name: "small", Most: 4, Description: "a quarter of a toy"}},
		Layout: d.layout.Normal(),
	}
	switch d.defect {
	case "names a part badly":
		out.Parts[0].Name = "big part"
	case "names a part twice":
		out.Parts[0].Name = "small"
	case "can have none of a part":
		out.Parts[0].Most = 0
	case "explains a part at length":
		out.Parts[0].Description = "half\na toy"
	case "says nothing of its layout":
		out.Layout = nil
	case "counts parts that are not there":
		out.Layout = cyborg.Layout{"big": 0}
	case "has parts that it cannot have":
		out.Layout = cyborg.Layout{"huge": 1}
	case "reports what was wanted":
		if d.layout != nil {
			out.Layout = d.memory.wanted.Normal()
		}
	}
	return out
}

// withParts adds to the reports how the toy is divided, and replaces what the whole toy
// has by its parts.
func (d toy) withParts(devices []cyborg.DeviceReport) ([]cyborg.DeviceReport, error) {
	d.Lock()
	defer d.Unlock()
	between := d.layout != nil && len(d.layout) == 0
	if between && d.defect == "cannot be asked while it is divided" {
		return nil, cyborg.Errorf(cyborg.ErrHardware, "the toy is in pieces")
	}

	for i := range devices {
		devices[i].Partitioning = d.partitioning()
		whole := devices[i].Deployables
		if d.layout == nil {
			continue
		}

		devices[i].Deployables = nil
		if d.defect == "keeps the whole beside its parts" || between && d.defect == "shows parts while it is whole" {
			devices[i].Deployables = whole
		}
		for kind, count := range d.layout {
			for number := range count {
				devices[i].Deployables = append(devices[i].Deployables, d.part(kind, number))
			}
		}
		if between && d.defect == "shows parts while it is whole" {
			devices[i].Deployables = append(devices[i].Deployables, d.part("big", 0))
		}
		slices.SortFunc(devices[i].Deployables, func(a, b cyborg.DeployableReport) int { return strings.Compare(a.Name, b.Name) })
	}
	if d.layout != nil && d.defect == "divides a stranger" {
		devices = append(devices, cyborg.DeviceReport{Identity: "doll"})
	}
	return devices, nil
}

// part describes a part of the toy.
func (d toy) part(kind string, number int) cyborg.DeployableReport {
	name, handle := "toy-"+kind+strconv.Itoa(number), "toy-"+kind+strconv.Itoa(number)
	switch d.defect {
	case "gives its parts new names":
		name += "-" + strconv.Itoa(d.divided)
	case "gives its parts new handles":
		handle += "-" + strconv.Itoa(d.divided)
	case "names parts of two kinds alike":
		name = "toy-" + strconv.Itoa(number)
		if len(d.layout) > 1 {
			name += kind
		}
	}
	return cyborg.DeployableReport{
		Name: name, ProgramSet: name, Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeFPGA},
		Handles: []cyborg.HandleReport{{Kind: cyborg.HandleDEV, Identity: handle, Info: map[string]string{"path": "/dev/toy/" + handle}}},
	}
}

// CheckLayout refuses what does not fit into the toy.
func (d toy) CheckLayout(_ context.Context, _ cyborg.DeviceReport, layout cyborg.Layout) error {
	d.Lock()
	defer d.Unlock()
	switch {
	case d.defect == "divides to check":
		d.divided++
	case d.defect == "refuses what fits" && layout["small"] == 4:
		return cyborg.Errorf(cyborg.ErrInvalid, "these are many")
	case d.defect == "refuses to be whole" && len(layout) == 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "there are no parts")
	case d.defect == "checks nothing":
		return nil
	}
	return d.fits(layout)
}

// fits refuses what does not fit into the toy.
func (d toy) fits(layout cyborg.Layout) error {
	if err := (&cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "big", Most: 2}, {Name: "small", Most: 4}}}).Check(layout); err != nil {
		return err
	}
	if 2*layout["big"]+layout["small"] > 4 {
		return cyborg.Errorf(cyborg.ErrInvalid, "the toy is too small for %s", layout)
	}
	return nil
}

// Partition takes the toy apart, and then makes its parts, or puts it together, with a
// note before each.
func (d toy) Partition(ctx context.Context, request drivers.PartitionRequest) error {
	if err := d.begin(ctx, "begins a partition without a context", "divides what vanished"); err != nil {
		return err
	}
	if err := d.checkCard(drivers.Target{Device: request.Device}, "divides another card"); err != nil {
		return err
	}
	wanted := request.Layout.Normal()
	if err := d.fits(wanted); err != nil && d.defect != "divides into anything" {
		return err
	}

	if d.isDivided(wanted) {
		switch d.defect {
		case "divides once only":
			return cyborg.Errorf(cyborg.ErrHardware, "it is divided already")
		case "divides again what is divided":
			d.change(d.layout)
		}
		return nil
	}
	if d.defect == "divides before it asks for users" {
		d.change(cyborg.Layout{})
	}
	if err := d.checkNoUser(); err != nil {
		return err
	}

	if request.Prior != nil {
		switch d.defect {
		case "fails to divide over a note":
			return cyborg.Errorf(cyborg.ErrHardware, "a partition has begun")
		case "goes on as it was wanted first":
			if err := json.Unmarshal(request.Prior, &wanted); err != nil {
				return cyborg.Errorf(cyborg.ErrInternal, "%w", err)
			}
		}
	}

	if len(wanted) == 0 && d.defect == "stays in parts" {
		return nil
	}
	for i, next := range []cyborg.Layout{{}, d.made(wanted)} {
		if d.defect == "divides before it notes" {
			d.change(next)
		}
		if err := request.Note(noteOf(wanted)); err != nil && d.defect != "divides without its note" {
			return err
		}

		percent := 50 * (i + 1)
		if d.defect == "divides backwards" {
			percent = 100 - percent
		}
		request.Progress(percent, "dividing")

		if err := d.wait(ctx); err != nil {
			if d.defect == "takes an interrupted partition for done" {
				return nil
			}
			return err
		}
		d.change(next)
	}

	if !d.isDivided(wanted) && d.defect != "makes fewer parts" && d.defect != "takes fewer parts for all" && d.defect != "reports what was wanted" {
		return cyborg.Errorf(cyborg.ErrHardware, "it is not in these parts: %s", wanted)
	}
	return nil
}

// noteOf is what the toy notes of a partition.
func noteOf(wanted cyborg.Layout) json.RawMessage {
	text, err := json.Marshal(wanted)
	if err != nil {
		panic(err) // a map of numbers is always written
	}
	return text
}

// made returns the parts that the toy gets, where these are wanted.
func (d toy) made(wanted cyborg.Layout) cyborg.Layout {
	d.Lock()
	defer d.Unlock()
	if d.memory.wanted = wanted; len(wanted) == 0 {
		return nil
	}
	made := maps.Clone(wanted)
	if d.fewer || d.defect == "makes fewer parts" {
		made[slices.Sorted(maps.Keys(made))[0]]--
	}
	return made
}

// change divides the toy.
func (d toy) change(layout cyborg.Layout) {
	d.Lock()
	defer d.Unlock()
	d.layout = layout
	d.divided++
}

// isDivided says whether the toy is divided like that.
func (d toy) isDivided(wanted cyborg.Layout) bool {
	d.Lock()
	defer d.Unlock()
	return (d.layout == nil) == (len(wanted) == 0) && d.layout.Equal(wanted)
}

// checkNoUser refuses to divide a toy that somebody uses.
func (d toy) checkNoUser() error {
	d.Lock()
	defer d.Unlock()
	if len(d.users) == 0 || d.defect == "divides what is used" {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInUse, "the toy is in use")
}
