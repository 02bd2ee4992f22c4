package conductor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/workflows"
)

// listing is a store with open operations, on hosts without disagreements.
type listing struct {
	doubtful
	open []db.Orphan
}

func (l listing) Orphans(_ context.Context, state cyborg.OperationState, _ time.Duration, _ db.OperationPlace, _ int) ([]db.Orphan, error) {
	var out []db.Orphan
	for _, o := range l.open {
		if o.State == state {
			out = append(out, o)
		}
	}
	return out, nil
}

// TestWhatBeganIsNotBegunAgain: an operation that runs in the records and has
// no run in Temporal, or only a closed one, is undone. Whatever its run had done
// to the hardware is unknown, so doing it once more could do it twice. An
// operation that was only admitted is begun; and one whose run goes on is left
// alone.
func TestWhatBeganIsNotBegunAgain(t *testing.T) {
	t.Parallel()
	type situation struct {
		state cyborg.OperationState
		run   enumspb.WorkflowExecutionStatus // unspecified for none
	}

	const none = enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED
	want := map[situation]*bool{
		{cyborg.OperationAdmitted, none}:                                         new(false),
		{cyborg.OperationAdmitted, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED}: new(true),
		{cyborg.OperationAdmitted, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}:    nil,
		{cyborg.OperationRunning, none}:                                          new(true),
		{cyborg.OperationRunning, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED}:  new(true),
		{cyborg.OperationRunning, enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}:     nil,
	}

	store, temporal := listing{}, &mocks.Client{}
	of := map[uuid.UUID]situation{}

	for s := range want {
		op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationProgram}
		of[op.ID] = s
		store.open = append(store.open, db.Orphan{Operation: op.ID, Kind: op.Kind, State: s.state})

		describe := temporal.On("DescribeWorkflowExecution", mock.Anything, op.WorkflowID(), "")
		if s.run == none {
			describe.Return(nil, serviceerror.NewNotFound("gone"))
		} else {
			describe.Return(&workflowservice.DescribeWorkflowExecutionResponse{
				WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Status: s.run},
			}, nil)
		}
	}

	acts := conductor.New(store, temporal, conductor.Policy{}, conductor.Cloud{}, slog.New(slog.DiscardHandler))
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.RegisterActivityWithOptions(acts.Inspect, activity.RegisterOptions{Name: workflows.InspectActivity})
	value, err := env.ExecuteActivity(workflows.InspectActivity, workflows.InspectInput{})
	require.NoError(t, err)
	var found workflows.Findings
	require.NoError(t, value.Get(&found))

	got := map[situation]*bool{}
	for s := range want {
		got[s] = nil
	}
	for _, o := range found.Orphans {
		got[of[o.Operation]] = &o.Abandoned
	}
	require.Equal(t, want, got)
}
