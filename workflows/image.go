package workflows

import (
	"github.com/google/uuid"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// load brings an image into an accelerator: found in Glance where it is there, fetched and checked on the host, loaded.
type load struct {
	*operation

	target cyborg.Target
	others []cyborg.Target // that the image disturbs as well
	image  cyborg.Image
	// attempt is what the host's journal knows the steps by: the operation, or a part of it that is about this target alone.
	attempt uuid.UUID
	suffix  string // of the steps' names, where there are several loads

	found    FindImageResult
	staged   StageResult
	result   ProgramResult
	restored ChangeResult
}

// undo brings back the image before.
func (l *load) undo() func(ctx workflow.Context) error {
	putBack := l.undoCall(call{
		activity: RestoreActivity, summary: "bring back the image before",
		input: RestoreInput{Operation: l.attempt, Target: l.target, Others: l.others}, result: &l.restored, limit: l.in.Limits.Program,
	})
	return func(ctx workflow.Context) error {
		if err := putBack(ctx); err != nil {
			return err
		}
		l.observe(&l.restored)
		return nil
	}
}

// find has the image as it is to be loaded: one in Glance has its id and checksum then.
func (l *load) find(ctx workflow.Context) error {
	if l.found.Image = l.image; l.image.InGlance() {
		return l.findImage(ctx, l.target, "find image"+l.suffix, &l.found)
	}
	return nil
}

// run stages the image, which touches nothing yet, and loads it.
func (l *load) run(ctx workflow.Context) error {
	err := l.step(ctx, "stage"+l.suffix, call{
		activity: StageActivity, summary: "fetch and check " + l.image.Source,
		input:  StageInput{Operation: l.attempt, Target: l.target, Image: l.found.Image, Fetch: l.found.Fetch},
		result: &l.staged, limit: l.in.Limits.Stage,
	}, nil)
	if err != nil {
		return err
	}
	if err := l.record(ctx); err != nil {
		return err
	}
	err = l.step(ctx, "program"+l.suffix, call{
		activity: ProgramActivity, summary: "load " + l.found.Image.Source,
		input:  ProgramInput{Operation: l.attempt, Target: l.target, Image: l.found.Image, SHA256: l.staged.SHA256},
		result: &l.result, limit: l.in.Limits.Program,
	}, l.undo())
	if err != nil {
		return err
	}
	l.observe(&ChangeResult{Observation: l.result.Observation})
	return nil
}

// again is the image as it can be loaded again: the same one, whatever its source means by then.
func (l *load) again() cyborg.Image {
	image := l.image
	image.SHA256, image.ID = l.staged.SHA256, l.found.Image.ID
	if id, err := uuid.Parse(image.ID); err == nil && image.InGlance() {
		image.Source = cyborg.GlanceImage(id).Source
	}
	return image
}

// findImage asks Glance, which may be away for a while, for the image, and whether it fits the target.
func (o *operation) findImage(ctx workflow.Context, target cyborg.Target, name string, found *FindImageResult) error {
	limits := o.in.Limits
	o.note(ctx, name, cyborg.StepRunning, "")
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              ConductorQueue,
		StartToCloseTimeout:    limits.Step,
		ScheduleToCloseTimeout: limits.Stage,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: shortestPause, BackoffCoefficient: 2, MaximumInterval: longestPause, MaximumAttempts: limits.Attempts,
		},
		Summary: "find " + found.Image.Source,
	}), FindImageActivity, FindImageInput{
		Operation: o.in.Operation, Target: target, Image: found.Image, Valid: limits.AgentWait + limits.Stage,
	}).Get(ctx, found)
	if err != nil {
		o.note(ctx, name, cyborg.StepFailed, FromFailure(err).Message)
		return err
	}
	o.note(ctx, name, cyborg.StepDone, "image "+found.Image.ID)
	return nil
}

// ImagesPath is where agent endpoints give images; the operation's id follows.
const ImagesPath = "/agent/v1/images/"

// ImageKey is the parameter of the query that has the secret of a one-time URL.
const ImageKey = "key"

// ImageFetch is the path and query of the URL of an image for an operation. The secret stands in the query, which no log
// shows; it has nothing in it to escape.
func ImageFetch(operation uuid.UUID, secret string) string {
	return ImagesPath + operation.String() + "?" + ImageKey + "=" + secret
}
