package workflows

import (
	"go.temporal.io/sdk/workflow"
)

// Program loads an image into an accelerator. What the image disturbs is claimed and fenced before the first step and
// unfenced with the last; where the image cannot be loaded the one before it comes back, or else the accelerator stays
// fenced, in error.
func Program(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, program)
}

func program(ctx workflow.Context, o *operation) error {
	var (
		staged    StageResult
		result    ProgramResult
		restored  ChangeResult
		image     = o.work.Program.Image
		operation = o.in.Operation
	)
	putBack := o.undoCall(call{
		activity: RestoreActivity, summary: "bring back the image before",
		input: RestoreInput{Operation: operation, Target: o.target()}, result: &restored, limit: o.in.Limits.Program,
	})
	restore := func(ctx workflow.Context) error {
		if err := putBack(ctx); err != nil {
			return err
		}
		o.observe(&restored)
		return nil
	}
	if o.in.Abandoned {
		return o.abandon("program", restore)
	}
	err := o.step(ctx, "stage", call{
		activity: StageActivity, summary: "fetch and check " + image.Source,
		input: StageInput{Operation: operation, Target: o.target(), Image: image}, result: &staged, limit: o.in.Limits.Stage,
	}, nil)
	if err != nil {
		return err
	}
	if err := o.record(ctx); err != nil {
		return err
	}
	err = o.step(ctx, "program", call{
		activity: ProgramActivity, summary: "load " + image.Source,
		input:  ProgramInput{Operation: operation, Target: o.target(), Image: image, SHA256: staged.SHA256},
		result: &result, limit: o.in.Limits.Program,
	}, restore)
	if err != nil {
		return err
	}
	o.observe(&ChangeResult{Observation: result.Observation})
	o.outcome.BitstreamID = result.BitstreamID
	o.outcome.Result = map[string]any{"bitstream_id": result.BitstreamID, "sha256": staged.SHA256, "size": staged.Size}
	return nil
}
