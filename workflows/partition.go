package workflows

import (
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// remedyLayout is the remedy where nobody knows how a device is divided.
const remedyLayout = "The accelerators of the device are in error. Partition it again, with a layout that works."

// PartitionDevice has the host divide a device into the wanted parts. All that the device
// has is claimed from the admission until End, also what its host reports meanwhile. Where
// the device cannot be divided like that, its host divides it as it was before. Where that
// fails too, all of it is in error.
func PartitionDevice(ctx workflow.Context, in OperationInput) (OperationResult, error) {
	return runOperation(ctx, in, steps{do: partition, remedy: remedyLayout})
}

// partition holds the steps of a partition.
func partition(ctx workflow.Context, o *operation) error {
	restore := o.undoCall(call{
		activity: RestoreLayoutActivity, summary: "divide " + o.work.Partition.Device.Identity + " as before",
		input: restoreLayoutInput(o.work), result: new(ChangeResult), limit: o.in.Limits.Program,
	})
	if o.in.Abandoned {
		return o.abandon("partition", restore)
	}

	if err := o.fence(ctx); err != nil {
		return err
	}

	var result PartitionResult
	layout := o.work.Partition.Layout
	err := o.step(ctx, "partition", call{
		activity: PartitionActivity, summary: "divide " + o.work.Partition.Device.Identity + ": " + layout.String(),
		input: partitionInput(o.work), result: &result, limit: o.in.Limits.Program,
	}, restore)
	if err != nil {
		return err
	}

	o.observe(&ChangeResult{Observation: result.Observation})
	o.outcome.Result = cyborg.JSONObject{"layout": layout, "accelerators": len(result.Observation.Device.Deployables)}
	return nil
}

// permittedPartition is PermittedBy for a partition.
func permittedPartition(work cyborg.Work) []Permitted {
	return []Permitted{{PartitionActivity, partitionInput(work)}, {RestoreLayoutActivity, restoreLayoutInput(work)}}
}

// partitionInput is the input of the step.
func partitionInput(work cyborg.Work) *PartitionInput {
	return &PartitionInput{Operation: work.Operation, Device: work.Partition.Device, Layout: work.Partition.Layout}
}

// restoreLayoutInput is the input of the undo.
func restoreLayoutInput(work cyborg.Work) *RestoreLayoutInput {
	return &RestoreLayoutInput{Operation: work.Operation, Device: work.Partition.Device}
}
