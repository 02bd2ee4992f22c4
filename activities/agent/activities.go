// Package agent holds the activities that run on a host: what workflows ask of its hardware, written so that each may be
// tried again after its agent died at any point. It imports drivers, the journal, and of workflows the names and the
// inputs; never the database, Placement or a cloud's API.
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
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// Journal is what the activities need of the agent's journal.
type Journal interface {
	BootID() string
	Write(change journal.Change) error
	Step(key journal.StepKey) (journal.Step, bool)
	Attachment(key journal.AttachmentKey) (journal.Attachment, bool)
	Loaded(key journal.RegionKey) (journal.Loaded, bool)
	Staged(operation uuid.UUID) (journal.Staged, bool)
	Lost(attachment journal.Attachment) bool
}

// Reporter is the way to the conductor.
type Reporter interface {
	// Report tells the conductor what the inventory knows now, and returns when that is acknowledged.
	Report(ctx context.Context) (cyborg.Report, cyborg.ReportReply, error)
}

// Activities are those of one host.
type Activities struct {
	Inventory *inventory.Inventory
	Journal   Journal
	Images    *images.Store
	Reporter  Reporter
	Log       *slog.Logger
	// UsageTimeout bounds the answer to a census.
	UsageTimeout time.Duration
	// Nova is the file of its whitelist on this host.
	Nova novaconf.File
	// Ended, where set, is told of each activity that ended, with the kind of its error ("" for none).
	Ended func(name string, kind cyborg.ErrorKind, took time.Duration)
	// Now is the time of day; time.Now where nil.
	Now func() time.Time

	running atomic.Int64
	// whitelist lets one step at a time change Nova's whitelist.
	whitelist sync.Mutex
}

func (a *Activities) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// Running is how many tries run at this moment.
func (a *Activities) Running() int { return int(a.running.Load()) }

// All lists the activities by the name to register them under.
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
		workflows.SettleActivity:    serve(a, workflows.SettleActivity, finishes, a.settle),

		workflows.PreviewWhitelistActivity: serve(a, workflows.PreviewWhitelistActivity, yields, a.previewWhitelist),
		workflows.WriteWhitelistActivity:   serve(a, workflows.WriteWhitelistActivity, finishes, a.writeWhitelist),
		workflows.RestoreWhitelistActivity: serve(a, workflows.RestoreWhitelistActivity, finishes, a.restoreWhitelist),
	}
}

// stopping says what an activity does when its agent is told to stop.
type stopping bool

const (
	// yields gives up at once; a later try begins again where it makes sense.
	yields stopping = true
	// finishes goes on, as long as the worker waits: the hardware is best left in a state that is known.
	finishes stopping = false
)

// errStopping is the cause of a context that ended because the agent stops.
var errStopping = errors.New("the agent stops")

// try is one try of an activity.
type try struct {
	beat *beat
	log  *slog.Logger
}

// serve makes an activity: it heartbeats while the work goes on, survives a panic, and turns errors into what Temporal
// carries.
func serve[In, Out any](
	a *Activities, name string, stop stopping, do func(context.Context, *try, In) (Out, error),
) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		a.running.Add(1)
		defer a.running.Add(-1)
		begin := time.Now()
		info := activity.GetInfo(ctx)
		log := a.Log.With("step", name, "workflow_id", info.WorkflowExecution.ID, "attempt", info.Attempt)
		b := startBeat(ctx, name, a.now().Sub(info.StartedTime), info.HeartbeatTimeout)
		defer b.stop()
		work, cancel := bounded(ctx, info.StartedTime, info.Deadline)
		defer cancel(nil)
		if stop == yields {
			go func() {
				select {
				case <-activity.GetWorkerStopChannel(ctx):
					cancel(errStopping)
				case <-work.Done():
				}
			}()
		}
		var out Out
		err := context.Cause(work) // a heartbeat may have told that Temporal no longer waits for this try
		if err == nil {
			err = recovered(log, func() (err error) {
				out, err = do(work, &try{beat: b, log: log}, in)
				return err
			})
		}
		err = explain(work, name, a.Inventory.Host(), err)
		kind := cyborg.ErrorKindOf(err)
		if temporal.IsCanceledError(err) {
			kind = cyborg.ErrCancelled
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

// bounded ends the work a little before Temporal's deadline, so that the answer says what was in the way.
func bounded(ctx context.Context, started, deadline time.Time) (context.Context, context.CancelCauseFunc) {
	work, cancel := context.WithCancelCause(ctx)
	if deadline.IsZero() {
		return work, cancel
	}
	margin := min(2*time.Second, deadline.Sub(started)/10)
	limited, release := context.WithDeadline(work, deadline.Add(-margin))
	return limited, func(cause error) {
		cancel(cause)
		release()
	}
}

// recovered turns a panic into an error of kind ErrInternal.
func recovered(log *slog.Logger, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a step panicked", "panic", p, "stack", string(debug.Stack()))
			err = cyborg.Errorf(cyborg.ErrInternal, "the agent panicked: %v", p).WithHint("The agent's log has the stack.")
		}
	}()
	return do()
}

// explain says why work failed whose context had ended: the failure itself is then only a consequence.
func explain(ctx context.Context, name, host string, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cyborg.Errorf(cyborg.ErrTimeout, "%s on host %s took longer than its limit; it was at: %w", name, host, err)
	case temporal.IsCanceledError(cause), cause == context.Canceled: //nolint:errorlint // the bare one is a cancel without reason
		return temporal.NewCanceledError()
	default: // the agent stops, or the server has given the try up
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s on host %s was interrupted: %w", name, host, cause).
			WithHint("It is tried again when the agent is back.")
	}
}

// guarded calls a driver; see inventory.Guard.
func (t *try) guarded(what string, call func() error) error {
	return inventory.Guard(t.log, what, call)
}

func attemptOf(name string, operation uuid.UUID) string {
	return fmt.Sprintf("%s of operation %s", name, operation)
}
