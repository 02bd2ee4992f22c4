package agent_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// temporal is a Temporal server with what a worker for activities needs.
type temporal struct {
	workflowservice.UnimplementedWorkflowServiceServer
	t       *testing.T
	address string
	started chan struct{} // closed when the server is started

	mu      sync.Mutex
	polled  map[string]string // identity by task queue
	tasks   chan *workflowservice.PollActivityTaskQueueResponse
	results map[string]chan result
}

// result is the answer to a task: its payloads, or its failure.
type result struct {
	payloads *commonpb.Payloads
	failure  *failurepb.Failure
}

// newTemporal returns a server that has its address but closes each connection
// until it is started.
func newTemporal(t *testing.T) *temporal {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	s := &temporal{
		t: t, address: listener.Addr().String(), started: make(chan struct{}), polled: map[string]string{}, results: map[string]chan result{},
		tasks: make(chan *workflowservice.PollActivityTaskQueueResponse, 10),
	}

	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, s)

	served := make(chan error, 1)
	go func() { served <- server.Serve(lateListener{listener, s.started}) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // the test was over before it began to serve
			require.NoError(t, err)
		}
	})
	return s
}

// lateListener holds its port from the beginning, and closes each connection
// until it is open.
type lateListener struct {
	net.Listener

	open <-chan struct{}
}

func (l lateListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}

		select {
		case <-l.open:
			return conn, nil
		default:
			_ = conn.Close() // the client tries again
		}
	}
}

// start has the server accept connections.
func (s *temporal) start() { close(s.started) }

// client returns a lazy client, as agents get one.
func (s *temporal) client() client.Client {
	s.t.Helper()
	c, err := client.NewLazyClient(client.Options{HostPort: s.address, Logger: silent{}, WorkerHeartbeatInterval: -1})
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// run has the agent run an activity, and returns its result. A try without an
// answer is given again, as Temporal does.
func (s *temporal) run(name string, in, out any) *failurepb.Failure {
	s.t.Helper()
	for range 30 {
		select {
		case r := <-s.give(name, in):
			if r.failure == nil && out != nil {
				require.NoError(s.t, converter.GetDefaultDataConverter().FromPayloads(r.payloads, out))
			}
			return r.failure
		case <-time.After(4 * time.Second):
		}
	}

	require.Fail(s.t, "the agent does not answer")
	return nil
}

// give gives the agent one try of an activity.
func (s *temporal) give(name string, in any) <-chan result {
	s.t.Helper()
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(in)
	require.NoError(s.t, err)

	token := uuid.NewString()
	done := make(chan result, 1)
	s.mu.Lock()
	s.results[token] = done
	s.mu.Unlock()

	now := timestamppb.Now()
	s.tasks <- &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: []byte(token), WorkflowNamespace: "default", ActivityId: "1", Attempt: 1, Input: payloads,
		WorkflowType:      &commonpb.WorkflowType{Name: "Test"},
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "test/" + token, RunId: uuid.NewString()},
		ActivityType:      &commonpb.ActivityType{Name: name},
		ScheduledTime:     now, StartedTime: now, CurrentAttemptScheduledTime: now,
		StartToCloseTimeout: durationpb.New(time.Minute), ScheduleToCloseTimeout: durationpb.New(time.Minute),
		HeartbeatTimeout: durationpb.New(10 * time.Second),
	}
	return done
}

// worker returns the identity that polls a task queue, or an empty one.
func (s *temporal) worker(queue string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polled[queue]
}

func (s *temporal) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{}}, nil
}

func (s *temporal) DescribeNamespace(context.Context, *workflowservice.DescribeNamespaceRequest) (*workflowservice.DescribeNamespaceResponse, error) {
	return &workflowservice.DescribeNamespaceResponse{NamespaceInfo: &namespacepb.NamespaceInfo{Name: "default"}}, nil
}

func (s *temporal) PollActivityTaskQueue(
	ctx context.Context, request *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	s.mu.Lock()
	s.polled[request.GetTaskQueue().GetName()] = request.GetIdentity()
	s.mu.Unlock()

	select {
	case task := <-s.tasks:
		return task, nil
	case <-time.After(time.Second):
		return &workflowservice.PollActivityTaskQueueResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *temporal) RecordActivityTaskHeartbeat(
	context.Context, *workflowservice.RecordActivityTaskHeartbeatRequest,
) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	return &workflowservice.RecordActivityTaskHeartbeatResponse{}, nil
}

func (s *temporal) RespondActivityTaskCompleted(
	_ context.Context, request *workflowservice.RespondActivityTaskCompletedRequest,
) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	s.respond(request.GetTaskToken(), result{payloads: request.GetResult()})
	return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
}

func (s *temporal) RespondActivityTaskFailed(
	_ context.Context, request *workflowservice.RespondActivityTaskFailedRequest,
) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	s.respond(request.GetTaskToken(), result{failure: request.GetFailure()})
	return &workflowservice.RespondActivityTaskFailedResponse{}, nil
}

// respond passes a result on to the caller of give.
func (s *temporal) respond(token []byte, r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results[string(token)] <- r
}

func (s *temporal) ShutdownWorker(context.Context, *workflowservice.ShutdownWorkerRequest) (*workflowservice.ShutdownWorkerResponse, error) {
	return &workflowservice.ShutdownWorkerResponse{}, nil
}

// silent is a logger that drops everything, for failures that a test causes on
// purpose.
type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
func (silent) Error(string, ...any) {}
