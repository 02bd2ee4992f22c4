package conductor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// describedAtOnce is how many runs Inspect asks Temporal about at the same
// time. One after the other, a full round would not end within its limit.
const describedAtOnce = 16

// found is what Temporal says about the runs of an operation.
type found struct {
	// open says that the run that has the operation is open, or one that was
	// started in the place of a closed one and has not begun.
	open bool
	// known says that Temporal knows a run.
	known bool
	// cancelDelivered says that the open run knows of a cancel, or need not.
	cancelDelivered bool
	// stray is the id of an open run that does not have the operation, such as that
	// of a reset; empty where there is none.
	stray string
}

// lookAtRuns asks Temporal about the runs of an operation. The run is the one
// that has the operation by the records; empty where it has not begun.
func (a *Activities) lookAtRuns(ctx context.Context, workflowID, run string) (found, error) {
	named, err := a.describe(ctx, workflowID, run)
	if err != nil {
		return found{}, err
	}

	out := found{known: named != nil, open: isOpen(named)}
	if out.open {
		out.cancelDelivered = named.GetWorkflowExtendedInfo().GetCancelRequested() || !workflows.TakesCancel(named.GetWorkflowExecutionInfo())
	}

	if out.open || run == "" {
		return out, nil
	}

	// The operation's run is closed. Somebody may have reset it, so that another
	// run of the same id is open.
	last, err := a.describe(ctx, workflowID, "")
	if err != nil {
		return found{}, err
	}

	info := last.GetWorkflowExecutionInfo()
	switch {
	case !isOpen(last):
	case workflows.Takeover(info, run):
		out.open, out.cancelDelivered = true, true
	default:
		out.stray = info.GetExecution().GetRunId()
	}

	return out, nil
}

// describe asks Temporal for a run, or for the last one where no run is named.
// It returns nil where Temporal knows none.
func (a *Activities) describe(ctx context.Context, workflowID, run string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	answer, err := a.client.DescribeWorkflowExecution(ctx, workflowID, run)
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil, nil //nolint:nilnil // that there is no run is an answer
	}
	if err != nil {
		return nil, workflows.Unavailable(err)
	}
	return answer, nil
}

// isOpen says whether a run has not ended; nil has.
func isOpen(run *workflowservice.DescribeWorkflowExecutionResponse) bool {
	return run.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
}

// lister lists operations after a place.
type lister func(ctx context.Context, after db.OperationPlace, limit int) ([]db.Orphan, error)

// orphanOf says whether an open operation is an orphan: it has no open run, or one
// that was not told of a cancel.
func orphanOf(o db.Orphan, runs found) (workflows.Orphan, bool) {
	orphan := workflows.Orphan{Operation: o.Operation}
	if runs.open {
		orphan.CancelPending = o.Cancelled && !runs.cancelDelivered
		return orphan, orphan.CancelPending
	}

	orphan.Abandoned = abandoned(o.State, runs)
	return orphan, true
}

// unnotifiedBind says whether an ended bind, whose notification is pending, has no
// open run that would send it.
func unnotifiedBind(o db.Orphan, runs found) (workflows.Orphan, bool) {
	return workflows.Orphan{Operation: o.Operation, NotificationPending: true}, !runs.open
}

// abandoned says that something may have to be undone: the operation had a run
// that is closed, or one that was lost together with Temporal's state.
func abandoned(state cyborg.OperationState, runs found) bool {
	return runs.known || state == cyborg.OperationRunning
}

// inspectOperations looks through a list of operations, from the place next on, and
// finds the orphans among them. An operation for which Temporal has no answer does
// not keep the round at its place: it is asked for again when the rounds begin anew.
// The error is non-nil only where the list could not be read, or there was no answer
// at all.
func (a *Activities) inspectOperations(
	ctx context.Context, i *inspecting, next *workflows.OperationPlace, list lister, orphan func(db.Orphan, found) (workflows.Orphan, bool),
) error {
	limit := findingsLimit - i.Looked // of the round, and not of this try
	if limit <= 0 {
		i.end(ctx, func(*workflows.Findings) {})
		return nil
	}

	listed, err := list(ctx, db.OperationPlace(*next), limit)
	if err != nil {
		return err
	}

	var (
		failed int
		last   error
	)
	for some := range slices.Chunk(listed, describedAtOnce) {
		answers, errs := a.lookAtRunsOf(ctx, some)
		if ctx.Err() != nil {
			return workflows.Unavailable(ctx.Err())
		}

		var orphans []workflows.Orphan
		for n, o := range some {
			if errs[n] != nil {
				failed, last = failed+1, errs[n]
			} else if one, ok := orphan(o, answers[n]); ok {
				orphans = append(orphans, one)
			}
		}

		i.change(ctx, func(reached *workflows.Inspection) {
			reached.Found.Orphans = append(reached.Found.Orphans, orphans...)
			reached.Looked += len(some)
			*next = workflows.OperationPlace(some[len(some)-1].Place)
		})
	}

	if failed > 0 && failed == len(listed) {
		return last
	}
	if failed > 0 {
		a.log.WarnContext(ctx, "Temporal did not say of all operations whether they have an open run",
			slog.Int("operations", failed), slog.String("error", last.Error()))
	}

	i.end(ctx, func(*workflows.Findings) {
		if len(listed) < limit {
			*next = workflows.OperationPlace{}
		}
	})
	return nil
}

// lookAtRunsOf asks Temporal about the runs of some operations, of all at once. One
// that has no answer does not keep the others from theirs.
func (a *Activities) lookAtRunsOf(ctx context.Context, some []db.Orphan) ([]found, []error) {
	answers, errs := make([]found, len(some)), make([]error, len(some))

	var all sync.WaitGroup
	for n, o := range some {
		op := cyborg.Operation{ID: o.Operation, Kind: o.Kind}
		all.Go(func() { answers[n], errs[n] = a.lookAtRuns(ctx, op.WorkflowID(), o.Run) })
	}
	all.Wait()

	return answers, errs
}

// Adopt is the activity that sees to each orphan. It looks again before it
// acts: since the inspection, the run may have begun or the operation ended. An
// orphan whose run cannot be started does not stop the others: the activity
// fails only if nothing could be done for any.
func (a *Activities) Adopt(ctx context.Context, in workflows.AdoptInput) (workflows.AdoptResult, error) {
	var (
		out  workflows.AdoptResult
		errs []error
	)
	defer heartbeat(ctx)()

	for _, orphan := range in.Orphans {
		if err := a.adopt(ctx, orphan, in.Limits, &out); err != nil {
			errs = append(errs, fmt.Errorf("operation %s: %w", orphan.Operation, err))
		}
	}

	if len(errs) == len(in.Orphans) { // another attempt repeats nothing that was done
		return out, workflows.ToFailure(errors.Join(errs...))
	}

	for _, err := range errs {
		out.Failed = append(out.Failed, err.Error())
	}
	return out, nil
}

// adopt sees to one orphan, unless it no longer is one, and counts what it did.
func (a *Activities) adopt(ctx context.Context, orphan workflows.Orphan, limits workflows.Limits, done *workflows.AdoptResult) error {
	op, err := a.store.Operation(ctx, orphan.Operation)
	if err != nil || op.State.Ended() != orphan.NotificationPending {
		return err
	}

	runs, err := a.lookAtRuns(ctx, op.WorkflowID(), op.Run)
	if err != nil {
		return err
	}

	if runs.open {
		if op.State.Ended() || op.CancelAt.IsZero() || runs.cancelDelivered {
			return nil
		}
		return a.deliverCancel(ctx, op, done)
	}

	if runs.stray != "" {
		if err := a.terminateStray(ctx, op, runs.stray, done); cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
			return nil // it has got that run, or another one, since it was read
		} else if err != nil {
			return err
		}
	}

	switch {
	case orphan.NotificationPending:
		_, err = workflows.StartNotification(ctx, a.client, op)
	case abandoned(op.State, runs):
		_, err = workflows.StartAbandoned(ctx, a.client, op, limits)
	default:
		_, err = workflows.StartOperation(ctx, a.client, op, limits)
	}
	if err != nil {
		return err
	}

	done.Started++
	a.log.WarnContext(ctx, "started a run for an orphaned operation", slog.String("operation_id", op.ID.String()),
		slog.Bool("abandoned", abandoned(op.State, runs)), slog.Bool("notification_pending", orphan.NotificationPending))
	return nil
}

// deliverCancel tells a run that its operation is to be cancelled, and the history
// that the run had missed it. The API had recorded the cancel, and did not reach
// Temporal.
func (a *Activities) deliverCancel(ctx context.Context, op cyborg.Operation, done *workflows.AdoptResult) error {
	err := a.store.RecordLateCancel(ctx, db.Run{Operation: op.ID, ID: op.Run})
	if cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
		return nil // it has ended, or has another run; the next round sees which
	}
	if err != nil {
		return err
	}

	err = a.client.CancelWorkflow(ctx, op.WorkflowID(), op.Run)
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil // it has just ended; the next round sees how
	}
	if err != nil {
		return workflows.Unavailable(err)
	}

	done.Cancelled++
	a.log.WarnContext(ctx, "told a run of a cancel that it had missed", slog.String("operation_id", op.ID.String()))
	return nil
}

// terminateStray ends a run that does not have its operation, so that one that
// may take the operation over can be started under the same workflow id. The history
// tells it. The error is of kind ErrChanged where the operation may be that run's by
// now.
func (a *Activities) terminateStray(ctx context.Context, op cyborg.Operation, stray string, done *workflows.AdoptResult) error {
	if err := a.store.RecordStrayRun(ctx, db.Run{Operation: op.ID, ID: op.Run}, stray); err != nil {
		return err
	}

	follows := "undoes what it did"
	if op.State.Ended() {
		follows = "notifies Nova of its end"
	}

	err := a.client.TerminateWorkflow(ctx, op.WorkflowID(), stray, "the operation belongs to run "+op.Run+", which was closed; another run "+follows)
	if _, missing := errors.AsType[*serviceerror.NotFound](err); err != nil && !missing {
		return workflows.Unavailable(err)
	}

	done.Terminated++
	a.log.WarnContext(ctx, "terminated a run that does not have its operation", slog.String("operation_id", op.ID.String()),
		slog.String("run_id", stray), slog.String("run_of_operation", op.Run))
	return nil
}
