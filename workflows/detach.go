package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Detach takes handles back from their holders. It changes nothing and fails
// with kind ErrInUse while one of them is really in use on the host, or while
// Placement has the accelerator allocated to the instance that holds it.
//
// A run that was terminated goes forward again instead of undoing: afterwards
// each handle is either back or still with its holder. A forced detach does
// nothing on the host; Reconcile has the host settle the handles when its agent
// is heard again.
func Detach(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: detach, remedy: remedyHandle})
}

// detach holds the steps of a detach.
func detach(ctx workflow.Context, o *operation) error {
	if o.work.Forced != "" {
		o.reportForced()
		return nil
	}

	// An abandoned run has to go forward: its agent may have detached already,
	// whatever Placement has allocated.
	if err := o.requireUnallocated(ctx, o.target(), o.work.Handles); err != nil && !o.in.Abandoned {
		return err
	}

	var result ChangeResult
	err := o.step(ctx, "detach", call{
		activity: DetachActivity, summary: "detach " + o.target().Deployable,
		input:  detachInput(o.work),
		result: &result, limit: o.in.Limits.Step,
	}, o.attachAgain(detachInput(o.work)))
	if err != nil {
		return err
	}
	o.observe(&result)
	return nil
}

// reportForced puts into the result what a forced detach did not do on the
// host.
func (o *operation) reportForced() {
	notDone := []string{}

	for _, handle := range o.work.Handles {
		omitted := "nobody checked whether it is still used"
		if handle.OnHost() {
			omitted = "it was not detached"
		}

		notDone = append(notDone, fmt.Sprintf("handle %s of %s %s on host %s: %s",
			handle.Identity, handle.Holder.Kind, handle.Holder.ID, o.work.Host, omitted))
	}

	o.outcome.Result = map[string]any{"forced": o.work.Forced, "not_done": notDone}
}

// attachAgain returns the undo of a step that takes handles back. Only those were
// touched that the driver attaches; the others were only checked. It is nil where
// there are none of the former.
func (o *operation) attachAgain(detach *DetachInput) func(ctx workflow.Context) error {
	inputs := attachAgainInputs(detach)
	if len(inputs) == 0 {
		return nil
	}

	return func(ctx workflow.Context) error {
		for _, input := range inputs {
			again := o.undoCall(call{
				activity: AttachActivity, summary: "attach " + input.Handle.Identity + " again",
				input:  input,
				result: new(ChangeResult), limit: o.in.Limits.Step,
			})

			if err := again(ctx); err != nil {
				return err
			}
		}

		return nil
	}
}

// permittedDetach is PermittedBy for a detach.
func permittedDetach(work cyborg.Work) []Permitted {
	if work.Forced != "" {
		return nil
	}

	return permittedTakingBack(detachInput(work))
}

// permittedTakingBack lists a step that takes handles back, and its undo.
func permittedTakingBack(detach *DetachInput) []Permitted {
	out := []Permitted{{DetachActivity, detach}}
	for _, again := range attachAgainInputs(detach) {
		out = append(out, Permitted{AttachActivity, again})
	}
	return out
}

// attachAgainInputs are the inputs of the undo of a step that takes handles back.
func attachAgainInputs(detach *DetachInput) []*AttachInput {
	var out []*AttachInput
	for _, handle := range detach.Handles {
		if handle.OnHost() {
			out = append(out, &AttachInput{Operation: detach.Operation, Target: detach.Target, Handle: handle, Undo: true})
		}
	}
	return out
}

// detachInput is the input of a detach.
func detachInput(work cyborg.Work) *DetachInput {
	return &DetachInput{Operation: work.Operation, Target: work.Targets[0], Handles: work.Handles}
}
