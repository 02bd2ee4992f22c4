package workflows

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// PlacementQueue is the task queue of the workers that write the records' state
// to OpenStack Placement. It is a queue of its own so that their number, and
// with it the load on Placement, is bounded (placement.hosts_at_once).
const PlacementQueue = "placement"

// PlacementSyncWorkflow is the name of the workflow type; a host's workflow id
// is placement/<host>.
const PlacementSyncWorkflow = "PlacementSync"

// Names of activities that touch Placement. The first is on PlacementQueue, the
// others on ConductorQueue.
const (
	SyncPlacementActivity    = "SyncPlacement"    // SyncPlacementInput → SyncPlacementResult
	FencePlacementActivity   = "FencePlacement"   // FencePlacementInput → nothing
	CheckAllocationsActivity = "CheckAllocations" // CheckAllocationsInput → nothing
	ComparePlacementActivity = "ComparePlacement" // ComparePlacementInput → ComparePlacementResult
)

// placementChanged is the signal that tells a run that the records of its host
// have changed again.
const placementChanged = "changed"

// SyncPlacementInput names the host to synchronise.
type SyncPlacementInput struct {
	Host string `json:"host"`
}

// SyncPlacementResult says what differed between Placement and the records.
type SyncPlacementResult struct {
	// Differences has one line for each difference.
	Differences []string `json:"differences,omitempty"`
	// Waits says why the host could not be synchronised; it is due again later.
	// Empty where it was.
	Waits string `json:"waits,omitempty"`
}

// FencePlacementInput names accelerators of one host that are fenced in the
// records.
type FencePlacementInput struct {
	Host         string      `json:"host"`
	Accelerators []uuid.UUID `json:"accelerators"`
	// Consumers may have allocations of them: those of anybody else are a conflict.
	Consumers []string `json:"consumers,omitempty"`
	// Operation is the operation that is about to change them; none in an input of
	// release 0.1.
	Operation uuid.UUID `json:"operation,omitzero"`
}

// CheckAllocationsInput asks whether one of these consumers has an allocation
// of an accelerator.
type CheckAllocationsInput struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Consumers   []string  `json:"consumers"`
	// Operation is the operation that asks; none in an input of release 0.1.
	Operation uuid.UUID `json:"operation,omitzero"`
}

// ComparePlacementInput bounds the comparisons of one round of Reconcile.
type ComparePlacementInput struct {
	// Hosts is how many hosts are compared at most.
	Hosts int `json:"hosts"`
}

// ComparePlacementResult is what the comparisons of one round found.
type ComparePlacementResult struct {
	Compared int `json:"compared"` // hosts
	// Drift counts the differences by class.
	Drift map[cyborg.DriftClass]int `json:"drift,omitempty"`
	// Repaired is how many of all differences were repaired.
	Repaired int `json:"repaired"`
	// Failed has a sentence for each host that could not be compared; a later round
	// tries these again.
	Failed []string `json:"failed,omitempty"`
}

// StartPlacementSync starts the run of a host, or signals the open run that the
// records have changed again. The error is of kind ErrUnavailable where
// Temporal does not answer.
func StartPlacementSync(ctx context.Context, c client.Client, host string) error {
	_, err := c.SignalWithStartWorkflow(ctx, "placement/"+host, placementChanged, nil, client.StartWorkflowOptions{
		TaskQueue:             ConductorQueue,
		TypedSearchAttributes: temporal.NewSearchAttributes(hostAttribute.ValueSet(host)),
		StaticSummary:         "bring Placement into step with " + host,
	}, PlacementSyncWorkflow, SyncPlacementInput{Host: host})
	if err != nil {
		return Unavailable(err)
	}
	return nil
}

// PlacementSync makes the resource providers of one host as the records say,
// and does so again for as long as the records change meanwhile. A request that
// Placement refuses is recorded and ends the run. While Placement is away, the
// activity is retried without a limit.
func PlacementSync(ctx workflow.Context, in SyncPlacementInput) (SyncPlacementResult, error) {
	var out SyncPlacementResult
	changed := workflow.GetSignalChannel(ctx, placementChanged)

	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           PlacementQueue,
		StartToCloseTimeout: 5 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute},
	})

	for {
		// Drain the signals: the activity that follows reads the records as they are
		// after these changes.
		for changed.ReceiveAsync(nil) {
		}

		out = SyncPlacementResult{}
		if err := workflow.ExecuteActivity(ctx, SyncPlacementActivity, in).Get(ctx, &out); err != nil {
			return out, err
		}

		if changed.Len() == 0 {
			return out, nil
		}

		// Where a host changes without a pause for hours, the history of its run grows
		// too long.
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return out, workflow.NewContinueAsNewError(ctx, PlacementSyncWorkflow, in)
		}
	}
}

// fence waits until Placement schedules nothing more on the targets. It fails
// with kind ErrInUse where a consumer has an allocation of one of them, unless
// the operation gives the target to that consumer. Begin has fenced the targets
// in the records already. Without Placement it does nothing.
func (o *operation) fence(ctx workflow.Context) error {
	if !o.work.Placement {
		return nil
	}

	input := FencePlacementInput{Operation: o.in.Operation, Host: o.work.Host, Consumers: instancesOf(o.work.Handles)}
	for _, target := range o.work.Targets {
		input.Accelerators = append(input.Accelerators, target.Accelerator)
	}

	return o.askPlacement(ctx, "fence", FencePlacementActivity, input)
}

// requireUnallocated fails with kind ErrInUse while Placement has the
// accelerator allocated to an instance from which the operation takes a handle:
// Nova would go on to believe that the instance has the accelerator.
func (o *operation) requireUnallocated(ctx workflow.Context, target cyborg.Target, handles []cyborg.WorkHandle) error {
	input := CheckAllocationsInput{Operation: o.in.Operation, Accelerator: target.Accelerator, Consumers: instancesOf(handles)}
	if !o.work.Placement || len(input.Consumers) == 0 {
		return nil
	}
	return o.askPlacement(ctx, "allocations", CheckAllocationsActivity, input)
}

// instancesOf returns the ids of the instances that hold the handles, each
// once.
func instancesOf(handles []cyborg.WorkHandle) []string {
	var out []string
	for _, handle := range handles {
		if handle.Holder.Kind == cyborg.HolderInstance && !slices.Contains(out, handle.Holder.ID) {
			out = append(out, handle.Holder.ID)
		}
	}
	return out
}

// askPlacement does a step that runs on the conductor and asks Placement. It
// needs no undo, because the operation's end takes the fence away. One attempt
// may take half of the step's time, so that a Placement that hangs leaves time
// for another.
func (o *operation) askPlacement(ctx workflow.Context, step, activity string, input any) error {
	o.note(ctx, step, cyborg.StepRunning, "")

	o.checked = false // the answer may take its time
	err := repeat{within: o.in.Limits.Step, shortest: shortestPause, longest: longestPause}.run(ctx, workflow.ActivityOptions{
		TaskQueue:           ConductorQueue,
		StartToCloseTimeout: max(o.in.Limits.Step/2, time.Second),
		HeartbeatTimeout:    30 * time.Second,
		Summary:             "ask Placement",
	}, activity, input, nil)
	if err != nil {
		o.notice(err)
		o.note(ctx, step, cyborg.StepFailed, FromFailure(err).Message)
		return err
	}

	o.note(ctx, step, cyborg.StepDone, "")
	return nil
}
