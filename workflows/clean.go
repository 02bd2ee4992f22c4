package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// CleanHandles has the host clean the unclean handles of an accelerator, one after the
// other, also where one of them fails. Nothing has to be undone: nobody has them, and nobody
// gets one before its host has said that it is clean. What was cleaned stays so.
//
// A run that was terminated only ends. The next operation goes on where this one was,
// because the host knows how far it came.
func CleanHandles(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: clean})
}

// clean holds the steps of a clean, one for each handle. There is none where somebody has
// declared the handles clean.
func clean(ctx workflow.Context, o *operation) error {
	inputs := cleanInputs(o.work)
	if o.in.Abandoned && len(inputs) > 0 {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; what it had not cleaned stays unclean").
			WithHint("A conductor cleans it again.")
	}

	var failed error
	cleaned := map[string]cyborg.Evidence{}
	for _, input := range inputs {
		var result CleanResult
		err := o.step(ctx, "clean "+input.Handle.Identity, call{
			activity: CleanActivity, summary: "clean " + input.Handle.Identity + " (" + string(input.Handle.Method) + ")",
			input:  input,
			result: &result, limit: o.in.Limits.Clean,
		}, nil)

		switch {
		case err == nil:
			cleaned[input.Handle.Identity] = result.Evidence
			o.outcome.Result = cyborg.JSONObject{"cleaned": cleaned}
			o.outcome.Cleaned = append(o.outcome.Cleaned, cyborg.CleanedHandle{UUID: input.Handle.UUID, Evidence: result.Evidence})
			o.observe(&ChangeResult{Observation: result.Observation})
		case ctx.Err() != nil, o.superseded != nil, FromFailure(err).Kind == cyborg.ErrHostSilent:
			return err
		case failed == nil: // one that cannot be cleaned keeps none of the others unclean
			failed = err
		}
	}
	return failed
}

// permittedClean is PermittedBy for a clean.
func permittedClean(work cyborg.Work) []Permitted {
	var out []Permitted
	for _, input := range cleanInputs(work) {
		out = append(out, Permitted{CleanActivity, input})
	}
	return out
}

// cleanInputs are the inputs of the steps of a clean.
func cleanInputs(work cyborg.Work) []*CleanInput {
	var out []*CleanInput
	for _, handle := range work.Clean {
		out = append(out, &CleanInput{Operation: work.Operation, Target: work.Targets[0], Handle: handle})
	}
	return out
}
