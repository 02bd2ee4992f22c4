package conductor

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"

	"github.com/cyborg-project/cyborg"
)

// requestIDInterceptor puts into each activity's context the request id that
// its requests to other services carry, so that the logs of OpenStack's
// services can be searched by it.
type requestIDInterceptor struct {
	interceptor.WorkerInterceptorBase
}

// interceptors returns those of every worker of this package.
func interceptors() []interceptor.WorkerInterceptor {
	return []interceptor.WorkerInterceptor{&requestIDInterceptor{}}
}

// InterceptActivity wraps the execution of an activity.
func (*requestIDInterceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &requestIDInbound{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

// requestIDInbound is requestIDInterceptor for one activity.
type requestIDInbound struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity runs the activity with the request id in its context.
func (n *requestIDInbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	return n.Next.ExecuteActivity(cyborg.WithRequestID(ctx, requestIDOf(activity.GetInfo(ctx))), in)
}

// requestIDOf returns "req-" and a UUID: the operation's id, with which the
// workflow id of an operation ends, or the run id of any other workflow.
func requestIDOf(info activity.Info) string {
	id := info.WorkflowExecution.ID
	if operation, err := uuid.Parse(id[strings.LastIndex(id, "/")+1:]); err == nil {
		return "req-" + operation.String()
	}

	return "req-" + info.WorkflowExecution.RunID
}
