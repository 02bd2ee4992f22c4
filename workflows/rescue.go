package workflows

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// Names of activities that ask Nova, on ConductorQueue.
const (
	LookAtInstanceActivity = "LookAtInstance" // LookAtInstanceInput → LookAtInstanceResult
	RebootInstanceActivity = "RebootInstance" // RebootInstanceInput → RebootInstanceResult
)

// LookAtInstanceInput names an instance that may be without its accelerators,
// and the host of these.
type LookAtInstanceInput struct {
	Rescue cyborg.Rescue `json:"rescue"`
	Host   string        `json:"host"`
	// Operation is the rescue itself.
	Operation uuid.UUID `json:"operation,omitzero"`
	// Limits are given to the operations that load lost images again before the
	// reboot.
	Limits Limits `json:"limits,omitzero"`
}

// LookAtInstanceResult says what to do about the instance. With neither Outcome
// nor Wait it must be rebooted.
type LookAtInstanceResult struct {
	// Outcome, where it is not empty, says that there is nothing left to do; Detail
	// says more about it.
	Outcome cyborg.RescueOutcome `json:"outcome,omitempty"`
	Detail  string               `json:"detail,omitempty"`
	// Wait says what the rescue has to wait for before it can look again; empty
	// where it need not wait.
	Wait string `json:"wait,omitempty"`
	// EarlierReboots lists the ids of our earlier requests to reboot this instance,
	// as Nova has them.
	EarlierReboots []string `json:"before,omitempty"`
}

// RebootInstanceInput names an instance to reboot hard, once. A request of ours
// that is not in EarlierReboots belongs to an earlier attempt of this reboot.
type RebootInstanceInput struct {
	Instance       uuid.UUID `json:"instance"`
	EarlierReboots []string  `json:"before,omitempty"`
	// Operation is the rescue; none in an input of release 0.1.
	Operation uuid.UUID `json:"operation,omitzero"`
}

// RebootInstanceResult is how the reboot ended: RescueRebooted, RescueGone, or
// RescueFailed with the reason in Detail.
type RebootInstanceResult struct {
	Outcome cyborg.RescueOutcome `json:"outcome"`
	Detail  string               `json:"detail,omitempty"`
}

const (
	// rebootsAtOnce is how many instances of one host are rebooted at the same
	// time.
	rebootsAtOnce = 4
	// The pauses between two looks at an instance double from the shortest to the
	// longest.
	shortestLook = 5 * time.Second
	longestLook  = time.Minute
)

// RescueInstances has Nova reboot those instances of a host that may have lost
// their accelerators when the host booted. Each is rebooted once, however often
// the run or its workers die. A reboot cannot be undone, so the operation has
// no undo.
func RescueInstances(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: rescue})
}

// rescue holds the steps of a rescue: all instances are looked at,
// rebootsAtOnce at a time. An abandoned rescue only ends: which of the reboots
// its earlier run requested is not known here.
func rescue(ctx workflow.Context, o *operation) error {
	if o.in.Abandoned {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; Nova still reboots the instances that it was asked to")
	}

	deadline := workflow.Now(ctx).Add(o.work.Within)
	places, givenBack := workflow.NewSemaphore(ctx, rebootsAtOnce), givesPlaceBack(ctx)
	group := workflow.NewWaitGroup(ctx)
	rescued := make([]cyborg.RescuedInstance, len(o.work.Rescues))

	for i, instance := range o.work.Rescues {
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			rescued[i] = cyborg.RescuedInstance{Rescue: instance, Outcome: cyborg.RescueFailed, Detail: "cancelled before anything was done"}

			place := &place{places: places, givenBack: givenBack}
			if place.take(ctx) != nil {
				return
			}
			defer place.leave()

			rescued[i].Outcome, rescued[i].Detail = o.rescueOne(ctx, place, instance, deadline)
		})
	}

	// A cancel ends the coroutines, and each says how far it was. The wait itself
	// must not be cancelled.
	detached, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	group.Wait(detached)

	o.outcome.Rescued = rescued
	o.outcome.Result = cyborg.JSONObject{"instances": rescued}

	if ctx.Err() != nil {
		return ctx.Err()
	}

	return rescueError(rescued)
}

// place is one of the places of a rescue, for an instance that is looked at or
// rebooted.
type place struct {
	places    workflow.Semaphore
	held      bool
	givenBack bool // while the instance waits
}

// take waits for the place.
func (p *place) take(ctx workflow.Context) error {
	err := p.places.Acquire(ctx, 1)
	p.held = err == nil
	return err
}

// leave gives the place to another instance, unless it was given back already.
func (p *place) leave() {
	if p.held {
		p.held = false
		p.places.Release(1)
	}
}

// wait waits before the next look at the instance. Its place is another's
// meanwhile: four instances that Nova is stuck with must not keep all others
// from their reboot.
func (p *place) wait(ctx workflow.Context, pause time.Duration) error {
	if !p.givenBack {
		return workflow.Sleep(ctx, pause)
	}

	p.leave()
	if err := workflow.Sleep(ctx, pause); err != nil {
		return err
	}
	return p.take(ctx)
}

// givesPlaceBack says that this run gives the places of waiting instances to
// others. Runs of release 0.1 did not.
func givesPlaceBack(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "place-given-back", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// rescueError returns the error of a rescue after which an instance may still
// be without its accelerators; nil where all of them have theirs or no longer
// exist.
func rescueError(rescued []cyborg.RescuedInstance) error {
	var (
		failed int
		first  cyborg.RescuedInstance
	)

	for _, i := range rescued {
		if i.Outcome.HasAccelerators() || i.Outcome == cyborg.RescueGone {
			continue
		}
		if failed == 0 {
			first = i
		}
		failed++
	}

	if failed == 0 {
		return nil
	}

	return cyborg.Errorf(cyborg.ErrChanged, "%d of %d instances may still be without their accelerators; the first is %s (%s): %s",
		failed, len(rescued), first.Instance, first.Outcome, first.Detail).
		WithHint("The operation's result says why, for each. Fix that, and rescue the host again.")
}

// rescueOne rescues one instance, as a step of its own, and returns the
// outcome.
func (o *operation) rescueOne(
	ctx workflow.Context, place *place, instance cyborg.Rescue, deadline time.Time,
) (outcome cyborg.RescueOutcome, detail string) {
	step := "reboot " + instance.Instance.String()
	o.note(ctx, step, cyborg.StepRunning, "")

	state := cyborg.StepDone
	outcome, detail = o.rebootOnce(ctx, place, step, instance, deadline)
	if outcome == cyborg.RescueFailed {
		state = cyborg.StepFailed
	}

	note := detail
	if outcome != cyborg.RescueRebooted {
		note = string(outcome)
		if detail != "" {
			note += ": " + detail
		}
	}

	o.note(ctx, step, state, note)
	return outcome, detail
}

// rebootOnce looks at the instance until Nova can reboot it, or has nothing to
// reboot, or the deadline is over; and then has it rebooted. Looking and
// rebooting are two activities, because the look finds our earlier requests. A
// repeated attempt of the reboot compares with them, and so knows whether the
// first attempt reached Nova.
func (o *operation) rebootOnce(
	ctx workflow.Context, place *place, step string, instance cyborg.Rescue, deadline time.Time,
) (outcome cyborg.RescueOutcome, detail string) {
	var looked LookAtInstanceResult

	for pause := shortestLook; ; pause = min(2*pause, longestLook) {
		if err := o.mayAskNova(ctx, deadline); err != nil {
			return cyborg.RescueFailed, FromFailure(err).Message
		}

		err := o.askNova(ctx, deadline, "look at instance "+instance.Instance.String(), LookAtInstanceActivity,
			LookAtInstanceInput{Rescue: instance, Host: o.work.Host, Operation: o.in.Operation, Limits: o.in.Limits}, &looked)

		switch {
		case err != nil:
			return cyborg.RescueFailed, FromFailure(err).Message
		case looked.Outcome != "":
			return looked.Outcome, looked.Detail
		}

		if looked.Wait == "" {
			break
		}

		o.note(ctx, step, cyborg.StepRunning, looked.Wait)
		if workflow.Now(ctx).Add(pause).After(deadline) {
			return cyborg.RescueFailed, fmt.Sprintf("%s, for longer than %s", looked.Wait, o.work.Within)
		}

		if err := place.wait(ctx, pause); err != nil {
			return cyborg.RescueFailed, "cancelled while it waited: " + looked.Wait
		}

		looked = LookAtInstanceResult{} // a JSON answer leaves fields that it lacks as they were
	}

	if err := o.mayAskNova(ctx, deadline); err != nil {
		return cyborg.RescueFailed, FromFailure(err).Message
	}

	var rebooted RebootInstanceResult
	err := o.askNova(ctx, deadline, "reboot instance "+instance.Instance.String(), RebootInstanceActivity,
		RebootInstanceInput{Instance: instance.Instance, EarlierReboots: looked.EarlierReboots, Operation: o.in.Operation}, &rebooted)
	if err != nil {
		return cyborg.RescueFailed, "Nova may have been asked, and the end of the reboot is not known: " + FromFailure(err).Message
	}

	return rebooted.Outcome, rebooted.Detail
}

// mayAskNova returns an error where Nova must not be asked: another run has the
// operation, or the time of the rescue is over. The instance may have waited for
// its place, or the run for the records. Their answer is not remembered in
// checked, which the coroutines of a rescue would share.
func (o *operation) mayAskNova(ctx workflow.Context, deadline time.Time) error {
	if fenced(ctx) {
		if err := o.ask(ctx, CheckRunActivity, CheckRunInput{Operation: o.in.Operation}, nil); err != nil {
			return err
		}
	}

	if workflow.Now(ctx).Before(deadline) || !endsInTime(ctx) {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrTimeout, "the time of the rescue (%s) was over before Nova was asked", o.work.Within)
}

// endsInTime says that the rescue asks nothing more of Nova once its time is
// over. Runs of release 0.1 still made one short attempt.
func endsInTime(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "rescue-in-time", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// askNova runs an activity that asks Nova until it succeeds or the deadline is
// over. The first pause is 5 s: by then a reboot request whose connection was
// cut has arrived at Nova, and the next attempt finds it instead of sending
// another.
func (o *operation) askNova(ctx workflow.Context, deadline time.Time, summary, activity string, input, result any) error {
	left := max(deadline.Sub(workflow.Now(ctx)), time.Second)

	err := repeat{within: left, shortest: 5 * time.Second, longest: time.Minute}.run(ctx, workflow.ActivityOptions{
		TaskQueue:           ConductorQueue,
		StartToCloseTimeout: left,
		HeartbeatTimeout:    30 * time.Second,
		Summary:             summary,
	}, activity, input, result)
	o.notice(err)
	return err
}
