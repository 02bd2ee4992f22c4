package workflows

import (
	"github.com/google/uuid"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyImage is the remedy where nobody knows what image is loaded.
const remedyImage = "The accelerator is in error. Program it with an image that works, or make it ready again."

// Program loads an image into an accelerator. All accelerators that the image
// disturbs are claimed from the admission, and fenced from Begin, both until
// End. Where the image cannot be loaded, the previous one is loaded again.
// Where that fails too, the accelerators stay fenced and in error.
func Program(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: program, remedy: remedyImage})
}

// program holds the steps of a program. The first target gets the image; the
// others are those that it disturbs.
func program(ctx workflow.Context, o *operation) error {
	l := load{operation: o, loadWork: programLoad(o.work)}

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

	if l.result.Pending == nil {
		o.outcome.BitstreamID = l.result.BitstreamID // the observation tells of a pending one
	}
	o.outcome.Images = map[uuid.UUID]cyborg.Image{l.into.Accelerator: l.reloadable()}
	o.outcome.Result = map[string]any{"bitstream_id": l.result.BitstreamID, "sha256": l.staged.SHA256, "size": l.staged.Size}
	if pending := l.result.Pending; pending != nil {
		o.outcome.Result["pending"] = pending.Until
	}
	if l.found.Function != "" {
		o.outcome.Result["function_id"] = l.found.Function
	}
	return nil
}

// permittedProgram is PermittedBy for a program.
func permittedProgram(work cyborg.Work) []Permitted {
	return programLoad(work).permitted(work.Operation)
}

// programLoad is the one load of a program. A run of release 0.1 has the whole
// source of the image in its history.
func programLoad(work cyborg.Work) loadWork {
	return loadWork{
		into: work.Targets[0], disturbed: work.Targets[1:], image: work.Program.Image.WithoutQuery(), journalID: work.Operation,
		found: work.Found[work.Targets[0].Accelerator],
	}
}
