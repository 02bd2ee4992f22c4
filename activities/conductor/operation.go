package conductor

import (
	"context"
	"log/slog"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// Begin is the activity that moves an admitted operation to running, together
// with the first change of its kind. If the operation has ended already, Begin
// makes one attempt to notify Nova. Work.Notify lists the requests that Nova
// still has to be notified of.
func (a *Activities) Begin(ctx context.Context, in workflows.BeginInput) (cyborg.Work, error) {
	a.runs.notify(in.Operation, func(w *watch) { w.begun() })

	run := runOf(ctx, in.Operation)
	run.Replaces = in.Replaces

	work, err := a.store.Begin(ctx, run)
	if err != nil {
		return work, workflows.ToFailure(err)
	}

	work.Placement = a.cloud.Placement != nil
	if a.cloud.Nova == nil {
		work.Notify = nil
	}

	if work.Ended != "" {
		a.ended(ctx, cyborg.Outcome{Operation: in.Operation, State: work.Ended})
		work.Notify = a.notifyAtOnce(ctx, in.Operation, work.Notify)
		return work, nil
	}

	return work, workflows.ToFailure(a.signWork(ctx, &work))
}

// runOf returns the run that has called this activity, as Temporal names it.
// The workflow is not asked for its run: a run that was reset goes on with the
// recorded answers of the run before, and would name that one.
func runOf(ctx context.Context, operation uuid.UUID) db.Run {
	return db.Run{Operation: operation, ID: activity.GetInfo(ctx).WorkflowExecution.RunID}
}

// requireOwner makes sure that the calling run still has its operation. An
// activity that asks a service of OpenStack begins each attempt with it:
// Temporal can make an attempt long after the run has asked, also for a run
// that was reset since. An input of release 0.1 may not name its operation;
// its attempt goes on without the question, except where it could have an instance
// rebooted (ownRescue finds the operation by the run then).
func (a *Activities) requireOwner(ctx context.Context, operation uuid.UUID) error {
	_, err := a.addresseeOf(ctx, operation)
	return err
}

// addresseeOf is requireOwner, and returns what the run's next step has to carry.
func (a *Activities) addresseeOf(ctx context.Context, operation uuid.UUID) (db.Addressee, error) {
	if operation == uuid.Nil {
		return db.Addressee{}, nil
	}

	to, err := a.store.CheckRun(ctx, runOf(ctx, operation))
	return to, workflows.ToFailure(err)
}

// CheckRun is the activity that asks whether the calling run still has its
// operation, before it sends a step, and what that step has to carry.
func (a *Activities) CheckRun(ctx context.Context, in workflows.CheckRunInput) (workflows.CheckRunResult, error) {
	check := a.store.CheckRun
	if in.Late {
		check = a.store.Renumber
	}

	to, err := check(ctx, runOf(ctx, in.Operation))
	if err != nil {
		return workflows.CheckRunResult{}, workflows.ToFailure(err)
	}
	return a.next(ctx, in.Operation, in.Grant, to)
}

// next returns what the next step of an operation has to carry.
func (a *Activities) next(ctx context.Context, operation uuid.UUID, earlier string, to db.Addressee) (workflows.CheckRunResult, error) {
	signed, err := a.signAgain(ctx, operation, earlier, to)
	return workflows.CheckRunResult{Agent: to.Agent, Assignment: to.Assignment, Grant: signed}, workflows.ToFailure(err)
}

// Record is the activity that writes the steps of a running operation to the
// records, where the API reads them. It returns what the next step has to carry.
func (a *Activities) Record(ctx context.Context, in workflows.RecordInput) (workflows.CheckRunResult, error) {
	to, err := a.store.Record(ctx, runOf(ctx, in.Operation), in.Steps)
	if err != nil {
		return workflows.CheckRunResult{}, workflows.ToFailure(err)
	}
	return a.next(ctx, in.Operation, in.Grant, to)
}

// End is the activity that records the outcome of an operation and releases its
// claims. It then makes one attempt to notify Nova of the requests that the
// outcome names.
func (a *Activities) End(ctx context.Context, outcome cyborg.Outcome) (workflows.EndResult, error) {
	if err := a.store.End(ctx, runOf(ctx, outcome.Operation), outcome); err != nil {
		return workflows.EndResult{}, workflows.ToFailure(err)
	}

	a.ended(ctx, outcome)
	if a.cloud.Nova == nil || len(outcome.Notify) == 0 {
		return workflows.EndResult{}, nil
	}

	left := a.notifyAtOnce(ctx, outcome.Operation, outcome.Notify)
	return workflows.EndResult{Notified: len(left) == 0}, nil
}

// ended notifies whoever waits in this process for the operation, and logs the
// outcome.
func (a *Activities) ended(ctx context.Context, outcome cyborg.Outcome) {
	a.runs.notify(outcome.Operation, func(w *watch) { w.ended() })

	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("operation_id", outcome.Operation.String()), slog.String("state", string(outcome.State)),
	}

	if outcome.Error != nil {
		level = outcome.Error.Kind.LogLevel()
		attrs = append(attrs, slog.String("kind", string(outcome.Error.Kind)), slog.String("error", outcome.Error.Message))
	}

	a.log.LogAttrs(ctx, level, "operation ended", attrs...)
}

// LastSeen is the activity that returns when the agent of a host was last
// heard, and whether it has a slot left.
func (a *Activities) LastSeen(ctx context.Context, in workflows.LastSeenInput) (workflows.LastSeenResult, error) {
	heard, err := a.store.LastSeen(ctx, in.Host)
	return workflows.LastSeenResult{At: heard.At, Busy: heard.Busy, Revoked: heard.Revoked}, workflows.ToFailure(err)
}
