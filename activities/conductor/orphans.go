package conductor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/sync/errgroup"

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

// orphans returns those open operations of a state, after a place, that have no
// open run, or one that was not told of a cancel. It also returns the last
// place that it has looked at: the zero place where no operation comes after
// it.
func (a *Activities) orphans(ctx context.Context, state cyborg.OperationState, olderThan time.Duration, after workflows.OperationPlace) ([]workflows.Orphan, workflows.OperationPlace, error) {
	open, err := a.store.Orphans(ctx, state, olderThan, db.OperationPlace(after), findingsLimit)
	if err != nil {
		return nil, workflows.OperationPlace{}, err
	}

	return a.orphansOf(ctx, open, after, func(o db.Orphan, runs found) (workflows.Orphan, bool) {
		orphan := workflows.Orphan{Operation: o.Operation}
		switch {
		case runs.open:
			orphan.CancelPending = o.Cancelled && !runs.cancelDelivered
			return orphan, orphan.CancelPending
		default:
			orphan.Abandoned = abandoned(o.State, runs)
			return orphan, true
		}
	})
}

// abandoned says that something may have to be undone: the operation had a run
// that is closed, or one that was lost together with Temporal's state.
func abandoned(state cyborg.OperationState, runs found) bool {
	return runs.known || state == cyborg.OperationRunning
}

// unnotifiedBinds returns the ended binds, after a place, whose notification is
// pending and that have no open run. It also returns the last place, as orphans
// does.
func (a *Activities) unnotifiedBinds(ctx context.Context, endedFor time.Duration, after workflows.OperationPlace) ([]workflows.Orphan, workflows.OperationPlace, error) {
	binds, err := a.store.UnnotifiedBinds(ctx, endedFor, db.OperationPlace(after), findingsLimit)
	if err != nil {
		return nil, workflows.OperationPlace{}, err
	}

	return a.orphansOf(ctx, binds, after, func(o db.Orphan, runs found) (workflows.Orphan, bool) {
		return workflows.Orphan{Operation: o.Operation, NotificationPending: true}, !runs.open
	})
}

// orphansOf asks Temporal for the runs of the listed operations, several at
// once, and returns the orphans among them. It also returns where the next
// round goes on. An operation for which Temporal has no answer does not keep the
// round at its place: it is asked for again when the rounds begin anew. The
// error is non-nil only where there was no answer at all.
func (a *Activities) orphansOf(
	ctx context.Context, listed []db.Orphan, after workflows.OperationPlace, orphan func(db.Orphan, found) (workflows.Orphan, bool),
) ([]workflows.Orphan, workflows.OperationPlace, error) {
	answers, errs := make([]found, len(listed)), make([]error, len(listed))

	var all errgroup.Group
	all.SetLimit(describedAtOnce)
	for i, o := range listed {
		op := cyborg.Operation{ID: o.Operation, Kind: o.Kind}
		all.Go(func() error {
			answers[i], errs[i] = a.lookAtRuns(ctx, op.WorkflowID(), o.Run)
			return nil // one that has no answer does not keep the others from theirs
		})
	}
	_ = all.Wait() // errs has the errors

	var (
		out    []workflows.Orphan
		next   workflows.OperationPlace
		failed int
		last   error
	)
	for i, o := range listed {
		if errs[i] != nil {
			failed, last = failed+1, errs[i]
		} else if one, ok := orphan(o, answers[i]); ok {
			out = append(out, one)
		}
	}

	if failed > 0 {
		if failed == len(listed) {
			return nil, after, last
		}
		a.log.WarnContext(ctx, "Temporal did not say of all operations whether they have an open run",
			slog.Int("operations", failed), slog.String("error", last.Error()))
	}

	if len(listed) == findingsLimit {
		next = workflows.OperationPlace(listed[len(listed)-1].Place)
	}
	return out, next, nil
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
		// The operation may have got that run since it was read.
		if now, err := a.store.Operation(ctx, op.ID); err != nil || now.Run != op.Run {
			return err
		}
		if err := a.terminateStray(ctx, op, runs.stray, done); err != nil {
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

// deliverCancel tells a run that its operation is to be cancelled. The API had
// recorded that, and did not reach Temporal.
func (a *Activities) deliverCancel(ctx context.Context, op cyborg.Operation, done *workflows.AdoptResult) error {
	err := a.client.CancelWorkflow(ctx, op.WorkflowID(), op.Run)
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
// may take the operation over can be started under the same workflow id.
func (a *Activities) terminateStray(ctx context.Context, op cyborg.Operation, stray string, done *workflows.AdoptResult) error {
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
