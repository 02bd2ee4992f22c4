package conductor

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg"
)

// The context of an activity carries the request ID that other services are
// told.
func TestActivitiesHaveARequestID(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: interceptors()})
	env.RegisterActivityWithOptions(func(ctx context.Context) (string, error) { return cyborg.RequestIDOf(ctx), nil },
		activity.RegisterOptions{Name: "ask"})

	value, err := env.ExecuteActivity("ask")
	require.NoError(t, err)
	var id string
	require.NoError(t, value.Get(&id))
	require.Equal(t, "req-default-test-run-id", id)

	operation := uuid.New()
	for workflow, want := range map[string]string{
		"bind/" + operation.String(): "req-" + operation.String(), "placement/h1": "req-run", "reconcile-workflow": "req-run",
	} {
		info := activity.Info{}
		info.WorkflowExecution.ID, info.WorkflowExecution.RunID = workflow, "run"
		require.Equal(t, want, requestIDOf(info))
	}
}
