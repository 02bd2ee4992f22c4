package conductor_test

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"

	activities "github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// temporal is a Temporal server with what a worker needs to wait for work.
type temporal struct {
	workflowservice.UnimplementedWorkflowServiceServer

	asked  chan struct{} // a signal for each question for the namespace
	polled chan string   // the task queues that were polled

	mu    sync.Mutex
	known bool // whether the namespace exists
}

func (*temporal) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{}}, nil
}

func (s *temporal) DescribeNamespace(
	_ context.Context, in *workflowservice.DescribeNamespaceRequest,
) (*workflowservice.DescribeNamespaceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default:
	}

	if !s.known {
		return nil, serviceerror.NewNamespaceNotFound(in.GetNamespace())
	}
	return &workflowservice.DescribeNamespaceResponse{NamespaceInfo: &namespacepb.NamespaceInfo{}}, nil
}

func (s *temporal) PollWorkflowTaskQueue(
	ctx context.Context, in *workflowservice.PollWorkflowTaskQueueRequest,
) (*workflowservice.PollWorkflowTaskQueueResponse, error) {
	select {
	case s.polled <- in.GetTaskQueue().GetName():
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (*temporal) PollActivityTaskQueue(
	ctx context.Context, _ *workflowservice.PollActivityTaskQueueRequest,
) (*workflowservice.PollActivityTaskQueueResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (*temporal) ShutdownWorker(context.Context, *workflowservice.ShutdownWorkerRequest) (*workflowservice.ShutdownWorkerResponse, error) {
	return &workflowservice.ShutdownWorkerResponse{}, nil
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

// logWatcher signals that something was logged.
type logWatcher struct{ heard chan struct{} }

func (l logWatcher) Write(text []byte) (int, error) {
	select {
	case l.heard <- struct{}{}:
	default:
	}
	return len(text), nil
}

// A server may start before Temporal does, and before Temporal knows the
// namespace. Its worker asks for work as soon as both are there.
func TestServeWaitsForTemporal(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	s := &temporal{asked: make(chan struct{}, 1), polled: make(chan string, 100)}
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, s)
	open := make(chan struct{})
	go func() { _ = server.Serve(lateListener{listener, open}) }()
	t.Cleanup(server.Stop)

	c, err := client.NewLazyClient(client.Options{
		HostPort: listener.Addr().String(), WorkerHeartbeatInterval: -1, Logger: temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)

	ctx, stop := context.WithCancel(t.Context())
	heard := make(chan struct{}, 1)
	served := make(chan error, 1)
	acts := activities.New(nil, c, activities.Policy{}, activities.Cloud{}, activities.Grants{}, slog.New(slog.DiscardHandler))
	go func() {
		served <- conductor.Serve(ctx, c, acts, "test", slog.New(slog.NewTextHandler(logWatcher{heard}, nil)))
	}()
	<-heard // it has logged that it cannot start

	close(open)
	<-s.asked
	s.mu.Lock()
	s.known = true
	s.mu.Unlock()

	for limit, queue := time.After(5*time.Minute), ""; queue != workflows.ConductorQueue; { // the worker polls a queue of its own as well
		select {
		case queue = <-s.polled:
		case <-limit:
			t.Fatal("the worker does not ask for work")
		}
	}

	stop()
	require.NoError(t, <-served)
}
