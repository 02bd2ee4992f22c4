package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Detach takes handles back from their holders. It changes nothing and fails with kind ErrInUse while one of them is
// really in use on the host, or its holder is an instance that has it allocated in Placement. A run that was terminated goes forward again: each handle is then either back, or still
// with its holder. By force it does nothing on the host, which has to settle that when it is heard again.
func Detach(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, detach)
}

func detach(ctx workflow.Context, o *operation) error {
	if o.work.Forced != "" {
		o.forced()
		return nil
	}
	if err := o.unallocated(ctx, o.target(), o.work.Handles); err != nil && !o.in.Abandoned {
		return err
	}
	var result ChangeResult
	err := o.step(ctx, "detach", call{
		activity: DetachActivity, summary: "detach " + o.target().Deployable,
		input:  DetachInput{Operation: o.in.Operation, Target: o.target(), Handles: o.work.Handles},
		result: &result, limit: o.in.Limits.Step,
	}, o.attachAgain)
	if err != nil {
		return err
	}
	o.observe(&result)
	return nil
}

// forced tells what the records say from here on, and what was not done for it.
func (o *operation) forced() {
	undone := []string{}
	for _, handle := range o.work.Handles {
		what := "nobody looked whether it is still used"
		if handle.Holder.Kind == cyborg.HolderHost {
			what = "it was not detached"
		}
		undone = append(undone, fmt.Sprintf("handle %s of %s %s on host %s: %s",
			handle.Identity, handle.Holder.Kind, handle.Holder.ID, o.work.Host, what))
	}
	o.outcome.Result = map[string]any{"forced": o.work.Forced, "not_done": undone}
}

// attachAgain undoes a detach that got stuck on the way.
func (o *operation) attachAgain(ctx workflow.Context) error {
	for _, handle := range o.work.Handles {
		if handle.Holder.Kind != cyborg.HolderHost {
			continue
		}
		var undone ChangeResult
		again := o.undoCall(call{
			activity: AttachActivity, summary: "attach " + handle.Identity + " again",
			input:  AttachInput{Operation: o.in.Operation, Target: o.target(), Handle: handle, Undo: true},
			result: &undone, limit: o.in.Limits.Step,
		})
		if err := again(ctx); err != nil {
			return err
		}
	}
	return nil
}
