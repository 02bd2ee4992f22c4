package temporalclient

import (
	"context"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
)

// LeaveLimitToTemporal is the option of a connection whose workers do not see the
// limit for all attempts at an activity. Every connection of ours has it.
func LeaveLimitToTemporal() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(leaveLimitToTemporal)
}

// leaveLimitToTemporal takes the limit for all attempts out of the activities that
// Temporal gives to a worker. The SDK compares that limit with the worker's clock,
// and one that is ahead of Temporal's would never begin. Temporal sets it wherever a
// run has a limit, and watches it; the worker has the limit of one attempt, which it
// measures itself.
func leaveLimitToTemporal(
	ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if err := invoke(ctx, method, request, reply, connection, options...); err != nil {
		return err
	}

	switch given := reply.(type) {
	case *workflowservice.PollActivityTaskQueueResponse:
		given.ScheduleToCloseTimeout = nil
	case *workflowservice.RespondWorkflowTaskCompletedResponse:
		for _, task := range given.GetActivityTasks() { // those that the worker need not poll for
			task.ScheduleToCloseTimeout = nil
		}
	}
	return nil
}
