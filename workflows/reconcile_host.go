package workflows

import (
	"context"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// SettleWindow is how long the run of one host waits after it has settled the
// attachments of its host. What the host reports meanwhile is settled together, when
// the window is over. So a rebinding by hand is settled at once, or at the end of the
// window where another was settled just before.
const SettleWindow = 5 * time.Second

// hostDisagrees is the signal that tells the run of a host that a report has shown
// another disagreement.
const hostDisagrees = "disagrees"

// StartReconcileHost starts the run that settles the attachments of one host, or
// signals the open one that there is more to settle. The error is of kind
// ErrUnavailable where Temporal does not answer.
func StartReconcileHost(ctx context.Context, c client.Client, host string, in ReconcileInput) error {
	in.Host, in.Placement = host, 0
	_, err := c.SignalWithStartWorkflow(ctx, "reconcile/"+host, hostDisagrees, nil, client.StartWorkflowOptions{
		TaskQueue: ConductorQueue,
		// Without it, a run that hangs would keep the signals of its host for ever.
		WorkflowRunTimeout:    in.RunTimeout(),
		TypedSearchAttributes: temporal.NewSearchAttributes(hostAttribute.ValueSet(host)),
		StaticSummary:         "settle attachments of " + host,
	}, ReconcileWorkflow, in)
	if err != nil {
		return Unavailable(err)
	}
	return nil
}

// reconcileHost settles what the journal of one host and the records disagree about.
// It does so again, after a pause, for as long as reports show more, or something
// could not be settled. Each pause is twice as long as the one before: a device that
// comes and goes all the time, or that fails, costs no more than a few tries. Once a
// pause would be longer than the time between two rounds, what remains is left to
// these.
func reconcileHost(ctx workflow.Context, in ReconcileInput) (ReconcileResult, error) {
	disagrees := workflow.GetSignalChannel(ctx, hostDisagrees)
	pause := max(in.Pause, SettleWindow)

	for {
		// Drain the signals: the inspection that follows reads what these reports have
		// shown.
		for disagrees.ReceiveAsync(nil) {
		}

		var out ReconcileResult
		inspect := InspectInput{OrphanAfter: in.OrphanAfter, Host: in.Host}
		if err := workflow.ExecuteActivity(withInspection(ctx), InspectActivity, inspect).Get(ctx, &out.Found); err != nil {
			return out, err
		}
		settle(ctx, in, &out)

		if err := workflow.Sleep(ctx, min(pause, max(in.Every, SettleWindow))); err != nil {
			return out, err
		}
		if disagrees.Len() == 0 && (len(out.Unsettled) == 0 || pause >= in.Every) {
			return out, nil
		}

		pause = min(2*pause, max(in.Every, SettleWindow))
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			in.Pause = pause
			return out, workflow.NewContinueAsNewError(ctx, ReconcileWorkflow, in)
		}
	}
}
