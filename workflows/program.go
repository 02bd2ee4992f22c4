package workflows

import (
	"github.com/google/uuid"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Program loads an image into an accelerator. What the image disturbs is claimed and fenced before the first step and
// unfenced with the last; where the image cannot be loaded the one before it comes back, or else the accelerator stays
// fenced, in error.
func Program(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, program)
}

func program(ctx workflow.Context, o *operation) error {
	l := load{operation: o, target: o.target(), others: o.work.Targets[1:], image: o.work.Program.Image, attempt: o.in.Operation}
	if o.in.Abandoned {
		return o.abandon("program", l.undo())
	}
	if err := o.fence(ctx); err != nil {
		return err
	}
	if err := l.find(ctx); err != nil {
		return err
	}
	if err := l.run(ctx); err != nil {
		return err
	}
	o.outcome.BitstreamID = l.result.BitstreamID
	o.outcome.Images = map[uuid.UUID]cyborg.Image{l.target.Accelerator: l.again()}
	o.outcome.Result = map[string]any{"bitstream_id": l.result.BitstreamID, "sha256": l.staged.SHA256, "size": l.staged.Size}
	if l.found.Function != "" {
		o.outcome.Result["function_id"] = l.found.Function
	}
	return nil
}
