package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Retire takes an accelerator out of service: its driver uninstalls it, and
// then it is inactive. It changes nothing and fails with kind ErrInUse while
// one of its handles is in use on the host, or while Placement has the
// accelerator allocated to a consumer. A run that was terminated goes forward
// again instead of undoing.
func Retire(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: retire, remedy: remedyInstall})
}

// retire holds the steps of a retire.
func retire(ctx workflow.Context, o *operation) error {
	var result, undoResult ChangeResult
	input, undoInput := installInput(o.work, false), installInput(o.work, true)

	install := o.undoCall(call{
		activity: InstallActivity, summary: "install " + o.target().Deployable + " again",
		input: undoInput, result: &undoResult, limit: o.in.Limits.Step,
	})

	// What the host does not show cannot be installed, and would not be when it comes
	// back.
	installAgain := func(ctx workflow.Context) error {
		err := install(ctx)
		if err == nil && !undoResult.changed() {
			err = cyborg.Errorf(cyborg.ErrHardware, "host %s does not show %s, which may be uninstalled", o.work.Host, o.target().Deployable)
		}
		return err
	}

	// An abandoned run goes on where Placement refuses: its earlier run may have
	// uninstalled the accelerator already.
	if err := o.fence(ctx); err != nil && !o.in.Abandoned {
		return err
	}

	err := o.step(ctx, "uninstall", call{
		activity: UninstallActivity, summary: "uninstall " + o.target().Deployable,
		input: input, result: &result, limit: o.in.Limits.Step,
	}, installAgain)
	if err != nil {
		return err
	}

	o.uninstalled(&result)
	o.observe(&result)
	return nil
}

// permittedRetire is PermittedBy for a retire.
func permittedRetire(work cyborg.Work) []Permitted {
	return []Permitted{{UninstallActivity, installInput(work, false)}, {InstallActivity, installInput(work, true)}}
}
