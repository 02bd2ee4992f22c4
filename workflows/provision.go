package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyInstall is the remedy where nobody knows whether an accelerator is
// installed.
const remedyInstall = "The accelerator is in error. Look at its host, then make it ready again, or retire it."

// Provision takes an inactive accelerator into service: its driver installs and
// verifies it, and then it is ready. The undo uninstalls it.
func Provision(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: provision, remedy: remedyInstall})
}

// provision holds the one step of a provision.
func provision(ctx workflow.Context, o *operation) error {
	var result, undoResult ChangeResult
	input, undoInput := installInput(o.work, false), installInput(o.work, true)

	undoInstall := o.undoCall(call{
		activity: UninstallActivity, summary: "uninstall " + o.target().Deployable,
		input: undoInput, result: &undoResult, limit: o.in.Limits.Step,
	})
	uninstall := func(ctx workflow.Context) error {
		err := undoInstall(ctx)
		if err == nil {
			o.uninstalled(&undoResult)
		}
		return err
	}

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

// uninstalled keeps whether the accelerator was uninstalled. An agent also answers
// without an error where the accelerator is not there: somebody has pulled the
// card, and may put it back as it was.
func (o *operation) uninstalled(result *ChangeResult) {
	changed := result.changed()
	o.outcome.Uninstalled = &changed
}

// changed says that the agent has found the accelerator, and done what it was
// asked for: it then looks at the device afterwards.
func (r *ChangeResult) changed() bool { return r.Observation.Sequence > 0 }

// permittedProvision is PermittedBy for a provision.
func permittedProvision(work cyborg.Work) []Permitted {
	return []Permitted{{InstallActivity, installInput(work, false)}, {UninstallActivity, installInput(work, true)}}
}

// installInput is the input of an install or an uninstall.
func installInput(work cyborg.Work, undo bool) *InstallInput {
	return &InstallInput{Operation: work.Operation, Target: work.Targets[0], Undo: undo}
}
