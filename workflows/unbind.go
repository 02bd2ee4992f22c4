package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// UnbindARQs takes the handles of accelerator requests back once their host
// says that nobody uses them. It fails with kind ErrInUse where somebody does.
// The host detaches those that it has prepared, and attaches them again where the
// unbind fails. A run that was terminated goes forward again.
func UnbindARQs(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: unbind, remedy: remedyPrepared})
}

// unbind holds the steps of an unbind: one for each accelerator whose handles
// the operation takes back.
func unbind(ctx workflow.Context, o *operation) error {
	for _, input := range releases(o.work) {
		target := input.Target
		again := o.attachAgain(input)

		// As in a detach, the agent may have detached already what an abandoned run finds.
		if err := o.requireUnallocated(ctx, target, input.Handles); err != nil && !(o.in.Abandoned && again != nil) {
			return err
		}

		var result ChangeResult
		err := o.step(ctx, "release "+target.Deployable, call{
			activity: DetachActivity, summary: "release " + target.Deployable,
			input:  input,
			result: &result, limit: o.in.Limits.Step,
		}, again)
		if err != nil {
			return err
		}
		o.observe(&result)
	}

	return nil
}

// permittedUnbind is PermittedBy for an unbind.
func permittedUnbind(work cyborg.Work) []Permitted {
	var out []Permitted
	for _, input := range releases(work) {
		out = append(out, permittedTakingBack(input)...)
	}
	return out
}

// releases are the inputs of the steps of an unbind: one for each accelerator
// whose handles it takes back.
func releases(work cyborg.Work) []*DetachInput {
	var out []*DetachInput
	for i, target := range work.Targets {
		input := &DetachInput{Operation: journalID(work, i, target.Accelerator), Target: target}
		for _, handle := range work.Handles {
			if handle.Accelerator == target.Accelerator {
				input.Handles = append(input.Handles, handle)
			}
		}

		if len(input.Handles) > 0 {
			out = append(out, input)
		}
	}
	return out
}
