package conductor

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// Engine is the API's door to Temporal: it starts, watches and cancels the runs of operations, and asks hosts.
type Engine struct {
	client client.Client
	limits workflows.Limits
}

// NewEngine returns an engine on the client that also serves a conductor worker in this process.
func NewEngine(c client.Client, limits workflows.Limits) *Engine {
	return &Engine{client: c, limits: limits}
}

// run is the run of one operation.
type run struct{ of client.WorkflowRun }

// Wait returns when the run has ended, or with an error of kind Timeout when ctx ends first.
func (r run) Wait(ctx context.Context) (workflows.OperationResult, error) {
	var out workflows.OperationResult
	err := r.of.Get(ctx, &out)
	if err != nil && ctx.Err() != nil {
		return out, cyborg.Errorf(cyborg.Timeout, "the operation has not ended yet: %w", ctx.Err())
	}
	if err != nil {
		return out, workflows.FromFailure(err)
	}
	return out, nil
}

// Start starts the run of an admitted operation.
func (e *Engine) Start(ctx context.Context, op cyborg.Operation) (workflows.Run, error) {
	started, err := workflows.StartOperation(ctx, e.client, op, e.limits, false)
	return run{of: started}, err
}

// Cancel asks the run to undo what it has done and to end. An operation without a run ends when Reconcile starts one:
// its first step sees that it is cancelled.
func (e *Engine) Cancel(ctx context.Context, op cyborg.Operation) error {
	err := e.client.CancelWorkflow(ctx, op.WorkflowID(), "")
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		_, err = workflows.StartOperation(ctx, e.client, op, e.limits, false)
		return err
	}
	if err != nil {
		return workflows.Unavailable(err)
	}
	return nil
}

// Progress returns how far the operation's present step is, as its agent last said; nil where no step runs.
func (e *Engine) Progress(ctx context.Context, op cyborg.Operation) (*cyborg.Progress, error) {
	answer, err := e.client.DescribeWorkflowExecution(ctx, op.WorkflowID(), "")
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil, nil //nolint:nilnil // no run, no progress: nothing is wrong
	}
	if err != nil {
		return nil, workflows.Unavailable(err)
	}
	pending := answer.GetPendingActivities()
	if len(pending) == 0 {
		return nil, nil //nolint:nilnil // between two steps
	}
	step := pending[0]
	progress := &cyborg.Progress{Step: step.GetActivityType().GetName(), Percent: -1}
	if details := step.GetHeartbeatDetails(); details != nil {
		var told cyborg.Progress
		if err := converter.GetDefaultDataConverter().FromPayloads(details, &told); err == nil && told.Step != "" {
			progress = &told
		}
	}
	if step.GetState() == enumspb.PENDING_ACTIVITY_STATE_SCHEDULED {
		progress.Note = "waits for the agent of " + op.Host
		if failure := step.GetLastFailure(); failure != nil {
			progress.Note += "; last try: " + failure.GetMessage()
		}
	}
	return progress, nil
}

// Ping says whether Temporal answers.
func (e *Engine) Ping(ctx context.Context) error {
	if _, err := e.client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return workflows.Unavailable(err)
	}
	return nil
}
