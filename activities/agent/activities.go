// Package agent holds the activities that run on a host: the steps that
// workflows ask of its hardware. Each is written so that it may be repeated
// after its agent died at any point: the journal says what an earlier try
// already did.
//
// It imports drivers, the journal, the packages below this one and, from
// workflows, only names and inputs; never the database, Placement or a cloud's API.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// Journal is the part of the agent's journal that the activities use. It is
// implemented by journal.Journal and documented there.
type Journal interface {
	BootID() string
	Write(change journal.Change) error
	Step(key journal.StepKey) (journal.Step, bool)
	Attachment(key journal.AttachmentKey) (journal.Attachment, bool)
	Attachments() []journal.Attachment
	Cleaning(key journal.AttachmentKey) (journal.Cleaning, bool)
	Cleanings() []journal.Cleaning
	Layout(key journal.DeviceKey) (journal.Layout, bool)
	Layouts() []journal.Layout
	Loaded(key journal.RegionKey) (journal.Loaded, bool)
	Staged(operation uuid.UUID) (journal.Staged, bool)
	Lost(attachment journal.Attachment) bool
	Raise(number int64, subjects ...journal.Subject) error
	KeepRaised() error
	Ready(position journal.Position) bool
	Forgot() journal.Position
}

// Reporter sends inventory reports to the conductor.
type Reporter interface {
	// Report sends what the inventory knows now, and returns when the conductor has
	// acknowledged it.
	Report(ctx context.Context) (agentapi.Report, agentapi.ReportReply, error)
}

// Activities are the activities of one host. The exported fields are set before
// All is called and not changed afterwards.
type Activities struct {
	Inventory *inventory.Inventory
	Journal   Journal
	Images    *images.Store
	Reporter  Reporter
	Log       *slog.Logger
	// UsageTimeout limits how long a census waits for the drivers.
	UsageTimeout time.Duration
	// Instance is this agent, as its reports name it. A step for another agent of
	// the host is refused.
	Instance string
	// Grants returns what the conductor has said last about who signs steps.
	Grants func() agentapi.Grants
	// Uptime returns for how long the host has been up, as it tells the conductor;
	// nil where it does not.
	Uptime func() time.Duration
	// Nova is the file with this host's Nova whitelist; its directory is empty
	// where the host has none.
	Nova novaconf.File
	// Allowed are the kinds of work that this host allows, of those in Kinds; nil
	// means all.
	Allowed []cyborg.OperationKind
	// Ended, where set, is called after each activity with the kind of its error
	// ("" for success) and its duration.
	Ended func(name string, kind cyborg.ErrorKind, took time.Duration)
	// Now returns the time of day; nil means time.Now.
	Now func() time.Time

	// running counts the tries that run at this moment.
	running atomic.Int64
	// whitelist is held while Nova's whitelist file is read and replaced. The
	// device locks do not cover that file, and two operations may write it at the
	// same time.
	whitelist sync.Mutex
}

// now is the time of day by the configured clock.
func (a *Activities) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// Running returns how many tries run at this moment.
func (a *Activities) Running() int { return int(a.running.Load()) }

// All returns the activities by the name under which a worker registers them.
func (a *Activities) All() map[string]any {
	return map[string]any{
		workflows.InstallActivity:   serve(a, workflows.InstallActivity, finishes, a.install),
		workflows.UninstallActivity: serve(a, workflows.UninstallActivity, finishes, a.uninstall),
		workflows.AttachActivity:    serve(a, workflows.AttachActivity, finishes, a.attach),
		workflows.DetachActivity:    serve(a, workflows.DetachActivity, finishes, a.detach),
		workflows.StageActivity:     serve(a, workflows.StageActivity, yields, a.stage),
		workflows.ProgramActivity:   serve(a, workflows.ProgramActivity, finishes, a.program),
		workflows.RestoreActivity:   serve(a, workflows.RestoreActivity, finishes, a.restore),
		workflows.ConfigureActivity: serve(a, workflows.ConfigureActivity, finishes, a.configure),
		workflows.DiscoverActivity:  serve(a, workflows.DiscoverActivity, yields, a.discover),
		workflows.UsageActivity:     serve(a, workflows.UsageActivity, yields, a.usage),
		workflows.CheckUseActivity:  serve(a, workflows.CheckUseActivity, yields, a.checkUse),
		workflows.SettleActivity:    serve(a, workflows.SettleActivity, finishes, a.settle),
		workflows.CleanActivity:     serve(a, workflows.CleanActivity, yields, a.clean), // a scrub takes hours, and goes on from its note

		workflows.PartitionActivity:     serve(a, workflows.PartitionActivity, finishes, a.partition),
		workflows.RestoreLayoutActivity: serve(a, workflows.RestoreLayoutActivity, finishes, a.restoreLayout),

		workflows.PreviewWhitelistActivity: serve(a, workflows.PreviewWhitelistActivity, yields, a.previewWhitelist),
		workflows.WriteWhitelistActivity:   serve(a, workflows.WriteWhitelistActivity, finishes, a.writeWhitelist),
		workflows.RestoreWhitelistActivity: serve(a, workflows.RestoreWhitelistActivity, finishes, a.restoreWhitelist),
	}
}

// stopping is what an activity does when its agent is told to stop.
type stopping bool

const (
	// yields means that the activity gives up at once: it changes no hardware, or a
	// later try starts over without harm.
	yields stopping = true
	// finishes means that the activity goes on for as long as the worker waits for
	// it: interrupting it would leave the hardware in an unknown state.
	finishes stopping = false
)

// errStopping is the cancel cause of a context that ended because the agent
// stops.
var errStopping = errors.New("the agent stops")

// try is one attempt at an activity, with what belongs to that attempt alone.
type try struct {
	heartbeat *heartbeat
	log       *slog.Logger
}

// serve wraps the body of an activity into the function that a worker
// registers. It admits the step, sends heartbeats while the body runs, survives a panic, logs
// and counts the outcome, and converts the error into what Temporal carries.
func serve[In, Out any](
	a *Activities, name string, stop stopping, do func(context.Context, *try, In) (Out, error),
) func(context.Context, converter.RawValue) (Out, error) {
	return func(ctx context.Context, raw converter.RawValue) (Out, error) {
		a.running.Add(1)
		defer a.running.Add(-1)

		begin := time.Now()
		info := activity.GetInfo(ctx)
		log := a.Log.With("step", name, "workflow_id", info.WorkflowExecution.ID, "attempt", info.Attempt)

		b := startHeartbeat(ctx, name, a.now().Sub(info.StartedTime), info.HeartbeatTimeout)
		defer b.stop()
		work, cancel := bounded(ctx, info.Deadline)
		defer cancel(nil)

		if stop == yields {
			// The goroutine ends with the work, at the latest when this function cancels
			// it.
			go func() {
				select {
				case <-activity.GetWorkerStopChannel(ctx):
					cancel(errStopping)
				case <-work.Done():
				}
			}()
		}

		// A try that Temporal has given up must not begin: another try may be under
		// way.
		var (
			in  In
			out Out
		)
		err := context.Cause(work) // the first heartbeat may have returned that Temporal no longer waits for this try
		if err == nil {
			in, err = admit[In](work, a, name, raw, info.WorkflowExecution.RunID)
		}
		if err == nil {
			err = recovered(log, func() (err error) {
				out, err = do(work, &try{heartbeat: b, log: log}, in)
				return err
			})
		}
		if step, ok := any(&in).(addressed); ok && step.Number() != 0 {
			if keepErr := a.Journal.KeepRaised(); err == nil { // of a step that had nothing to write
				err = keepErr
			}
		}

		err = explain(work, name, a.Inventory.Host(), err)
		kind := cyborg.ErrorKindOf(err)
		if temporal.IsCanceledError(err) {
			kind = cyborg.ErrCancelled // this error is the SDK's own, and carries no kind of ours
		}

		took := time.Since(begin)
		if err != nil {
			log.Log(ctx, kind.LogLevel(), "step failed", "kind", kind, "error", err, "took", took)
		} else {
			log.InfoContext(ctx, "step done", "took", took)
		}

		if a.Ended != nil {
			a.Ended(name, kind, took)
		}

		return out, workflows.ToFailure(err)
	}
}

// bounded returns a context that ends a little before Temporal's deadline.
// Without that margin the server would time the try out first, and its error
// would not say what the step was doing. The SDK computes the deadline by the
// clock of this machine.
func bounded(ctx context.Context, deadline time.Time) (context.Context, context.CancelCauseFunc) {
	work, cancel := context.WithCancelCause(ctx)
	if deadline.IsZero() {
		return work, cancel
	}

	// Ten percent of a short limit, and two seconds of a long one, are enough to
	// send the answer.
	margin := min(2*time.Second, time.Until(deadline)/10)
	limited, release := context.WithDeadline(work, deadline.Add(-margin))
	return limited, func(cause error) {
		cancel(cause)
		release()
	}
}

// recovered calls do and turns a panic into an error of kind ErrInternal: one
// broken step must not end the agent, which serves other devices as well.
func recovered(log *slog.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a step panicked", "panic", p, "stack", string(debug.Stack()))
			err = cyborg.Errorf(cyborg.ErrInternal, "the agent panicked: %v", p).WithHint("The agent's log has the stack.")
		}
	}()
	return do()
}

// explain replaces the error of work whose context has ended with the reason
// for that end: the error itself is then only a consequence.
func explain(ctx context.Context, name, host string, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}

	cause := context.Cause(ctx)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cyborg.Errorf(cyborg.ErrTimeout, "%s on host %s took longer than its limit; it was at: %w", name, host, err)
	case temporal.IsCanceledError(cause), cause == context.Canceled: //nolint:errorlint // a bare Canceled is a cancel without a reason
		return temporal.NewCanceledError()
	default: // the agent stops, or the server has given up this try
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s on host %s was interrupted: %w", name, host, cause).
			WithHint("It is tried again when the agent is back.")
	}
}

// guarded calls a driver through inventory.Guard, which survives its panics.
func (t *try) guarded(what string, call func() error) error {
	return inventory.Guard(t.log, what, call)
}

// attemptOf names a step in messages, and as the holder of a device lock.
func attemptOf(name string, operation uuid.UUID) string {
	return fmt.Sprintf("%s of operation %s", name, operation)
}
