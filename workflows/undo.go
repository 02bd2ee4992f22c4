package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// undo is the compensation of one step. Its run must be safe to repeat, and
// right where the step never began.
type undo struct {
	step string
	run  func(ctx workflow.Context) error
}

// compensate runs the undos in reverse order and returns the messages of those
// that failed. One that fails does not keep the others from running. Its
// context is detached because most undos run after a cancel.
func (o *operation) compensate(ctx workflow.Context) []string {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var failures []string

	for _, u := range slices.Backward(o.undos) {
		o.note(ctx, "undo "+u.step, cyborg.StepRunning, "")
		if err := u.run(ctx); err != nil {
			message := FromFailure(err).Message
			o.note(ctx, "undo "+u.step, cyborg.StepFailed, message)
			failures = append(failures, message)
			continue
		}

		o.note(ctx, "undo "+u.step, cyborg.StepDone, "")
	}
	return failures
}

// undoCall returns an undo that is one call to the agent. What the agent sees of the
// device afterwards is observed, because a report of before the undo would otherwise
// count as newer: its journal says that the host still has what was undone.
func (o *operation) undoCall(c call) func(ctx workflow.Context) error {
	c.undoing = true
	send := o.undoTries(c)

	return func(ctx workflow.Context) error {
		if err := send(ctx); err != nil {
			return err
		}
		if seen, ok := c.result.(*ChangeResult); ok {
			o.observe(seen)
		}
		return nil
	}
}

// undoTries repeats a call until Limits.Undo is over, and Limits.Attempts times in
// any case, also while the agent is away: an accelerator whose undo fails ends in
// error and needs an operator. Each try is sent to the agent that the host has then,
// because a boot of the host gives it another.
func (o *operation) undoTries(c call) func(ctx workflow.Context) error {
	options := o.options(c)

	return func(ctx workflow.Context) error {
		if !fenced(ctx) {
			return o.undoByTemporal(ctx, c, options)
		}

		options.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 1}
		var ends time.Time

		for try, pause := int32(1), shortestPause; ; try, pause = try+1, min(2*pause, longestUndoPause) {
			err := o.check(ctx)
			if o.superseded != nil || isNotFound(err) {
				return err
			}

			if ends.IsZero() { // the time begins when the records have answered; they may have been away
				ends = workflow.Now(ctx).Add(o.in.Limits.Undo)
			}

			if err == nil {
				options.ScheduleToStartTimeout = max(ends.Sub(workflow.Now(ctx)), o.in.Limits.AgentWait)
				err = o.send(ctx, options, c)
				if err == nil || !retryable(err) {
					return o.explain(ctx, c, err)
				}
			}

			// Conductors may have been away for the rest of the time, so some tries are made
			// in any case.
			if try >= o.in.Limits.Attempts && !workflow.Now(ctx).Add(pause).Before(ends) {
				return o.explain(ctx, c, err)
			}
			if err := workflow.Sleep(ctx, pause); err != nil {
				return err
			}
		}
	}
}

// longestUndoPause is the longest pause between two tries of an undo. It keeps
// the history of a run within Temporal's limits, which may undo for a day.
const longestUndoPause = time.Minute

// isNotFound says that the records do not know what they were asked about, such
// as an operation that a restore of the database has taken away.
func isNotFound(err error) bool {
	failure := FromFailure(err)
	return failure != nil && failure.Kind == cyborg.ErrNotFound
}

// undoByTemporal is the undo of a run that release 0.1 began: Temporal repeats
// the call.
func (o *operation) undoByTemporal(ctx workflow.Context, c call, options workflow.ActivityOptions) error {
	options.ScheduleToStartTimeout = o.in.Limits.Undo
	options.ScheduleToCloseTimeout = o.in.Limits.Undo + c.limit
	options.RetryPolicy = &temporal.RetryPolicy{
		InitialInterval: shortestPause, BackoffCoefficient: 2, MaximumInterval: longestPause,
	}
	return o.explain(ctx, c, o.send(ctx, options, c))
}

// abandon is for the run that follows a terminated one: it adds the undo of the
// step that may have run, and returns the error that makes the operation undo
// it and end as cancelled.
func (o *operation) abandon(step string, run func(ctx workflow.Context) error) error {
	o.undos = append(o.undos, undo{step: step, run: run})
	return terminated().WithHint("Retry the operation.")
}

// terminated is the error of an operation whose run somebody has terminated, and
// that is undone.
func terminated() *cyborg.Error {
	return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; what it had done is undone")
}
