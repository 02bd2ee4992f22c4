package chaos_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/proxy"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// hostile is a Temporal whose operator is an attacker: between the steps that
// operations have sent to a host, it gives the host's agent steps that nobody has
// sent, under the name of any run, and keeps the answers to itself. Everything
// else it passes on to the Temporal of the cluster.
type hostile struct {
	workflowservice.WorkflowServiceServer

	forger *forger
	host   string
	at     string // its address

	forged chan *workflowservice.PollActivityTaskQueueResponse // what the agent gets next
}

// polled is the answer of the cluster's Temporal to a poll.
type polled struct {
	task *workflowservice.PollActivityTaskQueueResponse
	err  error
}

// startHostile starts the one for a host. The agent takes it for the right one:
// it has a server's certificate of the right authority.
func startHostile(t *testing.T, c *harness.Cluster, g *forger, host string) *hostile {
	t.Helper()
	upstream, err := grpc.NewClient(c.Temporal(), grpc.WithTransportCredentials(credentials.NewTLS(c.TemporalTLS(t, identity.Host, host))))
	require.NoError(t, err)
	passes, err := proxy.NewWorkflowServiceProxyServer(proxy.WorkflowServiceProxyOptions{Client: workflowservice.NewWorkflowServiceClient(upstream)})
	require.NoError(t, err)
	config, err := pki.Server(pki.ServerOptions{Files: c.Certificates.Of(t, identity.Server, "hostile")})
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	h := &hostile{
		WorkflowServiceServer: passes, forger: g, host: host, at: listener.Addr().String(),
		forged: make(chan *workflowservice.PollActivityTaskQueueResponse),
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	workflowservice.RegisterWorkflowServiceServer(server, h)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())

	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-ended)
		require.NoError(t, upstream.Close())
	})
	return h
}

// PollActivityTaskQueue gives the agent a forged step as soon as there is one.
func (h *hostile) PollActivityTaskQueue(
	ctx context.Context, r *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan polled, 1)
	go func() {
		task, err := h.WorkflowServiceServer.PollActivityTaskQueue(ctx, r)
		answers <- polled{task, err}
	}()

	var got polled
	select {
	case got = <-answers:
	case task := <-h.forged:
		cancel()
		if got = <-answers; got.err != nil || len(got.task.GetTaskToken()) == 0 {
			return task, nil
		}
		h.forger.drop(string(task.GetTaskToken())) // a step of an operation came at the same moment
	}
	if got.err == nil && len(got.task.GetTaskToken()) > 0 {
		h.forger.pass(h.host, got.task)
	}
	return got.task, got.err
}

// RespondActivityTaskCompleted keeps the result of a forged step.
func (h *hostile) RespondActivityTaskCompleted(
	ctx context.Context, r *workflowservice.RespondActivityTaskCompletedRequest,
) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	if h.forger.answer(string(r.GetTaskToken()), nil) {
		return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
	}
	h.forger.done(string(r.GetTaskToken()))
	return h.WorkflowServiceServer.RespondActivityTaskCompleted(ctx, r)
}

// RespondActivityTaskFailed keeps the refusal of a forged step.
func (h *hostile) RespondActivityTaskFailed(
	ctx context.Context, r *workflowservice.RespondActivityTaskFailedRequest,
) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	if h.forger.answer(string(r.GetTaskToken()), workflows.FromFailure(temporal.GetDefaultFailureConverter().FailureToError(r.GetFailure()))) {
		return &workflowservice.RespondActivityTaskFailedResponse{}, nil
	}
	return h.WorkflowServiceServer.RespondActivityTaskFailed(ctx, r)
}

// RespondActivityTaskCanceled keeps that a forged step was given up.
func (h *hostile) RespondActivityTaskCanceled(
	ctx context.Context, r *workflowservice.RespondActivityTaskCanceledRequest,
) (*workflowservice.RespondActivityTaskCanceledResponse, error) {
	if h.forger.drop(string(r.GetTaskToken())) {
		return &workflowservice.RespondActivityTaskCanceledResponse{}, nil
	}
	return h.WorkflowServiceServer.RespondActivityTaskCanceled(ctx, r)
}

// RecordActivityTaskHeartbeat lets a forged step go on.
func (h *hostile) RecordActivityTaskHeartbeat(
	ctx context.Context, r *workflowservice.RecordActivityTaskHeartbeatRequest,
) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	if h.forger.knows(string(r.GetTaskToken())) {
		return &workflowservice.RecordActivityTaskHeartbeatResponse{}, nil
	}
	return h.WorkflowServiceServer.RecordActivityTaskHeartbeat(ctx, r)
}
