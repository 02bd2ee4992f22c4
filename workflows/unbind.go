package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// UnbindARQs takes the handles of accelerator requests back once their host
// says that nobody uses them. It fails with kind ErrInUse where somebody does.
// It changes nothing on the host, so a run that was terminated goes forward
// again.
func UnbindARQs(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: unbind})
}

// unbind holds the steps of an unbind: one for each accelerator whose handles
// the operation takes back.
func unbind(ctx workflow.Context, o *operation) error {
	for i, target := range o.work.Targets {
		var handles []cyborg.WorkHandle
		for _, handle := range o.work.Handles {
			if handle.Accelerator == target.Accelerator {
				handles = append(handles, handle)
			}
		}

		if len(handles) == 0 {
			continue
		}

		if err := o.requireUnallocated(ctx, target, handles); err != nil {
			return err
		}

		var result ChangeResult
		err := o.step(ctx, "release "+target.Deployable, call{
			activity: DetachActivity, summary: "release " + target.Deployable,
			input:  &DetachInput{Operation: o.journalID(i, target.Accelerator), Target: target, Handles: handles},
			result: &result, limit: o.in.Limits.Step,
		}, nil)
		if err != nil {
			return err
		}
		o.observe(&result)
	}

	return nil
}
