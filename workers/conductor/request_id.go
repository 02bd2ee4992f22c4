package conductor

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"

	"github.com/cyborg-project/cyborg"
)

// naming gives each activity the request id under which other services are asked: the operation's, and the run's where it is
// no operation's.
type naming struct {
	interceptor.WorkerInterceptorBase
}

func interceptors() []interceptor.WorkerInterceptor {
	return []interceptor.WorkerInterceptor{&naming{}}
}

// InterceptActivity names those of one activity.
func (*naming) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &named{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type named struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity runs the activity.
func (n *named) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	return n.Next.ExecuteActivity(cyborg.WithRequestID(ctx, requestIDOf(activity.GetInfo(ctx))), in)
}

// requestIDOf makes a request id of a run: workflow ids of operations end with theirs.
func requestIDOf(info activity.Info) string {
	id := info.WorkflowExecution.ID
	if operation, err := uuid.Parse(id[strings.LastIndex(id, "/")+1:]); err == nil {
		return "req-" + operation.String()
	}
	return "req-" + info.WorkflowExecution.RunID
}
