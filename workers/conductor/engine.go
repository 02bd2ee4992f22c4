package conductor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// Engine is the API's door to Temporal: it starts, watches and cancels the runs of operations, and asks hosts.
type Engine struct {
	client client.Client
	runs   *activities.Runs
	limits workflows.Limits
}

// NewEngine returns an engine on the client that also serves a conductor worker in this process, whose runs those are.
func NewEngine(c client.Client, runs *activities.Runs, limits workflows.Limits) *Engine {
	return &Engine{client: c, runs: runs, limits: limits}
}

const (
	// headStart is how long a run may take to begin in this process before Temporal is asked as well, and patience how
	// long it may take to end here then: another process may have taken over.
	headStart = 100 * time.Millisecond
	patience  = 2 * time.Second
)

// run is the run of one operation.
type run struct {
	of     client.WorkflowRun
	here   *activities.Watch
	forget func()
}

// Wait returns when the operation's end is recorded, or with an error of kind ErrTimeout when ctx ends first. Where this
// process works on the run, it knows that before Temporal could tell, and a question to Temporal is saved.
func (r run) Wait(ctx context.Context) error {
	defer r.forget()
	if within(ctx, headStart, r.here.Begun) && within(ctx, patience, r.here.Ended) {
		return nil
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	answer := make(chan error, 1)
	go func() { answer <- r.of.Get(asking, nil) }()
	select {
	case <-r.here.Ended:
		return nil
	case err := <-answer:
		if err != nil && ctx.Err() != nil {
			return cyborg.Errorf(cyborg.ErrTimeout, "the operation has not ended yet: %w", ctx.Err())
		}
		if err != nil {
			return workflows.FromFailure(err)
		}
		return nil
	}
}

// within says whether the channel is closed in that time.
func within(ctx context.Context, limit time.Duration, closed <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-closed:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// Start starts the run of an admitted operation.
func (e *Engine) Start(ctx context.Context, op cyborg.Operation) (workflows.Run, error) {
	here, forget := e.runs.Watch(op.ID)
	started, err := workflows.StartOperation(ctx, e.client, op, e.limits, false)
	if err != nil {
		forget()
		return nil, err
	}
	return run{of: started, here: here, forget: forget}, nil
}

// Cancel asks the run to undo what it has done and to end. For an operation whose run is gone another one is started: where it
// never began, its first step sees that it is cancelled, and else the run only undoes, as Reconcile would have it.
func (e *Engine) Cancel(ctx context.Context, op cyborg.Operation) error {
	err := e.client.CancelWorkflow(ctx, op.WorkflowID(), "")
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		_, err = workflows.StartOperation(ctx, e.client, op, e.limits, op.State == cyborg.OperationRunning)
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
		progress.Percent, progress.Note = -1, "waits for the agent of "+op.Host
	}
	if failure := step.GetLastFailure(); failure != nil {
		tried := fmt.Sprintf("try %d; last try: %s", step.GetAttempt(), failure.GetMessage())
		progress.Note = strings.TrimPrefix(progress.Note+"; "+tried, "; ")
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
