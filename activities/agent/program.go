package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// programNote is what the journal keeps of a program step: the state of what
// the image disturbs, from before the image.
type programNote struct {
	// BitstreamIDs are the ids of the images that were loaded last, as the hardware read
	// them back, whether or not they were in effect; by the name of the disturbed
	// deployable.
	BitstreamIDs map[string]string `json:"bitstream_ids"`
	// Images are the images that this agent had loaded into the disturbed regions
	// and that were still there.
	Images []journal.Loaded `json:"images"`
}

// regionOf names the region that one image fills: the deployables of a device
// with the same program set, or one deployable alone.
func regionOf(backend string, device cyborg.DeviceReport, deployable cyborg.DeployableReport) journal.RegionKey {
	region := "deployable " + deployable.Name
	if deployable.ProgramSet != "" {
		region = "set " + deployable.ProgramSet
	}
	return journal.RegionKey{Backend: backend, Device: device.Identity, Region: region}
}

// disturbed lists the deployables whose content an image for the target
// replaces. The target itself is one of them.
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

// rememberBefore describes what the disturbed deployables hold before the image
// is loaded. It reads the last look at the device and the journal, not the
// hardware.
func (a *Activities) rememberBefore(found inventory.Found, wholeDevice bool) programNote {
	note := programNote{BitstreamIDs: map[string]string{}}
	asked := map[journal.RegionKey]bool{}

	for _, one := range disturbed(found, wholeDevice) {
		note.BitstreamIDs[one.Name] = one.LoadedLast()

		key := regionOf(found.Backend, found.Device, one)
		if asked[key] {
			continue
		}
		asked[key] = true

		// Somebody else may have programmed the region since, or exchanged the card; then
		// our image is not what was there.
		if loaded, known := a.Journal.Loaded(key); known && loaded.Of(found.Device.Fingerprint) && loaded.BitstreamID == one.LoadedLast() {
			note.Images = append(note.Images, loaded)
		}
	}

	return note
}

// program loads the staged image and reads back what the hardware holds then.
// The journal gets the content from before the image first, because restore
// needs it and the image destroys it.
func (a *Activities) program(ctx context.Context, t *try, in workflows.ProgramInput) (workflows.ProgramResult, error) {
	var result workflows.ProgramResult
	unlock, err := a.lock(ctx, in.Addressee, in.Target, workflows.ProgramActivity, in.Operation)
	if err != nil {
		return result, err
	}
	defer unlock()

	s, done, err := a.stepOf(in.Operation, workflows.ProgramActivity, &result)
	if done || err != nil {
		return result, err
	}

	found, err := a.planProgram(ctx, t, in)
	if err != nil {
		if s.begun {
			err = uncertain(err)
		}
		return result, err
	}

	// A late image must not replace what a later operation has done to a neighbour
	// either.
	var subjects []journal.Subject
	for _, one := range disturbed(found, in.Image.WholeDevice) {
		subjects = append(subjects, journal.Subject{Backend: found.Backend, Deployable: one.Name})
	}
	if err := a.Journal.Raise(in.Assignment, subjects...); err != nil {
		return result, err
	}

	image, err := a.stagedImage(ctx, in)
	if err != nil {
		if s.begun {
			err = uncertain(err)
		}
		return result, err
	}

	note, err := a.beginProgram(&s, found, in.Image.WholeDevice)
	if err != nil {
		return result, err
	}

	programmer, err := programmerOf(found)
	if err != nil {
		return result, err
	}

	in.Image.SHA256 = image.SHA256
	request := drivers.ProgramRequest{Target: found.Target, Path: image.Path, Image: in.Image, Progress: t.heartbeat.setProgress}
	if err := t.guarded("program", func() error { return programmer.Program(ctx, request) }); err != nil {
		err = a.showOther(ctx, t, found, err)
		if ctx.Err() == nil && isRefusal(err) {
			err = a.refusedProgram(ctx, t, s, in, note, err)
		}
		return result, err
	}

	return finish(ctx, a, s, found, func(seen cyborg.Observation) (workflows.ProgramResult, journal.Change, error) {
		return recordProgram(in, found, seen)
	})
}

// recordProgram makes the result and the journal's change from what the device
// shows after the image was loaded.
func recordProgram(
	in workflows.ProgramInput, found inventory.Found, seen cyborg.Observation,
) (result workflows.ProgramResult, change journal.Change, err error) {
	if err := sameCard(found, seen); err != nil {
		return result, change, err
	}

	result.Observation = seen
	for _, one := range seen.Device.Deployables {
		if one.Name == found.Deployable.Name {
			// Some hardware cannot tell the id of its image. The image's own id then stands
			// for it, or else its checksum.
			result.BitstreamID, result.Pending = cmp.Or(one.LoadedLast(), in.Image.ID, in.SHA256), one.PendingImage
		}
	}

	if result.BitstreamID == "" {
		return result, change, cyborg.Errorf(cyborg.ErrHardware, "%s is gone after the image was loaded", found.Deployable.Name)
	}

	was := found.Device.Fingerprint
	found.Device = seen.Device
	found.Device.Fingerprint = was.Learn(seen.Device.Fingerprint) // the card may sleep again
	change.DropStaged = []uuid.UUID{in.Operation}
	change.Loaded = loadedInto(found, journal.Loaded{
		Deployable: found.Deployable.Name, SHA256: in.SHA256, ImageID: in.Image.ID,
		WholeDevice: in.Image.WholeDevice, Operation: in.Operation,
	})

	return result, change, nil
}

// stagedImage returns the image that was staged for the operation. The checksum in
// the input is what this agent has answered, and Temporal has carried it: another
// image that is on this host must not be loaded in its place.
//
// The error is of kind ErrNotStaged where the host does not have the image any more.
// The workflow may then have it staged again, if no earlier try has begun: such a try
// may have loaded the image, and nobody would know any more what was there before it.
func (a *Activities) stagedImage(ctx context.Context, in workflows.ProgramInput) (images.Image, error) {
	staged, ok := a.Journal.Staged(in.Operation)
	if !ok {
		return images.Image{}, cyborg.Errorf(cyborg.ErrNotStaged, "the agent has lost its journal since the image for %s was staged, or is another agent",
			in.Target.Deployable).
			WithHint("Make sure that the agent's state directory is on a disk that survives a reboot, and that nobody empties it. Then program again.")
	}

	if staged.SHA256 != in.SHA256 {
		return images.Image{}, cyborg.Errorf(cyborg.ErrImageRejected, "the image to load has the checksum %.80q, and the one that was staged for operation %s has %s",
			in.SHA256, in.Operation, staged.SHA256)
	}

	image, err := a.Images.Get(ctx, staged.SHA256)
	if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
		return image, cyborg.Errorf(cyborg.ErrNotStaged, "%w, although it was staged for %s", err, in.Target.Deployable).
			WithHint("Make sure that nobody removes the files in the agent's state directory. Then program again.")
	}
	return image, err
}

// planProgram finds what to program, and refuses what must not be programmed. It
// changes nothing.
func (a *Activities) planProgram(ctx context.Context, t *try, in workflows.ProgramInput) (inventory.Found, error) {
	// Look at the hardware first: the journal keeps what it holds now, for a
	// restore.
	found, err := a.findToChange(ctx, in.Target, lookFirst)
	if err != nil {
		return found, err
	}

	if _, err := programmerOf(found); err != nil {
		return found, err
	}
	return found, a.checkDisturbed(ctx, t, found, in.Image.WholeDevice)
}

// checkDisturbed refuses an image that would change a deployable on which the
// host lives, or which somebody uses. The user may be the holder whose image is
// loaded again, but even it must not run on the device meanwhile.
func (a *Activities) checkDisturbed(ctx context.Context, t *try, found inventory.Found, wholeDevice bool) error {
	for _, one := range disturbed(found, wholeDevice) {
		if one.Protected != "" {
			return cyborg.Errorf(cyborg.ErrProtected,
				"an image for %s would change %s, which is not touched, because the host lives on it: %s", found.Deployable.Name, one.Name, one.Protected)
		}

		part := found
		part.Deployable = one

		for _, handle := range one.Handles {
			if err := a.checkUnused(ctx, t, part, handle); err != nil {
				return cyborg.Errorf(cyborg.ErrorKindOf(err), "an image for %s would change %s: %w", found.Deployable.Name, handle.Identity, err).
					WithHint("Stop its user first.")
			}
		}
	}

	return nil
}

// beginProgram writes the content from before the image into the journal, and
// returns it. A later try keeps what the first one wrote: by then the old
// content may be gone. The regions' entries are dropped in the same write,
// since the journal cannot know any more what they hold.
func (a *Activities) beginProgram(s *step, found inventory.Found, wholeDevice bool) (programNote, error) {
	var note programNote
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
	// The step lists the images itself, so that the image cache keeps them for the
	// undo.
	for _, loaded := range note.Images {
		s.prior.Images = append(s.prior.Images, loaded.SHA256)
	}

	change := journal.Change{Steps: []journal.Step{s.at(journal.Started)}}
	for _, one := range disturbed(found, wholeDevice) {
		change.DropLoaded = append(change.DropLoaded, regionOf(found.Backend, found.Device, one))
	}

	return note, a.Journal.Write(change)
}

// refusedProgram returns the error of an image that the driver refused. The
// workflow does not undo a refused step, so this makes sure that nothing has
// changed; if that is not certain, the error says so and is not a refusal.
func (a *Activities) refusedProgram(
	ctx context.Context, t *try, s step, in workflows.ProgramInput, note programNote, cause error,
) error {
	if s.begun {
		return uncertain(cause)
	}

	observation, err := a.Inventory.Observe(ctx, in.Target.Backend, in.Target.Device, nil)
	if err != nil || len(differences(observation.Device, note)) > 0 {
		return uncertain(cause)
	}

	change := journal.Change{DropSteps: []journal.StepKey{s.key}, DropStaged: []uuid.UUID{in.Operation}, Loaded: note.Images}
	if err := a.Journal.Write(change); err != nil {
		t.log.WarnContext(ctx, "a refused program step stays in the journal", "error", err)
		return uncertain(cause)
	}

	return cause
}

// loadedInto returns the journal entries for an image that was loaded into the
// target: one for each region that it changed.
func loadedInto(found inventory.Found, loaded journal.Loaded) []journal.Loaded {
	var all []journal.Loaded
	for _, one := range disturbed(found, loaded.WholeDevice) {
		key := regionOf(found.Backend, found.Device, one)
		if slices.ContainsFunc(all, func(other journal.Loaded) bool { return other.RegionKey == key }) {
			continue
		}

		entry := loaded
		entry.RegionKey, entry.BitstreamID, entry.Fingerprint = key, one.LoadedLast(), journal.Fingerprint(found.Device.Fingerprint)
		all = append(all, entry)
	}

	return all
}
