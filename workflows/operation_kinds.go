package workflows

import (
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// OperationWorkflow is the workflow of one kind of operation.
type OperationWorkflow struct {
	Kind cyborg.OperationKind
	Name string // the registered name; histories carry it, so it never changes
	Run  func(ctx workflow.Context, in OperationInput) (OperationResult, error)
	// permitted is PermittedBy for this kind; nil where it asks nothing of its host.
	permitted func(work cyborg.Work) []Permitted
}

// workflowTable has the workflow of each kind.
var workflowTable = []OperationWorkflow{
	{cyborg.OperationProvision, "Provision", Provision, permittedProvision},
	{cyborg.OperationProgram, "Program", Program, permittedProgram},
	{cyborg.OperationAttach, "Attach", Attach, permittedAttach},
	{cyborg.OperationDetach, "Detach", Detach, permittedDetach},
	{cyborg.OperationConfigure, "Configure", Configure, permittedConfigure},
	{cyborg.OperationRetire, "Retire", Retire, permittedRetire},
	{cyborg.OperationBind, "BindARQs", BindARQs, permittedBind},
	{cyborg.OperationUnbind, "UnbindARQs", UnbindARQs, permittedUnbind},
	{cyborg.OperationWhitelist, "WhitelistDevices", WhitelistDevices, permittedWhitelist},
	{cyborg.OperationRescue, "RescueInstances", RescueInstances, nil},
	{cyborg.OperationClean, "CleanHandles", CleanHandles, permittedClean},
	{cyborg.OperationPartition, "PartitionDevice", PartitionDevice, permittedPartition},
}

// OperationWorkflows returns the workflow of every kind of operation, for
// workers.
func OperationWorkflows() []OperationWorkflow { return slices.Clone(workflowTable) }

// typeOf returns the name of the workflow of a kind of operation. The error is
// of kind ErrInternal where the kind has none.
func typeOf(kind cyborg.OperationKind) (string, error) {
	for _, w := range workflowTable {
		if w.Kind == kind {
			return w.Name, nil
		}
	}

	return "", cyborg.Errorf(cyborg.ErrInternal, "operation kind %q has no workflow", kind)
}
