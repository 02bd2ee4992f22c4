package workflows

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// operation is the state of one operation's run, and what the runs of all kinds
// have in common: they begin, do the steps of their kind, undo these in reverse
// order when a step fails or someone cancels, and always record how they ended.
type operation struct {
	in      OperationInput
	work    cyborg.Work // what Begin returned
	outcome cyborg.Outcome
	undos   []undo
	// remedy is steps.remedy, unless the steps have chosen another.
	remedy string

	// lastSeen is the last answer about the host's agent; the zero value until it
	// was needed.
	lastSeen LastSeenResult

	// checked says that the records have just said that this run has the operation.
	// One step may be sent on that, at once; see check.
	checked bool
	// late says that the host has refused the last step because of its number.
	late bool
	// notified says that Nova was told of the end together with it.
	notified bool
	// superseded is why this run must touch and record nothing more: the operation
	// has ended, or another run has it. Nil while the run has the operation.
	superseded *cyborg.Error
}

// steps are what one kind of operation does between Begin and End.
type steps struct {
	do func(ctx workflow.Context, o *operation) error
	// remedy is the hint for an operator where the undo has failed; empty for a
	// kind that has nothing to undo. The table under "Remedies" in docs/data.md
	// says the same.
	remedy string
	// gaveUp may be set by a kind that has a deadline of its own. It reports that
	// the deadline was over before anybody cancelled the operation: the operation
	// then ends with the error of its steps, also where it is cancelled later.
	gaveUp func() bool
}

// runOperation runs an operation with the steps of its kind. The error is
// non-nil only where this run has recorded no outcome: the operation is not
// this run's, End failed with an error that is not tried again, or an abandoned
// operation could not begin again. Where the operation is still open, Reconcile
// starts another run.
func runOperation(ctx workflow.Context, in OperationInput, s steps) (OperationResult, error) {
	return newOperation(in).run(ctx, s)
}

func newOperation(in OperationInput) *operation {
	return &operation{in: in, outcome: cyborg.Outcome{Operation: in.Operation}}
}

// run begins the operation, does its steps, undoes them where one failed, and
// records the outcome.
func (o *operation) run(ctx workflow.Context, s steps) (OperationResult, error) {
	in := o.in
	o.remedy = s.remedy
	if in.Abandoned && uncancelled(ctx, in) {
		// A cancel changes nothing of what such a run does: it undoes, or completes
		// what cannot be undone. Where a cancel kept it from that, the operation would
		// end with the hardware as the run before has left it.
		detached, cancel := workflow.NewDisconnectedContext(ctx)
		defer cancel()
		ctx = detached
	}

	err := o.ask(ctx, BeginActivity, BeginInput{Operation: in.Operation, Replaces: in.Replaces}, &o.work)
	if o.superseded != nil {
		return OperationResult{}, ToFailure(o.superseded)
	}

	if err == nil && o.work.Ended != "" {
		o.outcome.State = o.work.Ended
		o.describe(ctx)
		return OperationResult{State: o.work.Ended}, nil
	}

	if in.Abandoned && err != nil && FromFailure(err).Kind == cyborg.ErrInternal {
		// What the earlier run did is unknown, and to end here would release the
		// accelerator in an unknown state. Fail the run instead: Reconcile starts
		// another one.
		return OperationResult{}, err
	}

	if err == nil {
		o.checked = true
		o.describe(ctx)
		err = s.do(ctx, o)
	}

	if err == nil {
		o.outcome.State = cyborg.OperationSucceeded
		return o.end(ctx)
	}

	if o.superseded != nil {
		return OperationResult{}, ToFailure(o.superseded)
	}

	cause := FromFailure(err)
	gaveUp := s.gaveUp != nil && s.gaveUp()
	if ctx.Err() != nil && cause.Kind != cyborg.ErrCancelled && !gaveUp {
		cause = cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled; its step ended with: %s", cause.Message)
	}

	o.outcome.State, o.outcome.Error = cyborg.OperationFailed, cause
	if cause.Kind == cyborg.ErrCancelled {
		o.outcome.State = cyborg.OperationCancelled
	}

	failures := o.compensate(ctx)
	if o.superseded != nil {
		return OperationResult{}, ToFailure(o.superseded)
	}

	if len(failures) > 0 {
		o.outcome.State = cyborg.OperationNeedsOperator
		o.outcome.Error = cyborg.Errorf(cause.Kind, "%s; undoing it failed as well: %s", cause.Message, strings.Join(failures, "; ")).
			WithHint("%s", o.remedy)
	}

	return o.end(ctx)
}

// uncancelled says that no cancel reaches a run that takes an operation over. It
// did in release 0.1, which did not say whose place a run took, and ended such a
// run's step.
func uncancelled(ctx workflow.Context, in OperationInput) bool {
	return in.Replaces != "" || workflow.GetVersion(ctx, "takeover-uncancelled", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// end records the outcome and releases the claims. Its context is detached from
// the run's: a cancelled operation must release its claims as well.
func (o *operation) end(ctx workflow.Context) (OperationResult, error) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()

	if o.outcome.Error != nil {
		o.outcome.Error = o.outcome.Error.WithOperation(o.in.Operation)
	}

	o.describe(ctx)
	var ended EndResult // the zero value from release 0.1
	if err := o.ask(ctx, EndActivity, o.outcome, &ended); err != nil {
		if o.superseded != nil {
			return OperationResult{}, ToFailure(o.superseded)
		}
		return OperationResult{}, err
	}

	o.notified = ended.Notified
	return OperationResult{State: o.outcome.State, Error: o.outcome.Error}, nil
}

// step does one step: a call to the host's agent, with its undo; undoStep may
// be nil. The undo is registered before the call, because a call whose answer
// is lost may have changed something. It is dropped again where it is certain
// that the agent touched nothing.
func (o *operation) step(ctx workflow.Context, name string, call call, undoStep func(ctx workflow.Context) error) error {
	o.note(ctx, name, cyborg.StepRunning, "")
	if undoStep != nil {
		o.undos = append(o.undos, undo{step: name, run: undoStep})
	}

	began, err := o.attempt(ctx, name, call)
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
	input    step // a pointer to the activity's input
	result   any
	limit    time.Duration // for one attempt
	undoing  bool
}

// step is the input of a step, which says which agent the step is for; see
// Addressee.
type step interface{ address(to Addressee) }

// The pauses between attempts double from the shortest to the longest.
const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 10 * time.Second
)

// attempt calls the agent until the call succeeds, fails for good, or
// Limits.Attempts is reached. The result began says that an agent may have
// begun the call, so that there may be something to undo. It stays true where
// the agent refuses a later attempt: the agent may have lost its journal, and
// with it the knowledge of an earlier attempt.
//
// Each attempt is an activity of its own. With Temporal's own retries, an
// activity that waits for its next attempt could not be told from one that no
// agent ever took, and only the latter has nothing to undo.
//
// Where the agent lives and has no slot left, the step waits for as long as the
// longest step of another operation may take, a clean aside: that takes hours. Such a wait is not counted as an
// attempt. Neither is it where another agent than the host's took the step and
// refused it, for as long as the host's agent may take to come; nor where the
// host has seen a later number, or the grant was no longer valid, for as long:
// the records give out new ones.
func (o *operation) attempt(ctx workflow.Context, name string, c call) (began bool, _ error) {
	options := o.options(c)
	options.ScheduleToStartTimeout = o.in.Limits.AgentWait
	options.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 1}
	pause := shortestPause
	slotDeadline := workflow.Now(ctx).Add(max(o.in.Limits.Step, o.in.Limits.Stage, o.in.Limits.Program))
	agentDeadline := workflow.Now(ctx).Add(o.in.Limits.AgentWait)

	for attempts := int32(1); ; attempts++ {
		if err := o.check(ctx); err != nil {
			return began, err
		}

		err := o.send(ctx, options, c)
		if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok && isStartTimeout(timeout) {
			o.askLastSeen(ctx)
			if o.lastSeen.Busy && workflow.Now(ctx).Before(slotDeadline) && ctx.Err() == nil {
				o.note(ctx, name, cyborg.StepRunning, "waits for a slot on host "+o.work.Host)
				attempts-- // the agent did not take it
				continue
			}
		}

		if err == nil || neverTaken(err) {
			return began, err
		}

		// Another agent, a number that is too low, or a grant that is too old: this
		// agent did not take it, and the records give the next try what it needs.
		kind := FromFailure(err).Kind
		other := kind == cyborg.ErrOtherAgent || kind == cyborg.ErrNotGranted || o.late
		uncounted := other && workflow.Now(ctx).Before(agentDeadline)
		if !retryable(err) || attempts >= o.in.Limits.Attempts && !uncounted || ctx.Err() != nil {
			return began || !refused(err), err
		}

		began = began || !other
		if uncounted {
			attempts--
		}

		o.note(ctx, name, cyborg.StepRunning, fmt.Sprintf("try %d: %s", max(attempts, 1), FromFailure(err).Message))
		if err := workflow.Sleep(ctx, pause); err != nil {
			return began, err
		}

		pause = min(2*pause, longestPause)
	}
}

// send sends a step to the host's agent and waits for its answer. The caller
// has just checked that the operation is this run's.
func (o *operation) send(ctx workflow.Context, options workflow.ActivityOptions, c call) error {
	o.checked = false // whatever happens while this waits, the records must be asked again
	c.input.address(Addressee{
		Instance: o.work.Instance, Run: workflow.GetInfo(ctx).WorkflowExecution.RunID, Assignment: o.work.Assignment,
		Journal: o.work.Journal, Grant: o.work.Grant,
	})
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), c.activity, c.input).Get(ctx, c.result)
	o.notice(err)
	o.late = isLate(err)
	return err
}

// isLate says that the host refused a step because it has seen a later number
// for the accelerator. The operation may have the accelerator all the same: the
// database may have been restored, or the host may know of a neighbour that the
// records do not.
func isLate(err error) bool {
	failure := FromFailure(err)
	return failure != nil && failure.Kind == cyborg.ErrLate
}

// options returns what all calls to the host's agent have in common.
func (o *operation) options(c call) workflow.ActivityOptions {
	return workflow.ActivityOptions{
		TaskQueue:           AgentQueue(o.work.Host),
		StartToCloseTimeout: c.limit,
		HeartbeatTimeout:    o.in.Limits.Heartbeat,
		// An undo must never overlap the step it undoes, so a cancelled step is waited
		// for.
		WaitForCancellation: true,
		Summary:             c.summary,
	}
}

// explain replaces the error of a step that no agent took with one that says
// why: the certificates of its host were revoked; or the agent has no slot left; or
// it was heard while the step waited, and so is busy or does not reach Temporal; or
// its host has been silent since a given time. Other errors stay as they are.
func (o *operation) explain(ctx workflow.Context, c call, err error) error {
	timeout, ok := errors.AsType[*temporal.TimeoutError](err)
	if !ok || !isStartTimeout(timeout) {
		return err
	}

	// For a step, attempt has already asked when the agent was last seen; for an
	// undo nobody has.
	wait := o.in.Limits.AgentWait
	if c.undoing {
		wait = o.in.Limits.Undo
		o.askLastSeen(ctx)
	}
	since := o.work.HostSilentSince
	if !o.lastSeen.At.IsZero() {
		since = o.lastSeen.At
	}

	if o.lastSeen.Revoked {
		return cyborg.Errorf(cyborg.ErrHostSilent, "the certificates of host %s were revoked; its agent did not take %q within %s", o.work.Host, c.summary, wait).
			WithHint("Enroll it again, with cyborg host enroll %s, then retry the operation.", o.work.Host)
	}

	if o.lastSeen.Busy {
		return cyborg.Errorf(cyborg.ErrHostSilent, "the agent of host %s had no slot left for %q all the time", o.work.Host, c.summary).
			WithHint("Retry the operation when others on the host have ended, or give its agent more slots (agent.slots).")
	}

	if workflow.Now(ctx).Sub(since) < wait {
		return cyborg.Errorf(cyborg.ErrHostSilent, "host %s was heard at %s, but its agent did not take %q within %s",
			o.work.Host, since.UTC().Format(time.RFC3339), c.summary, wait).
			WithHint("Look into the agent's log: it may have no slot left (agent.slots), or not reach Temporal. Then retry the operation.")
	}

	return cyborg.Errorf(cyborg.ErrHostSilent, "host %s has been %s; its agent did not take %q within %s",
		o.work.Host, cyborg.SilentSince(since), c.summary, wait).
		WithHint("Start cyborg-agent on %s, then retry the operation.", o.work.Host)
}

// askLastSeen asks the records when the host's agent was last heard, and
// whether it has a slot left. Its context is detached because the answer is
// needed to explain the failure of a cancelled step, too.
func (o *operation) askLastSeen(ctx workflow.Context) {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	var seen LastSeenResult
	if err := local(ctx, LastSeenActivity, LastSeenInput{Host: o.work.Host}, &seen); err == nil {
		o.lastSeen = seen
	}
}

// notStarted is the detail with which Temporal's server cancels an activity
// that no worker has taken (service/history/api/respondworkflowtaskcompleted,
// activityCancellationMsgActivityNotStarted).
const notStarted = "ACTIVITY_ID_NOT_STARTED"

// neverTaken says that no agent took an activity of a single attempt, so that
// there is nothing to undo.
func neverTaken(err error) bool {
	if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return isStartTimeout(timeout)
	}

	cancelled, ok := errors.AsType[*temporal.CanceledError](err)
	if !ok {
		return false
	}

	if !cancelled.HasDetails() { // the SDK cancelled it before it was scheduled
		return true
	}

	var why string
	return cancelled.Details(&why) == nil && why == notStarted
}

// retryable says whether a failed attempt is worth another one.
func retryable(err error) bool {
	if timeout, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		return !isStartTimeout(timeout)
	}

	application, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && !application.NonRetryable() && !isUnknownStep(err)
}

// refused says that the agent changed nothing, neither in this attempt nor in
// an earlier one that its journal knows. Agents answer with an error of these
// kinds only in that case; see cyborg.ErrorKind.Refusal.
func refused(err error) bool {
	application, ok := errors.AsType[*temporal.ApplicationError](err)
	return ok && cyborg.ErrorKind(application.Type()).Refusal()
}

// isStartTimeout says that no worker took the activity in time.
func isStartTimeout(err *temporal.TimeoutError) bool {
	return err.TimeoutType() == enumspb.TIMEOUT_TYPE_SCHEDULE_TO_START
}

// note sets the state and the note of a step, or appends the step where it is
// new. The list goes into the outcome, and into Temporal's UI at once.
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

// record writes the steps so far to the records, so that the API shows them
// while the operation goes on. It is used only by operations of several long
// steps: for the others it is not worth a write.
func (o *operation) record(ctx workflow.Context) error {
	var result CheckRunResult // the zero value from release 0.1
	err := o.ask(ctx, RecordActivity, RecordInput{Operation: o.in.Operation, Steps: o.outcome.Steps, Grant: o.work.Grant}, &result)
	o.checked = err == nil
	if result != (CheckRunResult{}) {
		o.follow(result)
	}
	return err
}

// describe shows the host, the targets, the steps and the outcome in Temporal's
// UI, as Markdown.
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

// target is the accelerator that the operation was requested for. Only kinds
// that work on accelerators may call it.
func (o *operation) target() cyborg.Target { return o.work.Targets[0] }

// journalID is the id under which the host's journal keeps an operation's steps
// for the accelerator at index i. The journal holds one step of a kind per id, so each
// accelerator but the first needs an id of its own. It is derived from the
// operation, so that a run that takes over arrives at the same one.
func journalID(work cyborg.Work, i int, accelerator uuid.UUID) uuid.UUID {
	if i == 0 {
		return work.Operation
	}

	return uuid.NewSHA1(work.Operation, accelerator[:])
}

// observe keeps what the agent saw after a change: End records it together with
// the outcome. It replaces what the agent saw of the same device before: a bind may
// have many handles of one card. Sequence 0 means that there is no observation.
func (o *operation) observe(result *ChangeResult) {
	if !result.changed() {
		return
	}

	seen := result.Observation
	o.outcome.Observations = slices.DeleteFunc(o.outcome.Observations, func(before cyborg.Observation) bool {
		return before.Backend == seen.Backend && before.Device.Identity == seen.Device.Identity && before.Sequence < seen.Sequence
	})
	o.outcome.Observations = append(o.outcome.Observations, seen)
}

// ask runs an activity that the records answer only to the run that has the
// operation. It remembers what they say about that.
func (o *operation) ask(ctx workflow.Context, name string, in, out any) error {
	err := local(ctx, name, in, out)
	o.notice(err)
	return err
}

// notice remembers an error that says that the operation is not, or no longer,
// this run's.
func (o *operation) notice(err error) {
	if failure := FromFailure(err); failure != nil && failure.Kind == cyborg.ErrSuperseded {
		o.superseded = failure
	}
}

// check makes sure that this run still has the operation, unless the records
// have just said so, and learns which agent the host has now. It comes before
// each step and each undo: a run that was reset, or whose operation was taken
// over or has ended, must not touch the hardware any more.
func (o *operation) check(ctx workflow.Context) error {
	if o.checked || !fenced(ctx) {
		return nil
	}

	var result CheckRunResult
	if err := o.ask(ctx, CheckRunActivity, CheckRunInput{Operation: o.in.Operation, Late: o.late, Grant: o.work.Grant}, &result); err != nil {
		return err
	}

	o.checked, o.late = true, false
	o.follow(result)
	return nil
}

// follow takes what the next step has to carry.
func (o *operation) follow(result CheckRunResult) {
	o.work.Agent, o.work.Assignment, o.work.Grant = result.Agent, result.Assignment, result.Grant
}

// fenced says that the run asks the records before its steps, and repeats undos
// itself instead of having Temporal repeat them. A run of release 0.1 does so
// unless its history has already passed such a place without. It is called only
// where it makes a difference, because the answer takes a place in the history.
func fenced(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "fences", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// noLimit is the limit for all attempts of a local activity. Without one, the
// SDK takes that of one attempt for all of them together, by the clock of the
// worker.
const noLimit = 10 * 365 * 24 * time.Hour

// local runs an activity that touches the records, in the process that runs the
// workflow task: a local activity saves the round trips to Temporal. The
// database may be away for a while, so there is no limit to the attempts but a
// cancel.
//
// A pause between two attempts is about a quarter of the time since the first,
// and five minutes at most. A pause that is longer than a workflow task becomes
// a timer of Temporal's, so that the attempts of two weeks fit into a history.
func local(ctx workflow.Context, name string, in, out any) error {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout:    15 * time.Second,
		ScheduleToCloseTimeout: noLimit,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval:    100 * time.Millisecond,
			BackoffCoefficient: 1.3,
			MaximumInterval:    5 * time.Minute,
		},
	})

	return workflow.ExecuteLocalActivity(ctx, name, in).Get(ctx, out)
}
