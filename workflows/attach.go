package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyHandle is the remedy where nobody knows whether a handle is attached,
// which is cyborg.DoubtHandle.
const remedyHandle = "The accelerator is in error. Reconcile settles it when its host answers; where that fails, detach it by force."

// Attach gives a handle of an accelerator to a holder. For a holder of kind
// host the driver makes the handle usable on that host. An instance or a service
// gets the handle as it is, because a hypervisor does the rest: the host only
// makes sure that nobody uses it.
func Attach(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: attach, remedy: remedyHandle})
}

// attach holds the steps of an attach: one call to the agent for each handle
// that goes to the host itself, and one for those of others.
func attach(ctx workflow.Context, o *operation) error {
	if o.in.Abandoned && len(o.work.Given) > 0 {
		return terminated().WithHint("Retry the operation.")
	}
	if err := o.checkUse(ctx); err != nil {
		return err
	}

	for _, handle := range o.work.Handles {
		if handle.Holder.Kind != cyborg.HolderHost {
			continue
		}

		var result, undoResult ChangeResult
		detach := o.undoCall(call{
			activity: DetachActivity, summary: "take back " + handle.Identity,
			input:  takeBackInput(o.work, handle),
			result: &undoResult, limit: o.in.Limits.Step,
		})

		name := "attach " + handle.Identity
		if o.in.Abandoned {
			return o.abandon(name, detach)
		}

		err := o.step(ctx, name, call{
			activity: AttachActivity, summary: "attach " + handle.Identity + " to the host",
			input:  attachInput(o.work, handle, false),
			result: &result, limit: o.in.Limits.Step,
		}, detach)
		if err != nil {
			return err
		}
		o.observe(&result)
	}

	return nil
}

// permittedAttach is PermittedBy for an attach.
func permittedAttach(work cyborg.Work) []Permitted {
	var out []Permitted
	for _, handle := range work.Handles {
		if handle.Holder.Kind == cyborg.HolderHost {
			out = append(out, Permitted{AttachActivity, attachInput(work, handle, false)}, Permitted{DetachActivity, takeBackInput(work, handle)})
		}
	}
	return out
}

// attachInput is the input of an attach of one handle.
func attachInput(work cyborg.Work, handle cyborg.WorkHandle, undo bool) *AttachInput {
	return &AttachInput{Operation: work.Operation, Target: work.Targets[0], Handle: handle, Undo: undo}
}

// takeBackInput is the input of the undo of an attach.
func takeBackInput(work cyborg.Work, handle cyborg.WorkHandle) *DetachInput {
	return &DetachInput{Operation: work.Operation, Target: work.Targets[0], Handles: []cyborg.WorkHandle{handle}, Undo: true}
}
