package temporalclient

import (
	"context"
	"crypto/tls"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// giving is a Temporal that gives activities with both limits to workers.
type giving struct {
	workflowservice.UnimplementedWorkflowServiceServer
}

// limited is an activity that may take a minute, and an hour with all attempts.
func limited() *workflowservice.PollActivityTaskQueueResponse {
	return &workflowservice.PollActivityTaskQueueResponse{
		StartToCloseTimeout: durationpb.New(time.Minute), ScheduleToCloseTimeout: durationpb.New(time.Hour),
	}
}

func (giving) PollActivityTaskQueue(context.Context, *workflowservice.PollActivityTaskQueueRequest) (*workflowservice.PollActivityTaskQueueResponse, error) {
	return limited(), nil
}

func (giving) RespondWorkflowTaskCompleted(
	context.Context, *workflowservice.RespondWorkflowTaskCompletedRequest,
) (*workflowservice.RespondWorkflowTaskCompletedResponse, error) {
	return &workflowservice.RespondWorkflowTaskCompletedResponse{ActivityTasks: []*workflowservice.PollActivityTaskQueueResponse{limited()}}, nil
}

// TestLimitOfAllAttemptsIsTemporals: no worker sees the limit for all attempts of an
// activity, which the SDK would compare with the worker's clock.
func TestLimitOfAllAttemptsIsTemporals(t *testing.T) {
	t.Parallel()
	ours := authority(t)
	own := issue(t, ours, identity.Server, "temporal")
	serving, err := pki.Server(pki.ServerOptions{
		Files: pki.Files{Cert: own, Key: own, CA: ours.CertificateFile()}, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	require.NoError(t, err)

	options, err := Options(config.Temporal{
		Address: serve(t, serving, giving{}), TLS: config.TemporalTLS{CA: ours.CertificateFile(), Cert: own, Key: own},
	}, slog.New(slog.DiscardHandler), "test")
	require.NoError(t, err)
	worker, err := client.NewLazyClient(options)
	require.NoError(t, err)
	defer worker.Close()

	polled, err := worker.WorkflowService().PollActivityTaskQueue(t.Context(), &workflowservice.PollActivityTaskQueueRequest{})
	require.NoError(t, err)
	answered, err := worker.WorkflowService().RespondWorkflowTaskCompleted(t.Context(), &workflowservice.RespondWorkflowTaskCompletedRequest{})
	require.NoError(t, err)
	require.Len(t, answered.GetActivityTasks(), 1)

	for _, task := range append(answered.GetActivityTasks(), polled) {
		require.Equal(t, time.Minute, task.GetStartToCloseTimeout().AsDuration())
		require.Nil(t, task.GetScheduleToCloseTimeout())
	}
}
