package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Provision takes an inactive accelerator into service: its driver installs and verifies it, and it is ready.
func Provision(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, provision)
}

func provision(ctx workflow.Context, o *operation) error {
	var result, undone ChangeResult
	input := InstallInput{Operation: o.in.Operation, Target: o.target()}
	undo := input
	undo.Undo = true
	uninstall := o.undoCall(call{
		activity: UninstallActivity, summary: "uninstall " + o.target().Deployable,
		input: undo, result: &undone, limit: o.in.Limits.Step,
	})
	if o.in.Abandoned {
		return o.abandon("install", uninstall)
	}
	err := o.step(ctx, "install", call{
		activity: InstallActivity, summary: "install " + o.target().Deployable,
		input: input, result: &result, limit: o.in.Limits.Step,
	}, uninstall)
	if err != nil {
		return err
	}
	o.observe(&result)
	return nil
}

// abandon leaves only the undo to do, for a run that was terminated before it could.
func (o *operation) abandon(step string, run func(ctx workflow.Context) error) error {
	o.undos = append(o.undos, undo{step: step, run: run})
	return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; what it had done is undone").
		WithHint("Retry the operation.")
}
