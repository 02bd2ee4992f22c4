package workflows

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// ReconcileInput bounds one round of Reconcile.
type ReconcileInput struct {
	Limits Limits `json:"limits"`
	// OrphanAfter is how old an open operation must be before Reconcile asks
	// Temporal for its run. A younger one may only be on its way from admission to
	// its start.
	OrphanAfter time.Duration `json:"orphan_after"`
	// AgentWait is how long a host's agent has to take a request. What it misses,
	// the next round finds again.
	AgentWait time.Duration `json:"agent_wait"`
	// Placement is how many hosts a round compares with Placement at most; 0
	// without Placement.
	Placement int `json:"placement,omitempty"`
}

// Findings is what a round found that is not as it should be.
type Findings struct {
	// OverdueHosts are the silent hosts.
	OverdueHosts []OverdueHost `json:"overdue_hosts"`
	// Orphans are open operations without an open run of their own, or with one that
	// was not told of a cancel, and ended binds whose notification no run sends.
	Orphans []Orphan `json:"orphans"`
	// Disagreements are the attachments on which a host's journal and the records
	// differ.
	Disagreements []Disagreement `json:"disagreements"`
	// Next is where the next round goes on. A round looks at a bounded part, so
	// that its cost does not grow with the number of hosts and operations.
	Next Place `json:"next,omitzero"`
	// Failed has a sentence for each list that could not be looked at.
	Failed []string `json:"failed,omitempty"`
}

// Inspection is how far the Inspect activity has got. Its heartbeats say so: its
// next try goes on from there, and so does the next round where there is none.
type Inspection struct {
	Found Findings `json:"found"` // with the place that was reached as Next
	// List counts the lists that are done, and Looked what was looked at in the one
	// after them.
	List   int `json:"list"`
	Looked int `json:"looked"`
}

// Place says how far a round has looked in each of its lists. A list that was
// looked through to its end has an empty place, and the next round begins it
// anew.
type Place struct {
	Host string `json:"host,omitempty"`
	// Deployable and Handle are the last ones of Host that were looked at; empty
	// where all of Host was.
	Deployable string `json:"deployable,omitempty"`
	Handle     string `json:"handle,omitempty"`

	Admitted OperationPlace `json:"admitted,omitzero"` // among operations that have not begun
	Running  OperationPlace `json:"running,omitzero"`  // among operations that run
	// NotificationPending is the place among the ended binds whose notification is
	// pending.
	NotificationPending OperationPlace `json:"untold,omitzero"`
}

// OperationPlace is an operation's place in the order of admission.
type OperationPlace struct {
	Admitted time.Time `json:"admitted_at"`
	ID       uuid.UUID `json:"id"`
}

// OverdueHost is a host whose agent is silent.
type OverdueHost struct {
	Host  string    `json:"host"`
	Since time.Time `json:"since"` // when the agent was last heard
}

// Orphan is an operation that needs a run and has none, or one that does not
// know of a cancel.
type Orphan struct {
	Operation uuid.UUID `json:"operation"`
	// Abandoned says that the operation had a run, which was closed from outside.
	// Else none was ever started.
	Abandoned bool `json:"abandoned"`
	// NotificationPending says that the operation is a bind that has ended, and
	// that Nova was not notified of it.
	NotificationPending bool `json:"untold,omitempty"`
	// CancelPending says that the operation has a run, which has not been told that
	// somebody wants the operation cancelled.
	CancelPending bool `json:"cancel_pending,omitempty"`
}

// Disagreement is an attachment to settle, and how the records decided it.
type Disagreement struct {
	Host        string    `json:"host"`
	Accelerator uuid.UUID `json:"accelerator"`
	// Journal is the state in the host's journal; empty where the journal has no
	// entry.
	Journal cyborg.AttachmentState `json:"journal"`
	// Recorded is the state in the records: attached, in_doubt, left (taken back by
	// force, and not confirmed by the host), given (to an instance or a service), or
	// empty for free.
	Recorded string      `json:"recorded"`
	Entry    SettleEntry `json:"entry"`
	// Agent is the one that the host had when this was read.
	Agent cyborg.Agent `json:"agent,omitzero"`
	// Unconfirmed is set if the handle was taken back and its host has not
	// confirmed that: it is the operation that had attached the handle.
	Unconfirmed uuid.UUID `json:"left_operation,omitzero"`
	// Assignment is the number of the decision; 0 for a disagreement that was only
	// found.
	Assignment int64 `json:"assignment,omitempty"`
	// Report is the number of the host's report from which Journal was read; 0 where
	// release 0.1 has read it.
	Report int64 `json:"report,omitempty"`
	// Changed says whether the host had to change anything to settle this; nil where
	// its agent did not say. Observations are what it saw of the device then.
	Changed      *bool                `json:"changed,omitempty"`
	Observations []cyborg.Observation `json:"observations,omitempty"`
}

// DecideInput names the disagreement to look at again.
type DecideInput struct {
	Disagreement Disagreement `json:"disagreement"`
}

// DecideResult is the disagreement as it is now, with the number of this
// decision. Settled says that there is none any more.
type DecideResult struct {
	Disagreement Disagreement `json:"disagreement"`
	Settled      bool         `json:"settled,omitempty"`
	// Grant is what the host may do about it, signed by a conductor.
	Grant string `json:"grant,omitempty"`
}

// InspectInput is the input of the Inspect activity.
type InspectInput struct {
	OrphanAfter time.Duration `json:"orphan_after"`
	// From is the Next of the previous round.
	From Place `json:"from,omitzero"`
}

// AdoptInput lists the orphans that get a run.
type AdoptInput struct {
	Orphans []Orphan `json:"orphans"`
	Limits  Limits   `json:"limits"`
}

// AdoptResult says for how many orphans a run was started, how many runs were
// told of a cancel, and how many were terminated because the operation was not
// theirs. Failed has a sentence for each orphan where that was not possible.
type AdoptResult struct {
	Started    int `json:"started"`
	Cancelled  int `json:"cancelled,omitempty"`
	Terminated int `json:"terminated,omitempty"`

	Failed []string `json:"failed,omitempty"`
}

// TidyInput asks for the work that needs no host: to end expired maintenance,
// forget vanished devices, delete old rows, collect accelerator requests that
// nobody needs, and admit operations for new hardware, lost images and
// instances.
type TidyInput struct {
	Limits Limits `json:"limits"`
}

// TidyResult counts what was done.
type TidyResult struct {
	MaintenanceEnded int `json:"maintenance_ended"` // accelerators
	Forgotten        int `json:"forgotten"`         // devices
	Pruned           int `json:"pruned"`            // rows
	Admitted         int `json:"admitted"`          // new accelerators that are being taken into service
	// Collected counts deleted accelerator requests that were never bound, and
	// instances whose requests were deleted.
	Collected int `json:"collected,omitempty"`
	// Rescued counts hosts whose instances Nova is asked to reboot.
	Rescued int `json:"rescued,omitempty"`
	// Reloaded counts accelerators whose images are loaded again.
	Reloaded int `json:"reloaded,omitempty"`
	// Retired counts accelerators that were retired while their host did not show
	// them, and that are uninstalled now.
	Retired int `json:"retired,omitempty"`
	// Cleaned counts accelerators whose handles are cleaned after their last holders.
	Cleaned int `json:"cleaned,omitempty"`
}

// RecordSettledInput lists disagreements that the hosts have settled.
type RecordSettledInput struct {
	Disagreements []Disagreement `json:"disagreements"`
}

// RecordUnsettledInput names a disagreement that remains, and says why.
type RecordUnsettledInput struct {
	Disagreement Disagreement `json:"disagreement"`
	Error        string       `json:"error"`
}

// ReconcileResult is the report of one round: everything that it found, and
// what it repaired.
type ReconcileResult struct {
	Found   Findings    `json:"found"`
	Adopted AdoptResult `json:"adopted"`
	Tidied  TidyResult  `json:"tidied"`
	Settled int         `json:"settled"` // disagreements
	// Placement is the result of the comparison with Placement; nil without
	// Placement, or where the comparison failed.
	Placement *ComparePlacementResult `json:"placement,omitempty"`
	// Unsettled has a sentence for each disagreement that remains, and for each
	// part of the round that failed.
	Unsettled []string `json:"unsettled"`
	// MoreUnsettled counts the sentences for which Unsettled has no room.
	MoreUnsettled int `json:"more_unsettled,omitempty"`
}

// Temporal takes no result of more than 2 MiB (limit.blobSize.error). A run whose
// result it does not take goes on for ever, and no other round begins meanwhile. Hosts
// write some of these sentences.
const (
	longestSentence = 1000     // in characters
	maxUnsettled    = 64 << 10 // in bytes, of which each may become six in JSON
)

// leave notes what remains unsettled.
func (r *ReconcileResult) leave(sentences ...string) {
	for _, sentence := range sentences {
		sentence = cyborg.Sanitize(sentence, longestSentence)
		left := maxUnsettled - len(sentence)
		for _, other := range r.Unsettled {
			left -= len(other)
		}

		if left < 0 {
			r.MoreUnsettled++
		} else {
			r.Unsettled = append(r.Unsettled, sentence)
		}
	}
}

// RunTimeout is longer than any round takes. A run that hangs all the same must not
// keep the next rounds from beginning.
func (in ReconcileInput) RunTimeout() time.Duration {
	const activities = 2 * time.Hour // Inspect, Adopt and Tidy have five tries of five minutes each
	return activities + 2*(in.AgentWait+in.Limits.Step)
}

// Reconcile compares the records with the runs and with the hosts' journals. It
// reports everything and repairs what is safe: it starts runs for operations
// without one, ends maintenance that is over, and has hosts bring attachments
// into the state that the records decided. A part that fails does not keep the
// others from running. The error is non-nil only where nothing could be inspected.
func Reconcile(ctx workflow.Context, in ReconcileInput) (ReconcileResult, error) {
	var out ReconcileResult
	records := withInspection(ctx)
	inspect := InspectInput{OrphanAfter: in.OrphanAfter}
	var before ReconcileResult
	// Without a previous result, or with an unreadable one, the round begins at the
	// start of each list.
	if workflow.GetLastCompletionResult(ctx, &before) == nil {
		inspect.From = before.Found.Next
	}

	inspected := workflow.ExecuteActivity(records, InspectActivity, inspect).Get(ctx, &out.Found)
	if reached := inspectedBefore(inspected); reached != nil && repairsWhatWasReached(ctx) {
		out.Found, inspected = *reached, nil
		out.leave("inspecting was cut off; the next round goes on where it was")
	}
	out.leave(out.Found.Failed...)

	report := func(part string, err error) {
		if err != nil {
			out.leave(part + ": " + FromFailure(err).Message)
		}
	}

	if len(out.Found.Orphans) > 0 {
		adopt := AdoptInput{Orphans: out.Found.Orphans, Limits: in.Limits}
		report("starting orphans", workflow.ExecuteActivity(records, AdoptActivity, adopt).Get(ctx, &out.Adopted))
		out.leave(out.Adopted.Failed...)
	}

	report("tidying", workflow.ExecuteActivity(records, TidyActivity, TidyInput{Limits: in.Limits}).Get(ctx, &out.Tidied))

	if len(out.Found.Disagreements) > 0 {
		if workflow.GetVersion(ctx, "settle-one-by-one", workflow.DefaultVersion, 1) == workflow.DefaultVersion {
			settled, errs := settleAtOnce(ctx, in, out.Found.Disagreements)
			out.leave(errs...)
			if len(settled) > 0 {
				err := workflow.ExecuteActivity(records, RecordSettledActivity, RecordSettledInput{Disagreements: settled}).Get(ctx, nil)
				report("recording what hosts settled", err)
				if err == nil {
					out.Settled = len(settled)
				}
			}
		} else {
			settle(ctx, in, &out)
		}
	}

	if in.Placement > 0 {
		report("comparing Placement", comparePlacement(ctx, in.Placement, &out))
	}

	// Where nothing could be inspected, the run fails. Temporal keeps no result of a
	// failed run, so the next round begins where this one did.
	return out, inspected
}

// withInspection is for the activities of a round that look at all the records.
func withInspection(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 5 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 5, MaximumInterval: 10 * time.Second},
	})
}

// inspectedBefore returns what an inspection has found that was cut off: each of
// its tries took too long, or its process went away. It returns nil for any other
// error, and where nothing was looked at.
func inspectedBefore(err error) *Findings {
	cut, ok := errors.AsType[*temporal.TimeoutError](err)
	if !ok || !cut.HasLastHeartbeatDetails() {
		return nil
	}

	var reached Inspection
	if cut.LastHeartbeatDetails(&reached) != nil || reached.List == 0 && reached.Looked == 0 {
		return nil
	}
	return &reached.Found
}

// repairsWhatWasReached says that the round repairs what an inspection has found that
// was cut off. Rounds of release 0.1 did not.
func repairsWhatWasReached(ctx workflow.Context) bool {
	return workflow.GetVersion(ctx, "inspection-goes-on", workflow.DefaultVersion, 1) != workflow.DefaultVersion
}

// comparePlacement compares hosts with Placement. It has one attempt, so that a
// Placement that is away does not delay the end of the round; the next round
// tries again.
func comparePlacement(ctx workflow.Context, hosts int, out *ReconcileResult) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 2 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 1},
	})

	err := workflow.ExecuteActivity(ctx, ComparePlacementActivity, ComparePlacementInput{Hosts: hosts}).Get(ctx, &out.Placement)
	if err == nil && out.Placement != nil {
		out.leave(out.Placement.Failed...)
	}
	return err
}

// settlingHosts is how many hosts settle at the same time. Each takes a
// connection to the database for a moment, again and again.
const settlingHosts = 20

// fullHistory is how many bytes the history of a round has at most when it asks a
// host. Temporal ends a run whose history is larger than 50 MB, and each answer of a
// host may take 2 MiB.
const fullHistory = 8 << 20

// settle settles the disagreements: several hosts at the same time, and those of
// one host one after the other. For each it asks the records once more what is to be
// done, has the host do it, and records that. Whatever is decided so is at most
// one step old when it reaches the host, and the host refuses it where an
// operation was faster. Where it has no time for some hosts, or no room in its
// history, Next becomes the place before them, so that slow ones do not keep them
// waiting in every round.
func settle(ctx workflow.Context, in ReconcileInput, out *ReconcileResult) {
	byHost := map[string][]Disagreement{}
	var hosts []string // in the order of the list, which is that of places
	for _, d := range out.Found.Disagreements {
		if _, ok := byHost[d.Host]; !ok {
			hosts = append(hosts, d.Host)
		}
		byHost[d.Host] = append(byHost[d.Host], d)
	}

	done, begun := 0, 0 // hosts
	ends := workflow.Now(ctx).Add(in.AgentWait + in.Limits.Step)
	places := workflow.NewSemaphore(ctx, settlingHosts)

	for _, host := range hosts {
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer func() { done++ }()
			if places.Acquire(ctx, 1) != nil {
				return // the round was cancelled, which the caller tells
			}
			defer places.Release(1)

			for n, d := range byHost[host] {
				// The next rounds go on with what this one has no time for: hosts that are slow
				// must not keep all other work waiting for its next round.
				if roundIsFull(ctx, ends) {
					out.leave(fmt.Sprintf("host %s: %d attachments are left to the next rounds", host, len(byHost[host])-n))
					return
				}

				if n == 0 {
					begun++ // they begin in their order
				}

				asked, err := settleOne(ctx, in, &d)
				if err != nil {
					why := FromFailure(err).Message
					out.leave("host " + host + ", " + d.Entry.Handle.Identity + ": " + why)
					recordUnsettled(ctx, d, why, out)
				} else if asked {
					out.Settled++
				}

				if neverTaken(err) { // its agent is away, and would miss the others as well
					return
				}
			}
		})
	}

	if err := workflow.Await(ctx, func() bool { return done == len(hosts) }); err != nil {
		out.leave(FromFailure(err).Message)
	}

	if begun > 0 && begun < len(hosts) {
		next := &out.Found.Next
		next.Host, next.Deployable, next.Handle = hosts[begun-1], "", ""
	}
}

// roundIsFull reports whether a round has no time or no room in its history to ask
// another host.
func roundIsFull(ctx workflow.Context, ends time.Time) bool {
	return workflow.GetInfo(ctx).GetCurrentHistorySize() > fullHistory || !workflow.Now(ctx).Before(ends)
}

// settleOne settles one disagreement, which becomes what was decided about it. The
// result says that its host was asked and has settled it; it is false where there was
// nothing to settle any more.
func settleOne(ctx workflow.Context, in ReconcileInput, d *Disagreement) (asked bool, _ error) {
	records := withRecords(ctx)
	var decided DecideResult
	if err := workflow.ExecuteLocalActivity(records, DecideActivity, DecideInput{Disagreement: *d}).Get(ctx, &decided); err != nil || decided.Settled {
		return false, err
	}

	*d = decided.Disagreement
	input := settleInput(*d)
	input.address(Addressee{
		Instance: d.Agent.Instance, Run: workflow.GetInfo(ctx).WorkflowExecution.RunID, Assignment: d.Assignment, Journal: d.Agent.Journal, Grant: decided.Grant,
	})

	var result SettleResult
	if err := askToSettle(ctx, in, *input, &result); err != nil {
		return false, err
	}

	if text, ok := result.Errors[d.Entry.Handle.Identity]; ok {
		return false, cyborg.Errorf(cyborg.ErrHardware, "%s", text)
	}

	if changed, ok := result.Changed[d.Entry.Handle.Identity]; ok {
		d.Changed, d.Observations = &changed, result.Observations
	}

	err := workflow.ExecuteLocalActivity(records, RecordSettledActivity, RecordSettledInput{Disagreements: []Disagreement{*d}}).Get(ctx, nil)
	return err == nil, err
}

// withRecords is for what is asked of the records about one disagreement.
func withRecords(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout:    15 * time.Second,
		ScheduleToCloseTimeout: noLimit,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 5, MaximumInterval: 5 * time.Second},
	})
}

// recordUnsettled records why a disagreement remains, for whoever looks after the host.
func recordUnsettled(ctx workflow.Context, d Disagreement, why string, out *ReconcileResult) {
	in := RecordUnsettledInput{Disagreement: d, Error: cyborg.Sanitize(why, longestSentence)}
	if err := workflow.ExecuteLocalActivity(withRecords(ctx), RecordUnsettledActivity, in).Get(ctx, nil); err != nil {
		out.leave("recording what host " + d.Host + " could not settle: " + FromFailure(err).Message)
	}
}

// PermittedAbout lists what the host may do about a decided disagreement.
func PermittedAbout(d Disagreement) []Permitted {
	return []Permitted{{SettleActivity, settleInput(d)}}
}

// settleInput is the input for one disagreement.
func settleInput(d Disagreement) *SettleInput {
	return &SettleInput{Host: d.Host, Entries: []SettleEntry{d.Entry}}
}

// askToSettle sends entries to their host.
func askToSettle(ctx workflow.Context, in ReconcileInput, input SettleInput, result *SettleResult) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              AgentQueue(input.Host),
		ScheduleToStartTimeout: in.AgentWait,
		StartToCloseTimeout:    in.Limits.Step,
		HeartbeatTimeout:       in.Limits.Heartbeat,
		Summary:                "settle attachments of " + input.Host,
		// One attempt: the next round tries again, and this one must not wait long for
		// a host that hangs.
		RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1},
	}), SettleActivity, input).Get(ctx, result)
}

// settleAtOnce is settle for a round that release 0.1 began: it sends all
// entries of a host together, as they were found. It returns the disagreements
// that are settled, and a sentence for each that is not.
func settleAtOnce(ctx workflow.Context, in ReconcileInput, found []Disagreement) ([]Disagreement, []string) {
	byHost := map[string][]Disagreement{}
	for _, d := range found {
		byHost[d.Host] = append(byHost[d.Host], d)
	}

	var (
		settled []Disagreement
		errs    []string
		done    int
		hosts   = workflow.DeterministicKeys(byHost)
	)

	for _, host := range hosts {
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer func() { done++ }()

			input := SettleInput{Host: host}
			for _, d := range byHost[host] {
				input.Entries = append(input.Entries, d.Entry)
			}

			var result SettleResult
			if err := askToSettle(ctx, in, input, &result); err != nil {
				errs = append(errs, "host "+host+": "+FromFailure(err).Message)
				return
			}

			for _, d := range byHost[host] {
				if text, ok := result.Errors[d.Entry.Handle.Identity]; ok {
					errs = append(errs, "host "+host+", "+d.Entry.Handle.Identity+": "+text)
					continue
				}
				settled = append(settled, d)
			}
		})
	}

	if err := workflow.Await(ctx, func() bool { return done == len(hosts) }); err != nil {
		errs = append(errs, FromFailure(err).Message)
	}

	return settled, errs
}
