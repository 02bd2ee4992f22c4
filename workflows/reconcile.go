package workflows

import (
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// ReconcileInput bounds one round.
type ReconcileInput struct {
	Limits Limits `json:"limits"`
	// OrphanAfter is how old an open operation must be before its workflow is looked for.
	OrphanAfter time.Duration `json:"orphan_after"`
	// AgentWait is how long a host is waited for; what it misses, the next round finds again.
	AgentWait time.Duration `json:"agent_wait"`
	// Placement is of how many hosts a round compares what Placement has with the records; 0 where there is no Placement.
	Placement int `json:"placement,omitempty"`
}

// Findings is what a round found that is not as it should be.
type Findings struct {
	// OverdueHosts are silent; Since is when each was last heard.
	OverdueHosts []OverdueHost `json:"overdue_hosts"`
	// Orphans are open operations that no run looks after, and binds that have ended and of which no run tells Nova.
	Orphans []Orphan `json:"orphans"`
	// Disagreements are attachments of which a host's journal and the records say different things.
	Disagreements []Disagreement `json:"disagreements"`
	// Next is where the next round goes on: a round looks at as much as it can hold.
	Next Place `json:"next,omitzero"`
}

// Place is how far a round has looked: the last host and the last operations, each of them empty where it was the last of
// all, so that the next round begins anew.
type Place struct {
	Host string `json:"host,omitempty"`
	// Deployable and Handle are the last of that host, where not all of it was looked at.
	Deployable          string         `json:"deployable,omitempty"`
	Handle              string         `json:"handle,omitempty"`
	Admitted            OperationPlace `json:"admitted,omitzero"` // of the operations that have not begun,
	Running             OperationPlace `json:"running,omitzero"`  // and of those that run,
	NotificationPending OperationPlace `json:"untold,omitzero"`   // and of the binds of which Nova was not told
}

// OperationPlace is an operation's place in the order of admission.
type OperationPlace struct {
	Admitted time.Time `json:"admitted_at"`
	ID       uuid.UUID `json:"id"`
}

// OverdueHost is a host whose agent is silent.
type OverdueHost struct {
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// Orphan is an operation without a run that needs one.
type Orphan struct {
	Operation uuid.UUID `json:"operation"`
	// Abandoned says that it had a run, which was closed from outside; else none was ever started.
	Abandoned bool `json:"abandoned"`
	// UnnotifiedBinds says that it is a bind that has ended, and that Nova does not know.
	NotificationPending bool `json:"untold,omitempty"`
}

// Disagreement is an attachment to settle, with what the records decided.
type Disagreement struct {
	Host        string                 `json:"host"`
	Accelerator uuid.UUID              `json:"accelerator"`
	Journal     cyborg.AttachmentState `json:"journal"`  // "" for no entry
	Recorded    string                 `json:"recorded"` // attached, in_doubt, left (taken back by force), "" for free
	Entry       SettleEntry            `json:"entry"`
	// Left is the operation that attached what is left; zero where nothing is.
	Unconfirmed uuid.UUID `json:"left_operation,omitzero"`
}

// InspectInput is the input of the Inspect activity.
type InspectInput struct {
	OrphanAfter time.Duration `json:"orphan_after"`
	// From is where the round before ended.
	From Place `json:"from,omitzero"`
}

// AdoptInput lists orphans to start runs for.
type AdoptInput struct {
	Orphans []Orphan `json:"orphans"`
	Limits  Limits   `json:"limits"`
}

// AdoptResult says how many got a run; Failed has a sentence for each that could not be started.
type AdoptResult struct {
	Started int      `json:"started"`
	Failed  []string `json:"failed,omitempty"`
}

// TidyInput asks for the work that needs no host: expired maintenance, forgotten devices, old rows, new hardware where
// inventory.admission is auto.
type TidyInput struct {
	Limits Limits `json:"limits"`
}

// TidyResult counts what was done.
type TidyResult struct {
	MaintenanceEnded int `json:"maintenance_ended"`
	Forgotten        int `json:"forgotten"`
	Pruned           int `json:"pruned"`
	Admitted         int `json:"admitted"`
	// Collected counts accelerator requests that were never bound, and instances whose requests were left over.
	Collected int `json:"collected,omitempty"`
	// Rescued counts hosts whose instances Nova is asked to reboot.
	Rescued int `json:"rescued,omitempty"`
	// Reloaded counts accelerators whose images are loaded again.
	Reloaded int `json:"reloaded,omitempty"`
}

// RecordSettledInput lists disagreements that the hosts have settled.
type RecordSettledInput struct {
	Disagreements []Disagreement `json:"disagreements"`
}

// ReconcileResult is the report of one round: all it found, and what it repaired.
type ReconcileResult struct {
	Found   Findings    `json:"found"`
	Adopted AdoptResult `json:"adopted"`
	Tidied  TidyResult  `json:"tidied"`
	Settled int         `json:"settled"`
	// Placement is what the comparison with it found.
	Placement *ComparePlacementResult `json:"placement,omitempty"`
	// Unsettled has a sentence for each disagreement that remains, and for each part of the round that failed.
	Unsettled []string `json:"unsettled"`
}

// Reconcile compares the records with the runs and with the hosts' journals. It reports everything and repairs what is
// safe: it starts runs for operations without one, ends maintenance that is over, and has hosts bring attachments into
// the state that the records decided. One part that fails does not keep the others from running.
func Reconcile(ctx workflow.Context, in ReconcileInput) (ReconcileResult, error) {
	var out ReconcileResult
	records := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 5 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 5, MaximumInterval: 10 * time.Second},
	})
	inspect := InspectInput{OrphanAfter: in.OrphanAfter}
	var before ReconcileResult
	if workflow.GetLastCompletionResult(ctx, &before) == nil { // else there was none, or it cannot be read: this begins anew
		inspect.From = before.Found.Next
	}
	inspected := workflow.ExecuteActivity(records, InspectActivity, inspect).Get(ctx, &out.Found)
	failed := func(what string, err error) {
		if err != nil {
			out.Unsettled = append(out.Unsettled, what+": "+FromFailure(err).Message)
		}
	}
	if len(out.Found.Orphans) > 0 {
		adopt := AdoptInput{Orphans: out.Found.Orphans, Limits: in.Limits}
		failed("starting orphans", workflow.ExecuteActivity(records, AdoptActivity, adopt).Get(ctx, &out.Adopted))
		out.Unsettled = append(out.Unsettled, out.Adopted.Failed...)
	}
	failed("tidying", workflow.ExecuteActivity(records, TidyActivity, TidyInput{Limits: in.Limits}).Get(ctx, &out.Tidied))

	settled, errs := settle(ctx, in, out.Found.Disagreements)
	out.Unsettled = append(out.Unsettled, errs...)
	if len(settled) > 0 {
		err := workflow.ExecuteActivity(records, RecordSettledActivity, RecordSettledInput{Disagreements: settled}).Get(ctx, nil)
		failed("recording what hosts settled", err)
		if err == nil {
			out.Settled = len(settled)
		}
	}
	if in.Placement > 0 {
		failed("comparing Placement", comparePlacement(ctx, in.Placement, &out))
	}
	return out, inspected // a round that failed is none: the next one looks from where this one did
}

// comparePlacement is tried once: the next round goes on, and nothing else of a round waits for a Placement that is away.
func comparePlacement(ctx workflow.Context, hosts int, out *ReconcileResult) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 2 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{MaximumAttempts: 1},
	})
	err := workflow.ExecuteActivity(ctx, ComparePlacementActivity, ComparePlacementInput{Hosts: hosts}).Get(ctx, &out.Placement)
	if err == nil && out.Placement != nil {
		out.Unsettled = append(out.Unsettled, out.Placement.Failed...)
	}
	return err
}

// settle asks each host, all at once, to settle its attachments. It returns those that are settled.
func settle(ctx workflow.Context, in ReconcileInput, found []Disagreement) ([]Disagreement, []string) {
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
			err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
				TaskQueue:              AgentQueue(host),
				ScheduleToStartTimeout: in.AgentWait,
				StartToCloseTimeout:    in.Limits.Step,
				HeartbeatTimeout:       in.Limits.Heartbeat,
				Summary:                "settle attachments of " + host,
				// The next round tries again, and does not wait longer than it must for a host that hangs.
				RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1},
			}), SettleActivity, input).Get(ctx, &result)
			if err != nil {
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
