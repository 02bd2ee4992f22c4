package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Configure installs, updates or uninstalls a driver's backend on a host while
// its agent runs. It has nothing to undo: when the new backend does not work,
// the agent keeps the old one.
func Configure(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: configure})
}

// configure holds the one step of a configure, and puts the backend's state
// into the result.
func configure(ctx workflow.Context, o *operation) error {
	var result ConfigureResult
	request := *o.work.Configure

	err := o.step(ctx, string(request.Action), call{
		activity: ConfigureActivity, summary: string(request.Action) + " " + request.Backend,
		input: configureInput(o.work), result: &result, limit: o.in.Limits.Step,
	}, nil)
	if err != nil {
		return err
	}

	o.outcome.Result = map[string]any{
		"state": string(result.State), "error": result.Error, "services": result.Services, "devices": result.Devices,
	}
	return nil
}

// permittedConfigure is PermittedBy for a configure.
func permittedConfigure(work cyborg.Work) []Permitted {
	return []Permitted{{ConfigureActivity, configureInput(work)}}
}

// configureInput is the input of a configure.
func configureInput(work cyborg.Work) *ConfigureInput {
	return &ConfigureInput{Operation: work.Operation, Request: *work.Configure}
}
