package workflows

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyPrepared is the remedy where nobody knows whether the host has prepared a
// handle of an accelerator request.
const remedyPrepared = "Reconcile has its host settle the handles when it answers; until then nobody else gets them."

// binding is the state of one bind's run.
type binding struct {
	*operation

	// timedOut says that the time of the requests was over before the steps were
	// done, and before anybody cancelled the operation.
	timedOut bool
	// done says that the steps were done, before the bind had run out of time. One
	// workflow task can bring both, where no conductor was there for a while; then
	// the steps count, because only one of the two may decide how the bind ends.
	done bool
	// notification is done when Nova was notified of a failure before the end; nil
	// where that has not begun.
	notification workflow.Future
}

// BindARQs gives accelerator requests of OpenStack their handles, once their host
// has made sure that nobody uses them. Where images must be loaded first, it loads
// them; where the host prepares handles, it has the host do that then.
//
// The same run then notifies Nova of the outcome of each request. It does so
// after the operation has ended, so that a Nova that is away does not keep the
// accelerators claimed, and tries again until Nova has taken the notification.
// A notification that fails undoes nothing. The End activity makes the first
// attempt, which saves a round trip to Temporal. A bind that runs out of time, or
// fails and has something to undo, is the exception: Nova is notified at once,
// before the undo. When the operation had ended before, the Begin activity has
// notified Nova already, and Work.Notify lists only the requests for which that
// did not work.
func BindARQs(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	b := &binding{operation: newOperation(in)}
	result, err := b.run(ctx, steps{do: b.bind, remedy: remedyImage, gaveUp: func() bool { return b.timedOut }})

	// Without a successful Begin the work is unknown, and with it whether Nova
	// waits: the activity looks that up.
	begun := b.work.Kind != ""
	if err != nil || b.notified || begun && len(b.work.Notify) == 0 {
		return result, err
	}

	// Nova waits for the notification of a cancelled bind, too.
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if b.notification != nil && b.notification.Get(ctx, nil) == nil {
		return result, nil
	}

	return result, b.notify(ctx)
}

// bind holds the steps of a bind, within the time that the requests have left.
// When that time is over, the requests fail and Nova is notified at once, while
// the step that runs is still being cancelled.
func (b *binding) bind(ctx workflow.Context, _ *operation) error {
	b.outcome.Notify = b.work.Notify
	switch prepares := len(preparedInputs(b.work)) > 0; {
	case b.in.Abandoned && len(b.work.Loads) == 0 && !prepares:
		return terminated()
	case len(b.work.Loads) == 0:
		b.remedy = remedyPrepared
	case prepares:
		b.remedy += " " + remedyPrepared
	}

	err := b.inTime(ctx)
	if b.requestsFailed() {
		b.outcome.Notify = nil // Nova is being told already
	}
	return err
}

// inTime does the steps of a bind until its time is over.
func (b *binding) inTime(ctx workflow.Context) error {
	if len(b.work.Given)+len(b.work.Loads) == 0 {
		return nil
	}

	limited, stop := workflow.WithCancel(ctx)
	defer stop()
	timer, stopTimer := workflow.WithCancel(ctx)
	defer stopTimer()

	workflow.Go(timer, func(ctx workflow.Context) {
		if workflow.Sleep(ctx, b.work.Within) == nil && !(b.done && decidesOnce(ctx)) {
			b.timedOut = true
			stop()
			b.failRequests(ctx, b.timeoutError(nil))
		}
	})
	err := b.give(limited)
	b.done = err == nil && !b.timedOut

	// Once the requests have failed, the bind must fail too, even where its last
	// step still succeeded.
	if b.timedOut && (err != nil || b.requestsFailed()) {
		err = b.timeoutError(err)
	}

	// Where there is nothing to undo, the operation ends at once. Its end then
	// fails the requests, and Nova is notified after it.
	if err != nil && len(b.undos) > 0 {
		b.failRequests(ctx, err)
	}

	return err
}

// give does the steps of a bind. Nothing is loaded into an accelerator that
// somebody uses, and handles are prepared last, because an image may change what
// there is to prepare. Of an abandoned operation it only collects the undos.
func (b *binding) give(ctx workflow.Context) error {
	if !b.in.Abandoned {
		if err := b.checkUse(ctx); err != nil {
			return err
		}
	}

	if len(b.work.Loads) > 0 {
		if err := b.loadAll(ctx); err != nil {
			return err
		}
	}
	if err := b.attachHandles(ctx, preparedInputs(b.work)); err != nil {
		return err
	}

	if b.in.Abandoned {
		return terminated()
	}
	return nil
}

// decidesOnce says that a bind whose steps were done does not run out of time
// any more. In release 0.1 it could do both.
func decidesOnce(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "bind-decides-once", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// timeoutError returns the error of a bind that ran out of time. The argument
// is how the interrupted step ended; it may be nil.
func (b *binding) timeoutError(step error) error {
	text := fmt.Sprintf("the accelerator requests were not bound within %s", b.work.Within.Round(time.Second))
	if step != nil {
		text += ": " + FromFailure(step).Message
	}

	hint := "Load the image beforehand, or give binds more time (arqs.bind_timeout)."
	if len(b.work.Loads) == 0 {
		hint = "The agent of the host had no time to look who uses the accelerator, or to prepare it: see what else it works on, or give binds more time (arqs.bind_timeout)."
	}
	return cyborg.Errorf(cyborg.ErrTimeout, "%s", text).WithHint("%s", hint)
}

// failRequests records that the requests have failed and notifies Nova, in a
// coroutine of its own, while the operation goes on undoing what it did. Nova
// then need not wait for the undo, which may take minutes.
func (b *binding) failRequests(ctx workflow.Context, cause error) {
	if b.requestsFailed() {
		return
	}

	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	notification, settable := workflow.NewFuture(ctx)
	b.notification = notification

	workflow.Go(ctx, func(ctx workflow.Context) {
		defer cancel()
		err := local(ctx, FailARQsActivity, FailARQsInput{Operation: b.in.Operation, Reason: FromFailure(cause).Message}, nil)
		if err == nil && len(b.work.Notify) > 0 {
			err = b.notify(ctx)
		}
		settable.Set(nil, err)
	})
}

// requestsFailed says that failRequests has been called: the requests have
// failed before the end of the operation.
func (b *binding) requestsFailed() bool { return b.notification != nil }

// loadAll loads the images, one after the other. Of an abandoned operation it
// only collects the undos.
func (b *binding) loadAll(ctx workflow.Context) error {
	b.outcome.Bitstreams = map[uuid.UUID]string{}
	b.outcome.Images = map[uuid.UUID]cyborg.Image{}

	if !b.in.Abandoned {
		if err := b.fence(ctx); err != nil {
			return err
		}
	}

	loads, err := bindLoads(b.work)
	if err != nil {
		return err
	}

	for _, work := range loads {
		l := load{operation: b.operation, loadWork: work}
		if len(b.work.Loads) > 1 {
			l.suffix = " " + l.into.Deployable
		}

		if b.in.Abandoned {
			b.undos = append(b.undos, undo{step: "program" + l.suffix, run: l.undo()})
			continue
		}

		if err := l.find(ctx); err != nil {
			return err
		}

		if id := l.found.Image.ID; id != "" && id == l.into.BitstreamID {
			continue // this image is loaded already
		}

		if err := l.run(ctx); err != nil {
			return err
		}
		// The instance starts now, and needs the image now. What was loaded is undone.
		if pending := l.result.Pending; pending != nil {
			return cyborg.Errorf(cyborg.ErrImageRejected, "image %s takes effect only %s", pending.BitstreamID, pending.Until.Text(b.work.Host)).
				WithHint("Program the accelerator with it, do that, and then create the instance again.")
		}

		b.outcome.Bitstreams[l.into.Accelerator] = l.result.BitstreamID
		b.outcome.Images[l.into.Accelerator] = l.reloadable()
	}

	return nil
}

// permittedBind is PermittedBy for a bind. One whose work is wrong may do
// nothing, and its run says why.
func permittedBind(work cyborg.Work) []Permitted {
	loads, err := bindLoads(work)
	if err != nil {
		return nil
	}

	var out []Permitted
	for _, load := range loads {
		out = append(out, load.permitted(work.Operation)...)
	}
	return append(out, permittedAttaches(preparedInputs(work))...)
}

// preparedInputs are the inputs of the steps with which the host prepares the
// handles of a bind. The journal keeps such a step by the handle, so all of them can
// have the id of the operation.
func preparedInputs(work cyborg.Work) []*AttachInput {
	var out []*AttachInput
	for _, given := range work.Given {
		for _, handle := range given.Handles {
			if handle.OnHost() {
				out = append(out, &AttachInput{Operation: work.Operation, Target: given.Target, Handle: handle})
			}
		}
	}
	return out
}

// bindLoads lists the images that a bind loads.
func bindLoads(work cyborg.Work) ([]loadWork, error) {
	var out []loadWork
	for i, want := range work.Loads {
		at := slices.IndexFunc(work.Targets, func(t cyborg.Target) bool { return t.Accelerator == want.Accelerator })
		if at < 0 {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "the bind does not have accelerator %s, for which it has an image", want.Accelerator)
		}

		out = append(out, loadWork{
			into: work.Targets[at], disturbed: disturbedWith(work, at), image: want.Image.WithoutQuery(),
			journalID: journalID(work, i, want.Accelerator), found: work.Found[want.Accelerator],
		})
	}
	return out, nil
}

// disturbedWith returns the other targets that an image for the target at this
// index disturbs as well.
func disturbedWith(work cyborg.Work, at int) []cyborg.Target {
	of := work.Targets[at]
	var out []cyborg.Target

	for i, t := range work.Targets {
		if i != at && t.Device == of.Device && t.ProgramSet == of.ProgramSet {
			out = append(out, t)
		}
	}

	return out
}

// notify notifies Nova. Its attempts have no limit: it ends when Nova was
// notified, or has none of the instances any more.
func (b *binding) notify(ctx workflow.Context) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           ConductorQueue,
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute},
		Summary:             "tell Nova",
	}), NotifyNovaActivity, NotifyNovaInput{Operation: b.in.Operation}).Get(ctx, nil)
}
