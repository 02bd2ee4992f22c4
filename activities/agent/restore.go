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

// restore loads again the images that were there before the operation's program
// step, wherever that step stopped. It also covers a step that never began:
// marking it as undone keeps a late try of it from beginning. Where nobody
// knows what was there, or the image is no longer on this host, the error is of
// kind ErrHardware, unless the hardware reads back as before. An image that the
// hardware has lost at a boot before the step began comes back as well.
func (a *Activities) restore(ctx context.Context, t *try, in workflows.RestoreInput) (workflows.ChangeResult, error) {
	var result workflows.ChangeResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.RestoreActivity, in.Operation)
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
	// Without a note of the program step, the records say what was there.
	note := programNote{BitstreamIDs: map[string]string{}}
	for _, one := range append([]cyborg.Target{in.Target}, in.Disturbed...) {
		note.BitstreamIDs[one.Deployable] = one.BitstreamID
	}

	if begun && prior.Note != nil {
		note = programNote{}
		if err := json.Unmarshal(prior.Note, &note); err != nil {
			return result, cyborg.Errorf(cyborg.ErrInternal, "the journal's note of a program step cannot be read: %w", err)
		}
	}

	// The images that come back may fill regions of which only the note knows.
	var subjects []journal.Subject
	for _, name := range slices.Sorted(maps.Keys(note.BitstreamIDs)) {
		subjects = append(subjects, journal.Subject{Backend: in.Target.Backend, Deployable: name})
	}
	if err := a.Journal.Raise(in.Assignment, subjects...); err != nil {
		return result, err
	}

	restoring := s.at(journal.Started)
	// This step needs the images now, so the cache must keep them even when the
	// undone program step is forgotten.
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

	if prior.Note == nil {
		note.Images = a.lostSince(found, note.BitstreamIDs)
	}
	for _, image := range note.Images {
		if !image.Of(found.Device.Fingerprint) {
			return result, otherCard(found.Device.Identity, found.Device.Fingerprint, cyborg.Fingerprint(image.Fingerprint))
		}
	}

	var missing []string
	// A missing image is no failure yet: the hardware may read back as before
	// without it.
	for _, image := range slices.SortedFunc(slices.Values(note.Images), byReach) {
		why, err := a.loadAgain(ctx, t, found, image)
		switch {
		case cyborg.ErrorKindOf(err) == cyborg.ErrNotFound:
			// Its driver does not find what was there a moment ago, and parts of the device
			// may have their images already: another try goes on.
			return result, cyborg.Errorf(cyborg.ErrBusy, "image %s cannot be loaded again now: %w", image.SHA256, err)
		case err != nil:
			return result, err
		case why != "":
			missing = append(missing, why)
		}
	}

	return finish(ctx, a, s, found, func(seen cyborg.Observation) (workflows.ChangeResult, journal.Change, error) {
		change := journal.Change{Loaded: note.Images, DropStaged: []uuid.UUID{in.Operation}}
		if err := sameCard(found, seen); err != nil {
			return result, change, err
		}
		if different := differences(seen.Device, note); len(different) > 0 {
			return result, change, cyborg.Errorf(cyborg.ErrHardware, "what was loaded before is not back: %s", strings.Join(append(different, missing...), "; ")).
				WithHint("Program it with an image of your choice, then make it ready.")
		}

		return workflows.ChangeResult{Observation: seen}, change, nil
	})
}

// byReach sorts images of the whole device first, because loading one replaces
// what the other regions hold.
func byReach(x, y journal.Loaded) int {
	reach := func(l journal.Loaded) int {
		if l.WholeDevice {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(reach(x), reach(y)), cmp.Compare(x.Region, y.Region))
}

// loadAgain loads an image that this agent had loaded before, into what it
// filled then, which may be other parts than those of the image that is undone.
// Who uses them is asked also where the ids read back as before: some hardware
// tells none, and different images may have the same one. If the image, or the
// deployable through which it was loaded, is no longer there, missing says so.
func (a *Activities) loadAgain(ctx context.Context, t *try, found inventory.Found, loaded journal.Loaded) (missing string, err error) {
	at := slices.IndexFunc(found.Device.Deployables, func(one cyborg.DeployableReport) bool { return one.Name == loaded.Deployable })
	if at < 0 {
		return fmt.Sprintf("%s, through which image %s had been loaded, is gone", loaded.Deployable, loaded.SHA256), nil
	}
	found.Deployable = found.Device.Deployables[at]

	programmer, err := programmerOf(found)
	if err != nil {
		return "", err
	}

	image, err := a.Images.Get(ctx, loaded.SHA256)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}

	if err := a.checkDisturbed(ctx, t, found, loaded.WholeDevice); err != nil {
		return "", err
	}

	return "", t.guarded("program", func() error {
		return programmer.Program(ctx, drivers.ProgramRequest{
			Target: found.Target, Path: image.Path, Progress: t.heartbeat.setProgress,
			Image: cyborg.Image{SHA256: loaded.SHA256, ID: loaded.ImageID, WholeDevice: loaded.WholeDevice},
		})
	})
}

// lostSince returns the images that the deployables had by these ids, as this agent
// had loaded them, and that the hardware does not show any more: a boot empties many
// cards. What reads back as before is left alone, because somebody may be using it. An
// image of the whole device counts only where it would replace no other one.
func (a *Activities) lostSince(found inventory.Found, ids map[string]string) []journal.Loaded {
	var lost []journal.Loaded
	asked := map[journal.RegionKey]bool{}

	for _, one := range found.Device.Deployables {
		key := regionOf(found.Backend, found.Device, one)
		if id, told := ids[one.Name]; !told || id == one.LoadedLast() || asked[key] {
			continue
		}
		asked[key] = true

		loaded, known := a.Journal.Loaded(key)
		if known && loaded.Of(found.Device.Fingerprint) && loaded.BitstreamID == ids[one.Name] && (!loaded.WholeDevice || a.fillsAll(found, loaded)) {
			lost = append(lost, loaded)
		}
	}

	return lost
}

// fillsAll reports whether the image is the one that this agent has loaded last into
// every region of the device.
func (a *Activities) fillsAll(found inventory.Found, image journal.Loaded) bool {
	return !slices.ContainsFunc(found.Device.Deployables, func(one cyborg.DeployableReport) bool {
		loaded, known := a.Journal.Loaded(regionOf(found.Backend, found.Device, one))
		return !known || loaded.SHA256 != image.SHA256 || !loaded.Of(found.Device.Fingerprint)
	})
}

// differences describes the deployables that are gone, or that have another
// image than the note says.
func differences(device cyborg.DeviceReport, note programNote) []string {
	now := map[string]string{}
	for _, one := range device.Deployables {
		now[one.Name] = one.LoadedLast()
	}

	var different []string

	for _, name := range slices.Sorted(maps.Keys(note.BitstreamIDs)) {
		id, there := now[name]
		switch {
		case !there:
			different = append(different, name+" is gone")
		case id != note.BitstreamIDs[name]:
			different = append(different, fmt.Sprintf("%s had %s and has %s", name, imageName(note.BitstreamIDs[name]), imageName(id)))
		}
	}

	return different
}

// imageName is a bitstream id for a message, where empty means that no image is
// loaded.
func imageName(id string) string { return cmp.Or(id, "no image") }
