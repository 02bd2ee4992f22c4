package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Detach takes handles back from their holders. It changes nothing and fails with kind InUse while one of them is
// really in use on the host. A run that was terminated goes forward again: each handle is then either back, or still
// with its holder.
func Detach(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, detach)
}

func detach(ctx workflow.Context, o *operation) error {
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

// attachAgain undoes a detach that got stuck on the way.
func (o *operation) attachAgain(ctx workflow.Context) error {
	for _, handle := range o.work.Handles {
		if handle.Holder.Kind != cyborg.HolderHost {
			continue
		}
		var undone ChangeResult
		again := o.undoCall(call{
			activity: AttachActivity, summary: "attach " + handle.Identity + " again",
			input:  AttachInput{Operation: o.in.Operation, Target: o.target(), Handle: handle},
			result: &undone, limit: o.in.Limits.Step,
		})
		if err := again(ctx); err != nil {
			return err
		}
	}
	return nil
}
