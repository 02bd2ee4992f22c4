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

// BindARQs gives accelerator requests of OpenStack their handles. Where images must be loaded first it loads them; else there
// is nothing to do on the host, and Begin ends it as well. When the operation has ended, and others may work on the
// accelerators again, the same run tells Nova what became of each request, however long Nova is away. That Nova was not told
// undoes nothing. A failure is told as soon as it is certain, and not only when it is undone. Of an operation that has ended
// with its beginning, or before, Begin tells Nova, and leaves to do what it could not.
func BindARQs(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	o := newOperation(in)
	result, err := o.run(ctx, bind)
	begun := o.work.Kind != "" // of one that never began nobody knows here whether there is anybody to tell
	if err != nil || begun && len(o.work.Notify) == 0 {
		return result, err
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if o.notification != nil && o.notification.Get(ctx, nil) == nil {
		return result, nil
	}
	return result, o.notify(ctx)
}

func bind(ctx workflow.Context, o *operation) error {
	if len(o.work.Loads) == 0 {
		if o.in.Abandoned {
			return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; what it had done is undone")
		}
		return nil
	}
	limited, stop := workflow.WithCancel(ctx)
	defer stop()
	timer, stopTimer := workflow.WithCancel(ctx)
	defer stopTimer()
	workflow.Go(timer, func(ctx workflow.Context) {
		if workflow.Sleep(ctx, o.work.Within) == nil {
			o.late = true
			stop()
			o.giveUp(ctx, o.tooLate(nil))
		}
	})
	err := o.loadAll(limited)
	if o.late && (err != nil || o.gaveUp()) {
		err = o.tooLate(err)
	}
	if err != nil && len(o.undos) > 0 {
		o.giveUp(ctx, err)
	}
	return err
}

// tooLate is why a bind has failed whose time was over in the middle of a step, which then ended so.
func (o *operation) tooLate(step error) error {
	text := fmt.Sprintf("the accelerator requests were not bound within %s", o.work.Within.Round(time.Second))
	if step != nil {
		text += ": " + FromFailure(step).Message
	}
	return cyborg.Errorf(cyborg.ErrTimeout, "%s", text).
		WithHint("Load the image before, or give binds more time (arqs.bind_timeout).")
}

// giveUp has the requests fail, and Nova told, while the operation goes on undoing what it did.
func (o *operation) giveUp(ctx workflow.Context, cause error) {
	if o.gaveUp() || workflow.GetVersion(ctx, "fail-before-undo", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
		return
	}
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	telling, told := workflow.NewFuture(ctx)
	o.notification = telling
	workflow.Go(ctx, func(ctx workflow.Context) {
		defer cancel()
		err := local(ctx, FailARQsActivity, FailARQsInput{Operation: o.in.Operation, Reason: FromFailure(cause).Message}, nil)
		if err == nil && len(o.work.Notify) > 0 {
			err = o.notify(ctx)
		}
		told.Set(nil, err)
	})
}

// gaveUp says that the requests have failed before the end of the operation.
func (o *operation) gaveUp() bool { return o.notification != nil }

// loadAll loads the images, one after the other.
func (o *operation) loadAll(ctx workflow.Context) error {
	o.outcome.Bitstreams = map[uuid.UUID]string{}
	o.outcome.Images = map[uuid.UUID]cyborg.Image{}
	if !o.in.Abandoned {
		if err := o.fence(ctx); err != nil {
			return err
		}
	}
	for i, want := range o.work.Loads {
		at := slices.IndexFunc(o.work.Targets, func(t cyborg.Target) bool { return t.Accelerator == want.Accelerator })
		if at < 0 {
			return cyborg.Errorf(cyborg.ErrInternal, "the bind does not have accelerator %s, for which it has an image", want.Accelerator)
		}
		l := load{
			operation: o, target: o.work.Targets[at], others: o.besides(at), image: want.Image, attempt: o.part(i, want.Accelerator),
		}
		if len(o.work.Loads) > 1 {
			l.suffix = " " + l.target.Deployable
		}
		if o.in.Abandoned {
			o.undos = append(o.undos, undo{step: "program" + l.suffix, run: l.undo()})
			continue
		}
		if err := l.find(ctx); err != nil {
			return err
		}
		if id := l.found.Image.ID; id != "" && id == l.target.BitstreamID {
			continue // an image with that function is loaded
		}
		if err := l.run(ctx); err != nil {
			return err
		}
		o.outcome.Bitstreams[want.Accelerator] = l.result.BitstreamID
		o.outcome.Images[want.Accelerator] = l.again()
	}
	if o.in.Abandoned {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; what it had done is undone")
	}
	return nil
}

// besides are the targets that an image for the given one disturbs as well.
func (o *operation) besides(at int) []cyborg.Target {
	of := o.work.Targets[at]
	var out []cyborg.Target
	for i, t := range o.work.Targets {
		if i != at && t.Device == of.Device && t.ProgramSet == of.ProgramSet {
			out = append(out, t)
		}
	}
	return out
}

// part is what a host's journal knows the steps on one of several accelerators by: it has room for one step of a kind for
// each operation.
func (o *operation) part(i int, accelerator uuid.UUID) uuid.UUID {
	if i == 0 {
		return o.in.Operation
	}
	return uuid.NewSHA1(o.in.Operation, accelerator[:])
}

// notify tells Nova, until Nova was told or has nobody any more to tell.
func (o *operation) notify(ctx workflow.Context) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           ConductorQueue,
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute},
		Summary:             "tell Nova",
	}), NotifyNovaActivity, NotifyNovaInput{Operation: o.in.Operation}).Get(ctx, nil)
}
