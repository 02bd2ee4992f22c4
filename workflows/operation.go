package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// operation is what every operation's workflow does the same: begin, tell its story step by step, undo in reverse
// order when a step fails or someone cancels, and always record how it ended.
type operation struct {
	in      OperationInput
	work    cyborg.Work
	outcome cyborg.Outcome
	undos   []undo
	seen    LastSeenResult // of the host's agent, as far as somebody asked
	// Of a bind: its time was over before anybody cancelled it, and Nova is being told that it has failed.
	late         bool
	notification workflow.Future
}

// undo is the compensation of one step.
type undo struct {
	step string
	run  func(ctx workflow.Context) error
}

// story is what one kind of operation does between begin and end.
type steps func(ctx workflow.Context, o *operation) error

// runOperation runs a story. The error is non-nil only where the outcome could not be recorded, which Temporal's retries
// of End make a matter of someone terminating the run.
func runOperation(ctx workflow.Context, in OperationInput, tell steps) (OperationResult, error) {
	return newOperation(in).run(ctx, tell)
}

func newOperation(in OperationInput) *operation {
	return &operation{in: in, outcome: cyborg.Outcome{Operation: in.Operation}}
}

func (o *operation) run(ctx workflow.Context, tell steps) (OperationResult, error) {
	in := o.in
	err := local(ctx, BeginActivity, BeginInput{Operation: in.Operation, Abandoned: in.Abandoned}, &o.work)
	if err == nil && o.work.Ended != "" {
		o.outcome.State = o.work.Ended
		o.describe(ctx)
		return OperationResult{State: o.work.Ended}, nil
	}
	if in.Abandoned && err != nil && FromFailure(err).Kind == cyborg.ErrInternal {
		// Nobody knows what the earlier run had done: to end here would free it. Reconcile starts another run.
		return OperationResult{}, err
	}
	if err == nil {
		o.describe(ctx)
		err = tell(ctx, o)
	}
	if err == nil {
		o.outcome.State = cyborg.OperationSucceeded
		return o.end(ctx)
	}
	cause := FromFailure(err)
	if ctx.Err() != nil && cause.Kind != cyborg.ErrCancelled && !o.late {
		cause = cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled; its step ended with: %s", cause.Message)
	}
	o.outcome.State, o.outcome.Error = cyborg.OperationFailed, cause
	if cause.Kind == cyborg.ErrCancelled {
		o.outcome.State = cyborg.OperationCancelled
	}
	if failures := o.compensate(ctx); len(failures) > 0 {
		o.outcome.State = cyborg.OperationNeedsOperator
		o.outcome.Error = cyborg.Errorf(cause.Kind, "%s; undoing it failed as well: %s", cause.Message, strings.Join(failures, "; ")).
			WithHint("%s", o.wayOut())
	}
	return o.end(ctx)
}

// wayOut says what an operator does where the undo has failed; docs/data.md, "Ways out", is the same.
func (o *operation) wayOut() string {
	switch o.work.Kind {
	case cyborg.OperationAttach, cyborg.OperationDetach:
		return "The accelerator is in error. Reconcile settles it when its host answers; where that fails, detach it by force."
	case cyborg.OperationProgram, cyborg.OperationBind:
		return "The accelerator is in error. Program it with an image that works, or make it ready again."
	case cyborg.OperationWhitelist:
		return "What it was to add or to remove stays Nova's in the records. Look at the file on its host, then whitelist again."
	default: // of provision and retire; configure has nothing to undo
		return "The accelerator is in error. Look at its host, then make it ready again, or retire it."
	}
}

// end records the outcome, whatever happens to the run meanwhile.
func (o *operation) end(ctx workflow.Context) (OperationResult, error) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	if o.outcome.Error != nil {
		o.outcome.Error = o.outcome.Error.WithOperation(o.in.Operation)
	}
	o.describe(ctx)
	if err := local(ctx, EndActivity, o.outcome, nil); err != nil {
		return OperationResult{}, err
	}
	return OperationResult{State: o.outcome.State, Error: o.outcome.Error}, nil
}

// compensate runs the undos in reverse and returns what could not be undone.
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

// step is one call to the host's agent, with its undo; undoStep may be nil. The undo is kept before the call and dropped
// again where it is certain that the agent did not touch anything.
func (o *operation) step(ctx workflow.Context, name string, call call, undoStep func(ctx workflow.Context) error) error {
	o.note(ctx, name, cyborg.StepRunning, "")
	if undoStep != nil {
		o.undos = append(o.undos, undo{step: name, run: undoStep})
	}
	began, err := o.try(ctx, name, call)
	if err == nil {
		o.note(ctx, name, cyborg.StepDone, "")
		return nil
	}
	if undoStep != nil && !began {
		o.undos = o.undos[:len(o.undos)-1]
	}
	err = o.explain(ctx, call, err)
	o.note(ctx, name, cyborg.StepFailed, FromFailure(err).Message)
	return err
}

// call is one activity on the host's agent.
type call struct {
	activity string
	summary  string
	input    any
	result   any
	limit    time.Duration // of one try
	undoing  bool
}

// The pauses between tries double from the shortest to the longest.
const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 10 * time.Second
)

// try calls the agent until the call succeeds, fails for good, or has been tried often enough. Began says that an agent
// may have begun it: where it refuses a later try, it may have lost its journal, and with it what it knew of the first.
// Each try is an activity of its own: Temporal does not tell an activity that waits to be tried again
// from one that nobody ever took, and the difference is whether there is something to undo.
//
// An agent that lives and has no slot left is waited for as long as the longest step of others may take.
func (o *operation) try(ctx workflow.Context, name string, c call) (began bool, _ error) {
	options := o.options(c)
	options.ScheduleToStartTimeout = o.in.Limits.AgentWait
	options.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 1}
	pause := shortestPause
	queuing := workflow.Now(ctx).Add(max(o.in.Limits.Step, o.in.Limits.Stage, o.in.Limits.Program))
	for tries := int32(1); ; tries++ {
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), c.activity, c.input).Get(ctx, c.result)
		if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok && startTimeout(timeout) {
			if o.look(ctx); o.seen.Busy && workflow.Now(ctx).Before(queuing) && ctx.Err() == nil {
				o.note(ctx, name, cyborg.StepRunning, "waits for a slot on host "+o.work.Host)
				tries-- // it was none
				continue
			}
		}
		if err == nil || neverTaken(err) {
			return began, err
		}
		if !mayPass(err) || tries >= o.in.Limits.Attempts || ctx.Err() != nil {
			return began || !refused(err), err
		}
		began = true
		o.note(ctx, name, cyborg.StepRunning, fmt.Sprintf("try %d: %s", tries, FromFailure(err).Message))
		if err := workflow.Sleep(ctx, pause); err != nil {
			return true, err
		}
		pause = min(2*pause, longestPause)
	}
}

func (o *operation) options(c call) workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           AgentQueue(o.work.Host),
		StartToCloseTimeout: c.limit,
		HeartbeatTimeout:    o.in.Limits.Heartbeat,
		// An undo must never overlap the step it undoes.
		WaitForCancellation: true,
		Summary:             c.summary,
	}
}

// undoCall is an undo that is one call to the agent. An undo is worth waiting for: it is tried until Undo is over, the
// agent's absence included.
func (o *operation) undoCall(c call) func(ctx workflow.Context) error {
	c.undoing = true
	options := o.options(c)
	options.ScheduleToStartTimeout = o.in.Limits.Undo
	options.ScheduleToCloseTimeout = o.in.Limits.Undo + c.limit
	options.RetryPolicy = &temporal.RetryPolicy{
		InitialInterval: shortestPause, BackoffCoefficient: 2, MaximumInterval: longestPause,
	}
	return func(ctx workflow.Context) error {
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), c.activity, c.input).Get(ctx, c.result)
		if err != nil {
			return o.explain(ctx, c, err)
		}
		return nil
	}
}

// explain turns a step that no agent took into an error that says which host is silent since when. An agent that was
// heard meanwhile is not silent: it has no time for the step, or does not reach Temporal.
func (o *operation) explain(ctx workflow.Context, c call, err error) error {
	timeout, ok := errors.AsType[*temporal.TimeoutError](err)
	if !ok || !startTimeout(timeout) {
		return err
	}
	wait := o.in.Limits.AgentWait
	if c.undoing {
		wait = o.in.Limits.Undo
	}
	if c.undoing {
		o.look(ctx)
	}
	since := o.work.HostSilentSince
	if !o.seen.At.IsZero() {
		since = o.seen.At
	}
	if o.seen.Busy {
		return cyborg.Errorf(cyborg.ErrHostSilent, "the agent of host %s had no slot left for %q all the time", o.work.Host, c.activity).
			WithHint("Retry the operation when others on the host have ended, or give its agent more slots (agent.slots).")
	}
	if workflow.Now(ctx).Sub(since) < wait {
		return cyborg.Errorf(cyborg.ErrHostSilent, "host %s was heard at %s, but its agent did not take %q within %s",
			o.work.Host, since.UTC().Format(time.RFC3339), c.activity, wait).
			WithHint("Look into the agent's log: it may have no slot left (agent.slots), or not reach Temporal. Then retry the operation.")
	}
	return cyborg.Errorf(cyborg.ErrHostSilent, "host %s has been %s; its agent did not take %q within %s",
		o.work.Host, cyborg.SilentSince(since), c.activity, wait).
		WithHint("Start cyborg-agent on %s, then retry the operation.", o.work.Host)
}

// look asks when the host's agent was last heard, and whether it has a slot left.
func (o *operation) look(ctx workflow.Context) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var seen LastSeenResult
	if err := local(ctx, LastSeenActivity, LastSeenInput{Host: o.work.Host}, &seen); err == nil {
		o.seen = seen
	}
}

// notStarted is what Temporal's server says of an activity that was cancelled before anybody took it
// (service/history/api/respondworkflowtaskcompleted, activityCancellationMsgActivityNotStarted).
const notStarted = "ACTIVITY_ID_NOT_STARTED"

// neverTaken says that no agent took an activity that is tried only once.
func neverTaken(err error) bool {
	if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return startTimeout(timeout)
	}
	cancelled, ok := errors.AsType[*temporal.CanceledError](err)
	if !ok {
		return false
	}
	if !cancelled.HasDetails() { // it was never scheduled
		return true
	}
	var why string
	return cancelled.Details(&why) == nil && why == notStarted
}

// mayPass says whether a try that failed is worth another.
func mayPass(err error) bool {
	if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return !startTimeout(timeout)
	}
	application, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && !application.NonRetryable()
}

// refused says that the agent changed nothing, in this try and in all before it that its journal knows: it answers with
// one of these kinds only then.
func refused(err error) bool {
	application, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && cyborg.ErrorKind(application.Type()).Refusal()
}

// startTimeout says that nobody took the activity in time.
func startTimeout(err *temporal.TimeoutError) bool {
	return err.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START
}

// note keeps the story up to date: for the record and for Temporal's UI.
func (o *operation) note(ctx workflow.Context, name string, state cyborg.StepState, text string) {
	now := workflow.Now(ctx)
	for i := range o.outcome.Steps {
		if s := &o.outcome.Steps[i]; s.Name == name {
			s.State, s.At, s.Note = state, now, text
			o.describe(ctx)
			return
		}
	}
	o.outcome.Steps = append(o.outcome.Steps, cyborg.Step{Name: name, State: state, At: now, Note: text})
	o.describe(ctx)
}

// record makes the steps so far readable while the operation goes on; worth a write only in stories of several steps.
func (o *operation) record(ctx workflow.Context) error {
	return local(ctx, RecordActivity, RecordInput{Operation: o.in.Operation, Steps: o.outcome.Steps}, nil)
}

// describe shows the story in Temporal's UI.
func (o *operation) describe(ctx workflow.Context) {
	var text strings.Builder
	if o.work.Host != "" {
		fmt.Fprintf(&text, "Host **%s**", o.work.Host)
	}
	for _, target := range o.work.Targets {
		fmt.Fprintf(&text, ", %s", target.Deployable)
	}
	for _, s := range o.outcome.Steps {
		fmt.Fprintf(&text, "\n- %s: %s", s.Name, s.State)
		if s.Note != "" {
			fmt.Fprintf(&text, " (%s)", s.Note)
		}
	}
	if o.outcome.State != "" {
		fmt.Fprintf(&text, "\n\n**%s**", o.outcome.State)
	}
	if o.outcome.Error != nil {
		fmt.Fprintf(&text, ": %s", o.outcome.Error.Message)
	}
	workflow.SetCurrentDetails(ctx, text.String())
}

// target is the accelerator that the operation was asked for.
func (o *operation) target() cyborg.Target { return o.work.Targets[0] }

// observe keeps what the agent saw after a change, for the record.
func (o *operation) observe(result *ChangeResult) {
	if result.Observation.Sequence > 0 {
		o.outcome.Observations = append(o.outcome.Observations, result.Observation)
	}
}

// local runs an activity that touches the records, in this process. The database may be away for a while: it is tried
// again until it answers or the run is cancelled.
func local(ctx workflow.Context, name string, in, out any) error {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 15 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval:    100 * time.Millisecond,
			BackoffCoefficient: 2,
			MaximumInterval:    5 * time.Second,
		},
	})
	return workflow.ExecuteLocalActivity(ctx, name, in).Get(ctx, out)
}
