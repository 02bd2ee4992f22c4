package workflows

import (
	"context"
	"slices"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// SettleHostInput names the host whose attachments are to be settled.
type SettleHostInput struct {
	Host      string        `json:"host"`
	Limits    Limits        `json:"limits"`
	AgentWait time.Duration `json:"agent_wait"` // as of ReconcileInput
	// Every is the time between two rounds of Reconcile, which no pause exceeds.
	Every time.Duration `json:"every"`
	// Pause is the first pause; 0 for SettleWindow. A run that has become long goes on
	// in a new one, which begins with the pause that comes next.
	Pause time.Duration `json:"pause,omitempty"`
}

// InspectHostInput names the host whose attachments are compared with the records.
type InspectHostInput struct {
	Host string `json:"host"`
}

// SettleWindow is how long a run waits after it has settled the attachments of its
// host. What the host reports meanwhile is settled together, when the window is
// over. So a rebinding by hand is settled at once, or at the end of the window where
// another was settled just before.
const SettleWindow = 5 * time.Second

// longestSettlePause and longestSettling bound the pauses and the time of a run. The
// time is checked between two settlings, of which each takes AgentWait and Limits.Step
// at most.
const (
	longestSettlePause = 10 * time.Minute
	longestSettling    = time.Hour
)

// SettleReason is the signal that tells the run of a host why there is more to settle.
type SettleReason string

// The reasons to settle the attachments of a host.
const (
	// HostDisagrees says that a report has shown another disagreement.
	HostDisagrees SettleReason = "disagrees"
	// HostTakesBack says that nobody has any more what the host had prepared. The next
	// holder may wait for it already, so this does not wait for the end of a window.
	HostTakesBack SettleReason = "takes_back"
)

// StartSettleHost starts the run that settles the attachments of a host, or signals
// the open one that there is more to settle. The error is of kind ErrUnavailable
// where Temporal does not answer.
func StartSettleHost(ctx context.Context, c client.Client, in SettleHostInput, reason SettleReason) error {
	_, err := c.SignalWithStartWorkflow(ctx, "settle/"+in.Host, string(reason), nil, client.StartWorkflowOptions{
		TaskQueue: ConductorQueue,
		// Without it, a run that hangs would keep the signals of its host for ever.
		WorkflowRunTimeout:    2*longestSettling + 2*(in.AgentWait+in.Limits.Step),
		TypedSearchAttributes: temporal.NewSearchAttributes(hostAttribute.ValueSet(in.Host)),
		StaticSummary:         "settle attachments of " + in.Host,
	}, SettleHostWorkflow, in)
	if err != nil {
		return Unavailable(err)
	}
	return nil
}

// SettleHost settles what the journal of one host and the records disagree about, as
// Reconcile does for all hosts. It does so again, after a pause, for as long as
// reports show more, or something could not be settled. Each pause is twice as long
// as the one before, so a device that comes and goes all the time, or that fails,
// costs no more than a few tries. What still fails when the pauses are as long as
// the time between two rounds is left to the rounds. What the host has to take back
// ends a pause, and makes none longer: each time, somebody has given a handle up. It
// comes before what was listed already before the pause, and may not be settled for long.
//
// It is a workflow of its own, and no round of Reconcile for one host: a server of
// an earlier release would make it a round for all.
func SettleHost(ctx workflow.Context, in SettleHostInput) (ReconcileResult, error) {
	disagrees, takesBack := workflow.GetSignalChannel(ctx, string(HostDisagrees)), workflow.GetSignalChannel(ctx, string(HostTakesBack))
	longest := min(max(in.Every, SettleWindow), longestSettlePause)
	pause := min(max(in.Pause, SettleWindow), longest)
	until := workflow.Now(ctx).Add(longestSettling)
	over, listed := true, []Disagreement(nil) // whether the last pause was, and what was listed before it

	for {
		// Drain the signals: the inspection that follows reads what these reports have
		// shown.
		for disagrees.ReceiveAsync(nil) {
		}
		for takesBack.ReceiveAsync(nil) {
		}

		var out ReconcileResult
		err := workflow.ExecuteActivity(withInspection(ctx), InspectHostActivity, InspectHostInput{Host: in.Host}).Get(ctx, &out.Found)
		if err != nil {
			return out, err
		}
		if !over {
			newFirst(out.Found.Disagreements, listed)
		}
		listed = out.Found.Disagreements
		settle(ctx, ReconcileInput{Limits: in.Limits, AgentWait: in.AgentWait}, &out)

		if over, err = pauseUnless(ctx, pause, takesBack); err != nil {
			return out, err
		}
		if over && disagrees.Len()+takesBack.Len() == 0 && (len(out.Unsettled) == 0 || pause == longest) {
			return out, nil
		}

		if over {
			pause = min(2*pause, longest)
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() || !workflow.Now(ctx).Before(until) {
			in.Pause = pause
			return out, workflow.NewContinueAsNewError(ctx, SettleHostWorkflow, in)
		}
	}
}

// pauseUnless waits until the pause is over, or until the signal comes: it stays in its
// channel then.
func pauseUnless(ctx workflow.Context, pause time.Duration, signal workflow.ReceiveChannel) (over bool, err error) {
	pausing, stop := workflow.WithCancel(ctx)
	defer stop()

	either := workflow.NewSelector(ctx)
	either.AddFuture(workflow.NewTimer(pausing, pause), func(timer workflow.Future) { over, err = true, timer.Get(ctx, nil) })
	either.AddReceive(signal, func(workflow.ReceiveChannel, bool) {})
	either.Select(ctx)
	return over, err
}

// newFirst moves the disagreements that were not listed before to the front.
func newFirst(now, before []Disagreement) {
	known := func(d Disagreement) bool {
		return slices.ContainsFunc(before, func(b Disagreement) bool {
			return b.Entry.Backend == d.Entry.Backend && b.Entry.Handle.Identity == d.Entry.Handle.Identity
		})
	}
	slices.SortStableFunc(now, func(a, b Disagreement) int {
		switch knownA, knownB := known(a), known(b); {
		case knownA == knownB:
			return 0
		case knownB:
			return -1
		}
		return 1
	})
}
