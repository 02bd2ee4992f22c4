package journey_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// reset resets a run of an operation, or its last one where none is named, to
// its n-th workflow task, as an operator can in Temporal's UI. It returns the
// run that follows.
func reset(t *testing.T, temporal client.Client, workflowID, run string, n int) client.WorkflowRun {
	t.Helper()
	var point int64
	for history := temporal.GetWorkflowHistory(t.Context(), workflowID, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); history.HasNext() && n > 0; {
		event, err := history.Next()
		require.NoError(t, err)
		if event.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			point = event.GetEventId()
			n--
		}
	}
	require.Zero(t, n, "the run has fewer workflow tasks")

	answer, err := temporal.ResetWorkflowExecution(t.Context(), &workflowservice.ResetWorkflowExecutionRequest{
		Namespace:         temporalclient.DefaultNamespace,
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: workflowID, RunId: run}, Reason: "by hand", RequestId: uuid.NewString(),
		WorkflowTaskFinishEventId: point,
	})
	require.NoError(t, err)
	return temporal.GetWorkflow(t.Context(), workflowID, answer.GetRunId())
}

// TestResetOfAnEndedOperation resets the run of a program that has ended, at
// each of its workflow tasks, after the card was given another image. The run
// that follows ends with a sentence. It loads nothing and records nothing,
// although a reset run goes on with the answers that the records gave to the
// run before.
func TestResetOfAnEndedOperation(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}, Env: shortWaits()})
	temporal := s.TemporalClient(t)
	card := s.Accelerators(t)[0].UUID
	_, err := s.API.MakeReady(t.Context(), card)
	require.NoError(t, err)

	load := func(name string) cyborg.Operation {
		answer, err := s.API.Program(t.Context(), card, cyborg.Image{Source: image(t, s, "fake", name), ID: name}, apiclient.Async())
		require.NoError(t, err)
		harness.RequireSound(t, s)
		op, err := s.API.Operation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, op.State)
		return cyborg.Operation{ID: op.ID, Kind: cyborg.OperationProgram}
	}
	ended := load("first")
	load("second")
	before, _, err := s.API.Accelerator(t.Context(), card)
	require.NoError(t, err)

	description, err := temporal.DescribeWorkflowExecution(t.Context(), ended.WorkflowID(), "")
	require.NoError(t, err)
	first := description.GetWorkflowExecutionInfo().GetExecution().GetRunId()

	for task := range 3 { // the one that begins, the one that sends the image, the one that ends
		run := reset(t, temporal, ended.WorkflowID(), first, task+1)
		err := run.Get(t.Context(), nil)
		failure := workflows.FromFailure(err)
		require.NotNil(t, failure, "task %d", task)
		require.Equal(t, cyborg.ErrSuperseded, failure.Kind, "task %d: %v", task, err)
		require.Contains(t, failure.Message, "has ended as succeeded")
		require.Contains(t, failure.Hint, "no effect")
	}

	harness.RequireSound(t, s)
	after, _, err := s.API.Accelerator(t.Context(), card)
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.Equal(t, "second", after.BitstreamID)
}

// TestResetOfARunningOperation resets the run of an operation while its step is
// under way. The run that follows may not go on with it, because it does not
// know what that step does. Reconcile ends it, and what was done is undone, or
// completed where the kind goes forward.
func TestResetOfARunningOperation(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:5xfpga"}, Env: shortWaits()})
	temporal := s.TemporalClient(t)
	cards := s.Accelerators(t)

	for i, stage := range stages("fake") {
		c := catch(t, s, stage, cards[i].UUID)
		op, err := s.API.Operation(t.Context(), c.id)
		require.NoError(t, err)
		reset(t, temporal, op.WorkflowID, "", 1)

		if stage.name == "detach" || stage.name == "retire" {
			c.hurry(t, s)
			c.requireDone(t, s)
		} else {
			c.requireUndone(t, s, cyborg.OperationCancelled)
		}
	}
}
