package workflows

import (
	"github.com/google/uuid"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// load brings one image into one accelerator: it finds the image in Glance,
// where it comes from there, has the host fetch and check it, and has it
// loaded. Program has one load, a bind one for each accelerator that needs an
// image.
type load struct {
	*operation
	loadWork

	// suffix ends the names of the steps where the operation has several loads, so
	// that they differ.
	suffix string

	// The results of the steps, in their order.
	found  FindImageResult
	staged StageResult
	result ProgramResult
}

// loadWork is what one load has to do, as it follows from the work of its
// operation.
type loadWork struct {
	into      cyborg.Target
	disturbed []cyborg.Target // the other targets that the image disturbs as well
	image     cyborg.Image    // as it was asked for
	found     cyborg.Image    // in Glance; the zero value where nobody has looked yet
	// journalID is the id of the steps in the host's journal: the operation's, or
	// one of this target alone.
	journalID uuid.UUID
}

// permitted lists what PermittedBy does for one load. What the host may do with
// an image of Glance is permitted once it was found; see FindImageInput.Permitted.
func (l loadWork) permitted(operation uuid.UUID) []Permitted {
	out := []Permitted{{RestoreActivity, l.restoreInput()}}
	if l.image.InGlance() {
		out = append(out, Permitted{FindImageActivity, l.findInput(operation)})
		if l.found == (cyborg.Image{}) {
			return out
		}

		fetch := ImageFetch(operation, ImageName(operation, l.into.Accelerator))
		return append(out, permittedWith(l.journalID, l.into, l.found, fetch)...)
	}
	return append(out, permittedWith(l.journalID, l.into, l.image, "")...)
}

// permittedWith lists what the host may do with an image whose source is known.
func permittedWith(journalID uuid.UUID, target cyborg.Target, image cyborg.Image, fetch string) []Permitted {
	return []Permitted{
		{StageActivity, &StageInput{Operation: journalID, Target: target, Image: image, Fetch: fetch}},
		{ProgramActivity, &ProgramInput{Operation: journalID, Target: target, Image: image}},
	}
}

// findInput is the input of the search for the image.
func (l loadWork) findInput(operation uuid.UUID) FindImageInput {
	return FindImageInput{Operation: operation, JournalID: l.journalID, Target: l.into, Image: l.image}
}

// restoreInput is the input of the undo.
func (l loadWork) restoreInput() *RestoreInput {
	return &RestoreInput{Operation: l.journalID, Target: l.into, Disturbed: l.disturbed}
}

// undo returns the undo of run: it loads the image that the target had before.
func (l *load) undo() func(ctx workflow.Context) error {
	return l.undoCall(call{
		activity: RestoreActivity, summary: "bring back the image before",
		input: l.restoreInput(), result: new(ChangeResult), limit: l.in.Limits.Program,
	})
}

// find sets found.Image to the image to load. An image in Glance gets its id
// and checksum there; any other stays as it was asked for.
func (l *load) find(ctx workflow.Context) error {
	l.found.Image = l.image
	if !l.image.InGlance() {
		return nil
	}
	return l.findImage(ctx, l.findInput(l.in.Operation), "find image"+l.suffix, &l.found)
}

// run stages the image and loads it. Where the host does not have the staged image
// any more, because it has lost its journal or has another agent meanwhile, the image
// is found and staged again. That is for a load of which no attempt may have begun:
// any other is undone.
func (l *load) run(ctx workflow.Context) error {
	for try := int32(1); ; try++ {
		undos := len(l.undos)
		err := l.stageAndProgram(ctx)
		if err == nil {
			l.observe(&ChangeResult{Observation: l.result.Observation})
			return nil
		}

		mayHaveBegun := len(l.undos) > undos
		if mayHaveBegun || try >= l.in.Limits.Attempts || FromFailure(err).Kind != cyborg.ErrNotStaged || ctx.Err() != nil {
			return err
		}

		if err := l.find(ctx); err != nil {
			return err
		}
	}
}

// stageAndProgram is one try of run. Staging touches no hardware, so it has no undo.
func (l *load) stageAndProgram(ctx workflow.Context) error {
	err := l.step(ctx, "stage"+l.suffix, call{
		activity: StageActivity, summary: "fetch and check " + cyborg.ShowSource(l.image.Source),
		input:  &StageInput{Operation: l.journalID, Target: l.into, Image: l.found.Image, Fetch: l.found.Fetch},
		result: &l.staged, limit: l.in.Limits.Stage,
	}, nil)
	if err != nil {
		return err
	}

	if err := l.record(ctx); err != nil {
		return err
	}

	return l.step(ctx, "program"+l.suffix, call{
		activity: ProgramActivity, summary: "load " + cyborg.ShowSource(l.found.Image.Source),
		input:  &ProgramInput{Operation: l.journalID, Target: l.into, Image: l.found.Image, SHA256: l.staged.SHA256},
		result: &l.result, limit: l.in.Limits.Program,
	}, l.undo())
}

// reloadable returns the image in a form that loads exactly the same one later:
// with its checksum, and by its id instead of a function, which may name
// another image by then.
func (l *load) reloadable() cyborg.Image {
	image := l.image
	image.SHA256, image.ID = l.staged.SHA256, l.found.Image.ID
	if id, err := uuid.Parse(image.ID); err == nil && image.InGlance() {
		image.Source = cyborg.GlanceImage(id).Source
	}
	return image
}

// findImage looks the image up in Glance and checks that it fits the target.
// Glance may be away for a while, so the attempts go on until Limits.Attempts
// or Limits.Stage is reached. The URL in the answer stays valid for as long as
// the host may need to begin to fetch.
func (o *operation) findImage(ctx workflow.Context, input FindImageInput, name string, found *FindImageResult) error {
	limits := o.in.Limits
	input.Valid, input.Grant = limits.AgentWait+limits.Stage, o.work.Grant
	o.note(ctx, name, cyborg.StepRunning, "")

	o.checked = false // the answer may take its time
	err := repeat{within: limits.Stage, attempts: limits.Attempts, shortest: shortestPause, longest: longestPause}.run(ctx, workflow.ActivityOptions{
		TaskQueue:           ConductorQueue,
		StartToCloseTimeout: limits.Step,
		Summary:             "find " + cyborg.ShowSource(input.Image.Source),
	}, FindImageActivity, input, found)
	if err != nil {
		o.notice(err)
		o.note(ctx, name, cyborg.StepFailed, FromFailure(err).Message)
		return err
	}

	o.work.Grant = found.Grant
	o.note(ctx, name, cyborg.StepDone, "image "+found.Image.ID)
	return nil
}

// ImagesPath is the path under which agent endpoints serve images; the
// operation's id follows it.
const ImagesPath = "/agent/v1/images/"

// ImageKey is the query parameter that names one of the operation's images.
const ImageKey = "key"

// ImageName names the image that the operation loads into the accelerator. It
// is no secret. Release 0.1 had a secret in its place.
func ImageName(operation, accelerator uuid.UUID) string {
	return uuid.NewSHA1(operation, accelerator[:]).String()
}

// ImageFetch returns the path and query at which agent endpoints serve one of
// the operation's images. The key must consist of characters that need no
// escaping in a URL.
func ImageFetch(operation uuid.UUID, key string) string {
	return ImagesPath + operation.String() + "?" + ImageKey + "=" + key
}
