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

// PlacementQueue is the task queue of those who bring OpenStack Placement to what the records say, a few hosts at a time.
const PlacementQueue = "placement"

// PlacementSyncWorkflow is the name of the workflow type; a host's workflow id is placement/<host>.
const PlacementSyncWorkflow = "PlacementSync"

// Names of activities that touch Placement. The first is on PlacementQueue, the others on ConductorQueue.
const (
	SyncPlacementActivity    = "SyncPlacement"    // SyncPlacementInput → SyncPlacementResult
	FencePlacementActivity   = "FencePlacement"   // FencePlacementInput → nothing
	CheckAllocationsActivity = "CheckAllocations" // CheckAllocationsInput → nothing
	ComparePlacementActivity = "ComparePlacement" // ComparePlacementInput → ComparePlacementResult
)

// placementChanged tells a run that the records have changed again.
const placementChanged = "changed"

// SyncPlacementInput names the host.
type SyncPlacementInput struct {
	Host string `json:"host"`
}

// SyncPlacementResult says what was not as it should be.
type SyncPlacementResult struct {
	// Differences are a sentence each.
	Differences []string `json:"differences,omitempty"`
	// Waits says why the host could not be brought into step; it is tried again.
	Waits string `json:"waits,omitempty"`
}

// FencePlacementInput names accelerators of one host that the records have fenced.
type FencePlacementInput struct {
	Host         string      `json:"host"`
	Accelerators []uuid.UUID `json:"accelerators"`
	// Consumers are those whose allocations are no conflict.
	Consumers []string `json:"consumers,omitempty"`
}

// CheckAllocationsInput asks whether one of these consumers has an allocation of an accelerator.
type CheckAllocationsInput struct {
	Accelerator uuid.UUID `json:"accelerator"`
	Consumers   []string  `json:"consumers"`
}

// ComparePlacementInput bounds one round's comparisons.
type ComparePlacementInput struct {
	Hosts int `json:"hosts"`
}

// ComparePlacementResult is what was found.
type ComparePlacementResult struct {
	Compared int `json:"compared"`
	// Drift counts what was found, by class, and Repaired how many of all that was.
	Drift    map[cyborg.DriftClass]int `json:"drift,omitempty"`
	Repaired int                       `json:"repaired"`
	// Failed has a sentence for each host that could not be compared; those are tried again.
	Failed []string `json:"failed,omitempty"`
}

// StartPlacementSync starts the run of a host, or tells the one that runs that the records have changed again.
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

// PlacementSync brings the resource providers of one host to what the records say, again for as long as they change
// meanwhile. What Placement refuses is recorded and ends the run; while Placement is away, it keeps trying.
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
		for changed.ReceiveAsync(nil) { // what came until now is seen by what follows
		}
		out = SyncPlacementResult{}
		if err := workflow.ExecuteActivity(ctx, SyncPlacementActivity, in).Get(ctx, &out); err != nil {
			return out, err
		}
		if changed.Len() == 0 {
			return out, nil
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() { // the host has changed without a pause for hours
			return out, workflow.NewContinueAsNewError(ctx, PlacementSyncWorkflow, in)
		}
	}
}

// fence waits until Placement gives nothing of the targets away any more, and refuses where somebody has something of them
// allocated, but for those to whom the operation gives it. The records have fenced them when the operation began.
func (o *operation) fence(ctx workflow.Context) error {
	if !o.work.Placement {
		return nil
	}
	input := FencePlacementInput{Host: o.work.Host, Consumers: instancesOf(o.work.Handles)}
	for _, target := range o.work.Targets {
		input.Accelerators = append(input.Accelerators, target.Accelerator)
	}
	return o.askPlacement(ctx, "fence", FencePlacementActivity, input)
}

// unallocated refuses to take a handle from an instance for which Placement still has the accelerator allocated: Nova would
// believe that it has it.
func (o *operation) unallocated(ctx workflow.Context, target cyborg.Target, handles []cyborg.WorkHandle) error {
	input := CheckAllocationsInput{Accelerator: target.Accelerator, Consumers: instancesOf(handles)}
	if !o.work.Placement || len(input.Consumers) == 0 {
		return nil
	}
	return o.askPlacement(ctx, "allocations", CheckAllocationsActivity, input)
}

// instancesOf are the instances that hold the handles, each once.
func instancesOf(handles []cyborg.WorkHandle) []string {
	var out []string
	for _, handle := range handles {
		if handle.Holder.Kind == cyborg.HolderInstance && !slices.Contains(out, handle.Holder.ID) {
			out = append(out, handle.Holder.ID)
		}
	}
	return out
}

// askPlacement is a step that is none of the agent's, and has nothing to undo: the operation's end takes the fence away.
func (o *operation) askPlacement(ctx workflow.Context, step, activity string, input any) error {
	o.note(ctx, step, cyborg.StepRunning, "")
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              ConductorQueue,
		ScheduleToCloseTimeout: o.in.Limits.Step,
		StartToCloseTimeout:    max(o.in.Limits.Step/2, time.Second),
		HeartbeatTimeout:       30 * time.Second,
		Summary:                "ask Placement",
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: shortestPause, BackoffCoefficient: 2, MaximumInterval: longestPause},
	}), activity, input).Get(ctx, nil)
	if err != nil {
		o.note(ctx, step, cyborg.StepFailed, FromFailure(err).Message)
		return err
	}
	o.note(ctx, step, cyborg.StepDone, "")
	return nil
}
