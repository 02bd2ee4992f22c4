package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// restore brings back the images that were there before the operation's program step, wherever that stopped, also where
// it never began: it must not begin after this. Where it is not known what was there, or the image is no longer on this
// host, it is an error of kind ErrHardware, unless the hardware reads back as before.
func (a *Activities) restore(ctx context.Context, t *try, in workflows.RestoreInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.Inventory.Lock(ctx, in.Target.Device, attemptOf(workflows.RestoreActivity, in.Operation))
	if err != nil {
		return result, err
	}
	defer unlock()
	s, done, err := a.stepOf(in.Operation, workflows.RestoreActivity, &result)
	if done || err != nil {
		return result, err
	}
	program := step{key: journal.StepKey{Operation: in.Operation, Name: workflows.ProgramActivity}}
	prior, begun := a.Journal.Step(program.key)
	program.prior = prior
	note := before{BitstreamIDs: map[string]string{}}
	for _, one := range append([]cyborg.Target{in.Target}, in.Others...) {
		note.BitstreamIDs[one.Deployable] = one.BitstreamID
	}
	if begun && prior.Note != nil {
		note = before{}
		if err := json.Unmarshal(prior.Note, &note); err != nil {
			return result, cyborg.Errorf(cyborg.ErrInternal, "the journal's note of a program step cannot be read: %w", err)
		}
	}
	restoring := s.at(journal.Started)
	restoring.Images = prior.Images
	err = a.Journal.Write(journal.Change{Steps: []journal.Step{restoring, program.at(journal.Undone)}})
	if err != nil {
		return result, err
	}
	s.prior = restoring
	found, err := a.find(ctx, in.Target, lookFirst)
	if err != nil {
		return result, err
	}
	var missing []string
	for _, image := range slices.SortedFunc(slices.Values(note.Images), byReach) {
		if err := a.loadAgain(ctx, t, found, image); cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
			missing = append(missing, err.Error())
		} else if err != nil {
			return result, err
		}
	}
	return finish(ctx, a, s, found, func(seen cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		change := journal.Change{Loaded: note.Images, DropStaged: []uuid.UUID{in.Operation}}
		if different := differences(seen.Device, note); len(different) > 0 {
			return result, change, cyborg.Errorf(cyborg.ErrHardware, "what was loaded before is not back: %s", strings.Join(append(different, missing...), "; ")).
				WithHint("Program it with an image of your choice, then make it ready.")
		}
		return workflows.ChangeResult{Observation: seen}, change, nil
	})
}

// byReach puts images of the whole device first, since they change what the others have loaded.
func byReach(x, y journal.Loaded) int {
	reach := func(l journal.Loaded) int {
		if l.WholeDevice {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(reach(x), reach(y)), cmp.Compare(x.Region, y.Region))
}

// loadAgain loads an image that this agent had loaded before. Where it, or what it was loaded through, is not here any
// more, the error is of kind ErrNotFound.
func (a *Activities) loadAgain(ctx context.Context, t *try, found inventory.Found, loaded journal.Loaded) error {
	target := drivers.Target{Device: found.Device}
	for _, one := range found.Device.Deployables {
		if one.Name == loaded.Deployable {
			target.Deployable = one
		}
	}
	if target.Deployable.Name == "" {
		return cyborg.Errorf(cyborg.ErrNotFound, "%s, through which image %s had been loaded, is gone", loaded.Deployable, loaded.SHA256)
	}
	if why := target.Deployable.Protected; why != "" {
		return cyborg.Errorf(cyborg.ErrProtected, "%s is not touched, because the host lives on it: %s", loaded.Deployable, why)
	}
	programmer, err := programmerOf(found)
	if err != nil {
		return err
	}
	image, err := a.Images.Get(ctx, loaded.SHA256)
	if err != nil {
		return err
	}
	return t.guarded("program", func() error {
		return programmer.Program(ctx, drivers.ProgramRequest{
			Target: target, Path: image.Path, Progress: t.beat.tell,
			Image: cyborg.Image{SHA256: loaded.SHA256, ID: loaded.ImageID, WholeDevice: loaded.WholeDevice},
		})
	})
}

// differences says of which deployables the hardware reads back something else than before.
func differences(device cyborg.DeviceReport, note before) []string {
	now := map[string]string{}
	for _, one := range device.Deployables {
		now[one.Name] = one.BitstreamID
	}
	var different []string
	for _, name := range slices.Sorted(maps.Keys(note.BitstreamIDs)) {
		id, there := now[name]
		switch {
		case !there:
			different = append(different, name+" is gone")
		case id != note.BitstreamIDs[name]:
			different = append(different, fmt.Sprintf("%s had %s and has %s", name, named(note.BitstreamIDs[name]), named(id)))
		}
	}
	return different
}

func named(id string) string { return cmp.Or(id, "no image") }
