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
// makes sure that nobody uses it. Where the accelerator has a preparation, its
// driver prepares the handle for them as well.
func Attach(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: attach, remedy: remedyHandle})
}

// attach holds the steps of an attach: one call to the agent that looks who uses
// the handles of others than the host, and one for each handle that its driver
// attaches.
func attach(ctx workflow.Context, o *operation) error {
	if !o.in.Abandoned {
		if err := o.checkUse(ctx); err != nil {
			return err
		}
	}

	if err := o.attachHandles(ctx, attachInputs(o.work)); err != nil {
		return err
	}

	// Nobody knows whether the terminated run has seen the host's answer. Without
	// either of the two, it is an operation of release 0.1 that asks its host nothing.
	if o.in.Abandoned && len(o.work.Given)+len(o.undos) > 0 {
		return terminated().WithHint("Retry the operation.")
	}
	return nil
}

// permittedAttach is PermittedBy for an attach.
func permittedAttach(work cyborg.Work) []Permitted { return permittedAttaches(attachInputs(work)) }

// attachInputs are the inputs of the steps of an attach.
func attachInputs(work cyborg.Work) []*AttachInput {
	var out []*AttachInput
	for _, handle := range work.Handles {
		if handle.OnHost() {
			out = append(out, &AttachInput{Operation: work.Operation, Target: work.Targets[0], Handle: handle})
		}
	}
	return out
}

// attachHandles has the host attach handles, one after the other. Of an abandoned
// operation it only adds the undos.
func (o *operation) attachHandles(ctx workflow.Context, inputs []*AttachInput) error {
	for _, input := range inputs {
		handle := input.Handle
		takeBack := o.undoCall(call{
			activity: DetachActivity, summary: "take back " + handle.Identity,
			input:  takeBackInput(input),
			result: new(ChangeResult), limit: o.in.Limits.Step,
		})

		name, holder := "attach "+handle.Identity, "to the host"
		if handle.Holder.Kind != cyborg.HolderHost {
			holder = "for " + handle.Holder.String()
		}
		if o.in.Abandoned {
			o.undos = append(o.undos, undo{step: name, run: takeBack})
			continue
		}

		var result ChangeResult
		err := o.step(ctx, name, call{
			activity: AttachActivity, summary: name + " " + holder,
			input:  input,
			result: &result, limit: o.in.Limits.Step,
		}, takeBack)
		if err != nil {
			return err
		}
		o.observe(&result)
	}

	return nil
}

// permittedAttaches lists what attachHandles may do.
func permittedAttaches(inputs []*AttachInput) []Permitted {
	var out []Permitted
	for _, input := range inputs {
		out = append(out, Permitted{AttachActivity, input}, Permitted{DetachActivity, takeBackInput(input)})
	}
	return out
}

// takeBackInput is the input of the undo of an attach.
func takeBackInput(attach *AttachInput) *DetachInput {
	return &DetachInput{Operation: attach.Operation, Target: attach.Target, Handles: []cyborg.WorkHandle{attach.Handle}, Undo: true}
}
