package workflows

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// RescueWorkflow is the name of the workflow type.
const RescueWorkflow = "RescueInstances"

// Names of activities that ask Nova, on ConductorQueue.
const (
	LookAtInstanceActivity = "LookAtInstance" // LookAtInstanceInput → LookAtInstanceResult
	RebootInstanceActivity = "RebootInstance" // RebootInstanceInput → RebootInstanceResult
)

// LookAtInstanceInput names an instance that may be without its accelerators, and where those are.
type LookAtInstanceInput struct {
	Rescue cyborg.Rescue `json:"rescue"`
	Host   string        `json:"host"`
	// Operation is the rescue, and Limits are those of what it has loaded again for the instance.
	Operation uuid.UUID `json:"operation,omitzero"`
	Limits    Limits    `json:"limits,omitzero"`
}

// LookAtInstanceResult says what is to be done about it.
type LookAtInstanceResult struct {
	// Outcome, where it is not empty, says that there is nothing to do, and why; Detail says more.
	Outcome cyborg.RescueOutcome `json:"outcome,omitempty"`
	Detail  string               `json:"detail,omitempty"`
	// Wait says what is to pass before anything can be said or done; empty where it can.
	Wait string `json:"wait,omitempty"`
	// Before are the requests with which we had it rebooted before.
	Before []string `json:"before,omitempty"`
}

// RebootInstanceInput names an instance to reboot hard, once: a request that is not among those before is the one.
type RebootInstanceInput struct {
	Instance uuid.UUID `json:"instance"`
	Before   []string  `json:"before,omitempty"`
}

// RebootInstanceResult is how it ended: Rebooted, RescueGone, or RescueFailed with the reason.
type RebootInstanceResult struct {
	Outcome cyborg.RescueOutcome `json:"outcome"`
	Detail  string               `json:"detail,omitempty"`
}

const (
	// rebootsAtOnce is how many instances of a host are made anew at the same time.
	rebootsAtOnce = 4
	// The pauses before an instance is looked at again double from the shorter to the longer.
	shortestLook = 5 * time.Second
	longestLook  = time.Minute
)

// RescueInstances has Nova reboot the instances of a host that its boot may have cost their accelerators: each once, however often
// the run, or who works on it, dies. What has been rebooted stays so, so there is nothing to undo.
func RescueInstances(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, rescue)
}

func rescue(ctx workflow.Context, o *operation) error {
	if o.in.Abandoned {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; whom Nova was asked to reboot is rebooted")
	}
	ends := workflow.Now(ctx).Add(o.work.Within)
	places := workflow.NewSemaphore(ctx, rebootsAtOnce)
	group := workflow.NewWaitGroup(ctx)
	rescued := make([]cyborg.RescuedInstance, len(o.work.Rescues))
	for i, who := range o.work.Rescues {
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			rescued[i] = cyborg.RescuedInstance{Rescue: who, Outcome: cyborg.RescueFailed, Detail: "cancelled before anything was done"}
			if places.Acquire(ctx, 1) != nil {
				return
			}
			defer places.Release(1)
			rescued[i].Outcome, rescued[i].Detail = o.rescueOne(ctx, who, ends)
		})
	}
	everybody, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	group.Wait(everybody) // what they do is cancelled, not the wait
	o.outcome.Rescued = rescued
	o.outcome.Result = cyborg.JSONObject{"instances": rescued}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return unrescued(rescued)
}

// unrescued is the error of a rescue that was none for all of its instances.
func unrescued(rescued []cyborg.RescuedInstance) error {
	var (
		failed int
		first  cyborg.RescuedInstance
	)
	for _, i := range rescued {
		if i.Outcome.Well() || i.Outcome == cyborg.RescueGone {
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
		WithHint("The operation's result says why, for each. Mend that, and rescue the host again.")
}

// rescueOne brings one instance to where it has its accelerators, or says why not.
func (o *operation) rescueOne(ctx workflow.Context, who cyborg.Rescue, ends time.Time) (outcome cyborg.RescueOutcome, detail string) {
	step := "reboot " + who.Instance.String()
	o.note(ctx, step, cyborg.StepRunning, "")
	state := cyborg.StepDone
	outcome, detail = o.rebootOnce(ctx, step, who, ends)
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

func (o *operation) rebootOnce(ctx workflow.Context, step string, who cyborg.Rescue, ends time.Time) (outcome cyborg.RescueOutcome, detail string) {
	var looked LookAtInstanceResult
	for pause := shortestLook; ; pause = min(2*pause, longestLook) {
		err := askNova(ctx, ends, "look at instance "+who.Instance.String(), LookAtInstanceActivity,
			LookAtInstanceInput{Rescue: who, Host: o.work.Host, Operation: o.in.Operation, Limits: o.in.Limits}, &looked)
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
		if workflow.Now(ctx).Add(pause).After(ends) {
			return cyborg.RescueFailed, fmt.Sprintf("%s, for longer than %s", looked.Wait, o.work.Within)
		}
		if err := workflow.Sleep(ctx, pause); err != nil {
			return cyborg.RescueFailed, "cancelled while it waited: " + looked.Wait
		}
		looked = LookAtInstanceResult{}
	}
	var rebooted RebootInstanceResult
	err := askNova(ctx, ends, "reboot instance "+who.Instance.String(), RebootInstanceActivity,
		RebootInstanceInput{Instance: who.Instance, Before: looked.Before}, &rebooted)
	if err != nil {
		return cyborg.RescueFailed, "Nova may have been asked, and the end of the reboot is not known: " + FromFailure(err).Message
	}
	return rebooted.Outcome, rebooted.Detail
}

// askNova runs an activity until it succeeds, or time is over. The pauses are long enough for a request that was cut off to arrive
// before it is looked for.
func askNova(ctx workflow.Context, ends time.Time, summary, activity string, input, result any) error {
	left := max(ends.Sub(workflow.Now(ctx)), time.Second)
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              ConductorQueue,
		ScheduleToCloseTimeout: left,
		HeartbeatTimeout:       30 * time.Second,
		Summary:                summary,
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: 5 * time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute},
	}), activity, input).Get(ctx, result)
}
