package temporalclient_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/mocks"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestCancelWithoutARun: the cancel of an operation whose run is gone starts a
// run. If the operation had begun, that run undoes what was done, and does not
// continue it.
func TestCancelWithoutARun(t *testing.T) {
	t.Parallel()
	for state, abandoned := range map[cyborg.OperationState]bool{cyborg.OperationAdmitted: false, cyborg.OperationRunning: true} {
		op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationAttach, State: state}

		temporal := &mocks.Client{}
		temporal.On("CancelWorkflow", mock.Anything, op.WorkflowID(), "").Return(serviceerror.NewNotFound("it was terminated"))
		temporal.On("ExecuteWorkflow", mock.Anything, mock.Anything, "Attach", workflows.OperationInput{
			Operation: op.ID, Abandoned: abandoned,
		}).Return(&mocks.WorkflowRun{}, nil).Once()

		engine := temporalclient.NewEngine(temporal, nil, workflows.Limits{})
		require.NoError(t, engine.Cancel(t.Context(), op), state)
		temporal.AssertExpectations(t)
	}
}
