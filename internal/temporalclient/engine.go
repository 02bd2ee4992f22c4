package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// Engine is the API's access to Temporal: it starts, watches and cancels the
// runs of operations, and asks hosts.
type Engine struct {
	client client.Client
	runs   Runs
	limits workflows.Limits
}

// Runs watches the runs that this process works on; activities/conductor has
// them.
type Runs interface {
	// Watch returns a channel that is closed when this process has begun to work on
	// the operation's run, and one that is closed when it has recorded the
	// operation's end. The caller calls forget when it no longer waits.
	Watch(operation uuid.UUID) (begun, ended <-chan struct{}, forget func())
}

// NewEngine returns an engine. The runs must be those of the conductor worker
// that this process serves on the same client: then most operations run in this
// process, and Wait need not ask Temporal.
func NewEngine(c client.Client, runs Runs, limits workflows.Limits) *Engine {
	return &Engine{client: c, runs: runs, limits: limits}
}

const (
	// localBeginWait is how long a run may take to begin in this process before
	// Temporal is asked as well.
	localBeginWait = 100 * time.Millisecond
	// localEndWait is how long a run that has begun here may take to end here
	// before Temporal is asked as well: another process may have taken it over.
	localEndWait = 2 * time.Second
)

// run is a started run of one operation; it implements workflows.Run.
type run struct {
	workflow client.WorkflowRun

	begun, ended <-chan struct{} // in this process; see Runs
	forget       func()
}

// Wait returns nil when the operation's end is recorded, and an error of kind
// ErrTimeout when ctx ends first. It may be called only once. Where this
// process works on the run, it learns of the end without a request to Temporal.
func (r run) Wait(ctx context.Context) error {
	defer r.forget()
	if within(ctx, localBeginWait, r.begun) && within(ctx, localEndWait, r.ended) {
		return nil
	}

	// Ask Temporal, and go on watching: either may be first. The channel has room
	// for the answer, so that the goroutine ends even where nobody waits for it any
	// more.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	answer := make(chan error, 1)
	go func() { answer <- r.workflow.Get(asking, nil) }()

	select {
	case <-r.ended:
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

// within says whether the channel is closed before the limit is over and before
// ctx ends.
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

// Start starts the run of an admitted operation; see workflows.StartOperation
// for its errors. The watch begins before the run, because a run that starts
// eagerly may be over when StartOperation returns.
func (e *Engine) Start(ctx context.Context, op cyborg.Operation) (workflows.Run, error) {
	begun, ended, forget := e.runs.Watch(op.ID)
	started, err := workflows.StartOperation(ctx, e.client, op, e.limits)
	if err != nil {
		forget()
		return nil, err
	}

	return run{workflow: started, begun: begun, ended: ended, forget: forget}, nil
}

// Cancel asks the operation's run to undo what it has done and to end. Where
// that run is closed, Cancel starts another, as Reconcile would: the run of an
// operation that never began finds in Begin that it is cancelled, and the run
// of one that had begun only undoes.
func (e *Engine) Cancel(ctx context.Context, op cyborg.Operation) error {
	err := e.client.CancelWorkflow(ctx, op.WorkflowID(), op.Run)
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		if op.State == cyborg.OperationRunning {
			_, err = workflows.StartAbandoned(ctx, e.client, op, e.limits)
		} else {
			_, err = workflows.StartOperation(ctx, e.client, op, e.limits)
		}
		return err
	}

	if err != nil {
		return workflows.Unavailable(err)
	}
	return nil
}

// Progress returns how far the operation's present step is, as its agent's last
// heartbeat says; nil where no step runs.
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
		var reported cyborg.Progress
		if err := converter.GetDefaultDataConverter().FromPayloads(details, &reported); err == nil && reported.Step != "" {
			progress = &reported
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

// Ping returns an error of kind ErrUnavailable where Temporal does not answer.
func (e *Engine) Ping(ctx context.Context) error {
	if _, err := e.client.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
		return workflows.Unavailable(err)
	}
	return nil
}
