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
	}, o.attachAgain)
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
		if handle.Holder.Kind == cyborg.HolderHost {
			omitted = "it was not detached"
		}

		notDone = append(notDone, fmt.Sprintf("handle %s of %s %s on host %s: %s",
			handle.Identity, handle.Holder.Kind, handle.Holder.ID, o.work.Host, omitted))
	}

	o.outcome.Result = map[string]any{"forced": o.work.Forced, "not_done": notDone}
}

// attachAgain undoes a detach that failed half way. Only handles of the host
// itself were touched; those of instances were only checked.
func (o *operation) attachAgain(ctx workflow.Context) error {
	for _, handle := range o.work.Handles {
		if handle.Holder.Kind != cyborg.HolderHost {
			continue
		}

		var undoResult ChangeResult
		again := o.undoCall(call{
			activity: AttachActivity, summary: "attach " + handle.Identity + " again",
			input:  attachInput(o.work, handle, true),
			result: &undoResult, limit: o.in.Limits.Step,
		})

		if err := again(ctx); err != nil {
			return err
		}
	}

	return nil
}

// permittedDetach is PermittedBy for a detach.
func permittedDetach(work cyborg.Work) []Permitted {
	if work.Forced != "" {
		return nil
	}

	out := []Permitted{{DetachActivity, detachInput(work)}}
	for _, handle := range work.Handles {
		if handle.Holder.Kind == cyborg.HolderHost {
			out = append(out, Permitted{AttachActivity, attachInput(work, handle, true)})
		}
	}
	return out
}

// detachInput is the input of a detach.
func detachInput(work cyborg.Work) *DetachInput {
	return &DetachInput{Operation: work.Operation, Target: work.Targets[0], Handles: work.Handles}
}
