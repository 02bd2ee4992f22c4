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
}

// Findings is what a round found that is not as it should be.
type Findings struct {
	// OverdueHosts are silent; Since is when each was last heard.
	OverdueHosts []OverdueHost `json:"overdue_hosts"`
	// Orphans are open operations that no run looks after.
	Orphans []Orphan `json:"orphans"`
	// Disagreements are attachments of which a host's journal and the records say different things.
	Disagreements []Disagreement `json:"disagreements"`
}

// OverdueHost is a host whose agent is silent.
type OverdueHost struct {
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// Orphan is an open operation without a run.
type Orphan struct {
	Operation uuid.UUID `json:"operation"`
	// Abandoned says that it had a run, which was closed from outside; else none was ever started.
	Abandoned bool `json:"abandoned"`
}

// Disagreement is an attachment to settle, with what the records decided.
type Disagreement struct {
	Host        string                 `json:"host"`
	Accelerator uuid.UUID              `json:"accelerator"`
	Journal     cyborg.AttachmentState `json:"journal"`  // "" for no entry
	Recorded    string                 `json:"recorded"` // attached, in_doubt, "" for free
	Entry       SettleEntry            `json:"entry"`
}

// InspectInput is the input of the Inspect activity.
type InspectInput struct {
	OrphanAfter time.Duration `json:"orphan_after"`
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
	err := workflow.ExecuteActivity(records, InspectActivity, InspectInput{OrphanAfter: in.OrphanAfter}).Get(ctx, &out.Found)
	if err != nil {
		return out, err
	}
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
	return out, nil
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
