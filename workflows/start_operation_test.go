package workflows_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// runs is a Temporal that has runs of one workflow id, and decides as the real
// one does whether a start begins another.
type runs struct {
	client.Client
	open    bool // the last run goes on
	started int
	input   workflows.OperationInput // of the last run
}

func (r *runs) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
	switch {
	case r.open && o.WorkflowIDConflictPolicy == enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING:
		return nil, nil //nolint:nilnil // the open run
	case r.open, r.started > 0 && o.WorkflowIDReusePolicy == enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE:
		return nil, &serviceerror.WorkflowExecutionAlreadyStarted{RunId: "closed"}
	}

	r.open = true
	r.started++
	r.input = args[0].(workflows.OperationInput)
	return nil, nil //nolint:nilnil // the new run
}

func (*runs) GetWorkflow(context.Context, string, string) client.WorkflowRun { return nil }

// TestAClosedRunIsNotStartedOver: a start that comes late, or twice, finds the
// run that there was, open or closed. Otherwise it would do an operation again
// that has ended, without a claim. Only what follows a terminated run begins
// anew, and so does a notification, which does nothing else.
func TestAClosedRunIsNotStartedOver(t *testing.T) {
	t.Parallel()
	op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationBind, Host: "h1"}
	temporal := &runs{}

	start := func(abandoned bool) {
		begin := workflows.StartOperation
		if abandoned {
			begin = workflows.StartAbandoned
		}
		_, err := begin(t.Context(), temporal, op, limits())
		require.NoError(t, err)
	}

	start(false)
	require.Equal(t, 1, temporal.started)
	require.Equal(t, workflows.OperationInput{Operation: op.ID, Limits: limits()}, temporal.input)

	start(false)
	start(true)
	_, err := workflows.StartNotification(t.Context(), temporal, op)
	require.NoError(t, err)
	require.Equal(t, 1, temporal.started, "a run goes on")

	temporal.open = false
	start(false)
	require.Equal(t, 1, temporal.started, "the run is over")

	start(true)
	require.Equal(t, 2, temporal.started)
	require.True(t, temporal.input.Abandoned)

	temporal.open = false
	_, err = workflows.StartNotification(t.Context(), temporal, op)
	require.NoError(t, err)
	require.Equal(t, 3, temporal.started)
}
