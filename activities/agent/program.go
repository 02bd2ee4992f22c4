package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// before is the note of a program step: what it disturbs, as it was.
type before struct {
	// BitstreamIDs are what the disturbed deployables read back, by name.
	BitstreamIDs map[string]string `json:"bitstream_ids"`
	// Images are those of the disturbed regions that this agent had loaded and that were still there.
	Images []journal.Loaded `json:"images"`
}

// regionOf names what one image goes into.
func regionOf(backend string, device cyborg.DeviceReport, deployable cyborg.DeployableReport) journal.RegionKey {
	region := "deployable " + deployable.Name
	if deployable.ProgramSet != "" {
		region = "set " + deployable.ProgramSet
	}
	return journal.RegionKey{Backend: backend, Device: device.Identity, Region: region}
}

// disturbed lists the deployables that an image for the target changes.
func disturbed(found inventory.Found, wholeDevice bool) []cyborg.DeployableReport {
	region := regionOf(found.Backend, found.Device, found.Deployable)
	var all []cyborg.DeployableReport
	for _, one := range found.Device.Deployables {
		if wholeDevice || regionOf(found.Backend, found.Device, one) == region {
			all = append(all, one)
		}
	}
	return all
}

// rememberBefore is what is there before the image is loaded.
func (a *Activities) rememberBefore(found inventory.Found, wholeDevice bool) before {
	note := before{BitstreamIDs: map[string]string{}}
	asked := map[journal.RegionKey]bool{}
	for _, one := range disturbed(found, wholeDevice) {
		note.BitstreamIDs[one.Name] = one.BitstreamID
		key := regionOf(found.Backend, found.Device, one)
		if asked[key] {
			continue
		}
		asked[key] = true
		// Somebody else may have programmed it since; then what we loaded is not what was there.
		if loaded, known := a.Journal.Loaded(key); known && loaded.BitstreamID == one.BitstreamID {
			note.Images = append(note.Images, loaded)
		}
	}
	return note
}

// program loads the staged image and reads it back.
func (a *Activities) program(ctx context.Context, t *try, in workflows.ProgramInput) (workflows.ProgramResult, error) {
	var result workflows.ProgramResult
	unlock, err := a.Inventory.Lock(ctx, in.Target.Device, attemptOf(workflows.ProgramActivity, in.Operation))
	if err != nil {
		return result, err
	}
	defer unlock()
	s, done, err := a.stepOf(in.Operation, workflows.ProgramActivity, &result)
	if done || err != nil {
		return result, err
	}
	request, found, err := a.planProgram(ctx, t, in)
	if err != nil {
		if s.begun {
			err = doubt(err)
		}
		return result, err
	}
	if _, staged := a.Journal.Staged(in.Operation); !staged && !s.begun {
		// An earlier try may have begun, so nobody knows any more what was there before.
		return result, cyborg.Errorf(cyborg.ErrHardware, "the agent has lost its journal since the image for %s was staged", in.Target.Deployable).
			WithHint("Somebody emptied the agent's state directory, or it is not on a disk that stays. Then program again.")
	}
	note, err := a.beginProgram(&s, found, in.Image.WholeDevice)
	if err != nil {
		return result, err
	}
	programmer, err := programmerOf(found)
	if err != nil {
		return result, err
	}
	if err := t.guarded("program", func() error { return programmer.Program(ctx, request) }); err != nil {
		if ctx.Err() == nil && refuses(err) {
			err = a.refusedProgram(ctx, t, s, in, note, err)
		}
		return result, err
	}
	return finish(ctx, a, s, found, func(seen cyborg.Observation) (workflows.ProgramResult, journal.Change, error) {
		return recordProgram(in, found, seen)
	})
}

// recordProgram is what a loaded image that was read back comes to.
func recordProgram(
	in workflows.ProgramInput, found inventory.Found, seen cyborg.Observation,
) (result workflows.ProgramResult, change journal.Change, err error) {
	result.Observation = seen
	for _, one := range seen.Device.Deployables {
		if one.Name == found.Deployable.Name {
			result.BitstreamID = cmp.Or(one.BitstreamID, in.Image.ID, in.SHA256)
		}
	}
	if result.BitstreamID == "" {
		return result, change, cyborg.Errorf(cyborg.ErrHardware, "%s is gone after the image was loaded", found.Deployable.Name)
	}
	found.Device = seen.Device
	change.DropStaged = []uuid.UUID{in.Operation}
	change.Loaded = loadedInto(found, journal.Loaded{
		Deployable: found.Deployable.Name, SHA256: in.SHA256, ImageID: in.Image.ID,
		WholeDevice: in.Image.WholeDevice, Operation: in.Operation,
	})
	return result, change, nil
}

// planProgram finds what to load into what. It changes nothing.
func (a *Activities) planProgram(ctx context.Context, t *try, in workflows.ProgramInput) (drivers.ProgramRequest, inventory.Found, error) {
	found, err := a.findToChange(ctx, in.Target, lookFirst)
	if err != nil {
		return drivers.ProgramRequest{}, found, err
	}
	for _, one := range disturbed(found, in.Image.WholeDevice) {
		if one.Protected != "" {
			return drivers.ProgramRequest{}, found, cyborg.Errorf(cyborg.ErrProtected,
				"the image would change %s as well, which is not touched, because the host lives on it: %s", one.Name, one.Protected)
		}
	}
	if _, err := programmerOf(found); err != nil {
		return drivers.ProgramRequest{}, found, err
	}
	if err := a.unusedBy(ctx, t, found, in.Image.WholeDevice); err != nil {
		return drivers.ProgramRequest{}, found, err
	}
	image, err := a.Images.Get(ctx, in.SHA256)
	if err != nil {
		return drivers.ProgramRequest{}, found, err
	}
	in.Image.SHA256 = image.SHA256
	return drivers.ProgramRequest{Target: found.Target, Path: image.Path, Image: in.Image, Progress: t.beat.tell}, found, nil
}

// unusedBy refuses to change what somebody uses: an instance may hold what its image is loaded into again.
func (a *Activities) unusedBy(ctx context.Context, t *try, found inventory.Found, wholeDevice bool) error {
	for _, one := range disturbed(found, wholeDevice) {
		part := found
		part.Deployable = one
		for _, handle := range one.Handles {
			if err := a.unused(ctx, t, part, handle); err != nil {
				return cyborg.Errorf(cyborg.ErrorKindOf(err), "an image for %s would change %s: %w", found.Deployable.Name, handle.Identity, err).
					WithHint("Stop its user first.")
			}
		}
	}
	return nil
}

// beginProgram writes down what was there. A later try keeps what the first one wrote: by then it may be gone.
func (a *Activities) beginProgram(s *step, found inventory.Found, wholeDevice bool) (before, error) {
	var note before
	if s.begun {
		if err := json.Unmarshal(s.prior.Note, &note); err != nil {
			return note, cyborg.Errorf(cyborg.ErrInternal, "the journal's note of a program step cannot be read: %w", err)
		}
		return note, nil
	}
	note = a.rememberBefore(found, wholeDevice)
	text, err := json.Marshal(note)
	if err != nil {
		return note, cyborg.Errorf(cyborg.ErrInternal, "the note of a program step cannot be kept: %w", err)
	}
	s.prior.Note = text
	for _, loaded := range note.Images {
		s.prior.Images = append(s.prior.Images, loaded.SHA256)
	}
	change := journal.Change{Steps: []journal.Step{s.at(journal.Started)}}
	for _, one := range disturbed(found, wholeDevice) {
		change.DropLoaded = append(change.DropLoaded, regionOf(found.Backend, found.Device, one))
	}
	return note, a.Journal.Write(change)
}

// refusedProgram makes sure that an image that the driver refuses has changed nothing, since the workflow will not undo
// it; where that is not certain, the error says so.
func (a *Activities) refusedProgram(
	ctx context.Context, t *try, s step, in workflows.ProgramInput, note before, cause error,
) error {
	if s.begun {
		return doubt(cause)
	}
	observation, err := a.Inventory.Observe(ctx, in.Target.Backend, in.Target.Device, nil)
	if err != nil || len(differences(observation.Device, note)) > 0 {
		return doubt(cause)
	}
	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropStaged: []uuid.UUID{in.Operation}, Loaded: note.Images}
	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a refused program step stays in the journal", "error", err)
		return doubt(cause)
	}
	return cause
}

// loadedInto is what to write down of an image that went into the target: one entry for each region that it disturbed.
func loadedInto(found inventory.Found, loaded journal.Loaded) []journal.Loaded {
	var all []journal.Loaded
	for _, one := range disturbed(found, loaded.WholeDevice) {
		key := regionOf(found.Backend, found.Device, one)
		if slices.ContainsFunc(all, func(other journal.Loaded) bool { return other.RegionKey == key }) {
			continue
		}
		entry := loaded
		entry.RegionKey, entry.BitstreamID = key, one.BitstreamID
		all = append(all, entry)
	}
	return all
}
