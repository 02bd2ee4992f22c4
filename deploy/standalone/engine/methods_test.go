package engine_test

import (
	"context"
	"crypto/tls"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// conn connects a client with this identity, which makes any call.
func (g *guarded) conn(t *testing.T, role identity.Role, name string) *grpc.ClientConn {
	t.Helper()
	cert, key, err := g.authority.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "lab", Role: role, Name: name}})
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)

	c, err := grpc.NewClient(g.FrontendAddress(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: pool(g.authority), ServerName: "temporal.test", Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13,
	})))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// everyMethod returns all methods of all services whose descriptions are in this
// program: those of Temporal's frontend, of the parts of Temporal behind it, and
// of gRPC itself.
func everyMethod() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	return all
}

// call makes a call with an empty request, but for the namespace, and returns
// what is wrong with it.
func call(t *testing.T, c *grpc.ClientConn, method protoreflect.MethodDescriptor, namespace string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	request, answer := dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output())
	if field := method.Input().Fields().ByName("namespace"); field != nil && field.Kind() == protoreflect.StringKind {
		request.Set(field, protoreflect.ValueOfString(namespace))
	}

	name := "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
	if !method.IsStreamingClient() && !method.IsStreamingServer() {
		return c.Invoke(ctx, name, request, answer)
	}

	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, name)
	if err == nil {
		err = stream.SendMsg(request)
	}
	if err == nil || err == io.EOF { //nolint:errorlint // SendMsg returns it as it is; the answer says why
		err = stream.RecvMsg(answer)
	}
	return err
}

// denied reports whether the guard has refused a call. Temporal tells a client of
// a stream so in words only.
func denied(err error) bool {
	return status.Code(err) == codes.PermissionDenied || err != nil && strings.Contains(err.Error(), "Request unauthorized")
}

// TestEachMethodOverTheWire calls every method that there is, streams included,
// with each role. It knows the methods from their descriptions and not from a
// list, so one that a later release adds is among them. Whether the frontend serves
// it makes no difference: the guard refuses first.
func TestEachMethodOverTheWire(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)

	asked := []string{"GetSystemInfo", "GetClusterInfo", "GetSearchAttributes"}
	work := append([]string{
		"ListSearchAttributes", "DescribeNamespace", "DescribeSchedule", "ListSchedules", "CountSchedules", "ListScheduleMatchingTimes",
		"DescribeWorkflowExecution", "GetWorkflowExecutionHistory", "GetWorkflowExecutionHistoryReverse", "ListWorkflowExecutions",
		"ListOpenWorkflowExecutions", "ListClosedWorkflowExecutions", "CountWorkflowExecutions", "ScanWorkflowExecutions", "QueryWorkflow",
		"DescribeTaskQueue", "ListTaskQueuePartitions", "ListWorkers", "CountWorkers", "DescribeWorker",
	}, asked...)
	reads := append([]string{
		"ListNamespaces", "DescribeBatchOperation", "ListBatchOperations", "ListActivityExecutions", "CountActivityExecutions", "DescribeActivityExecution",
	}, work...)

	may := map[identity.Role][]string{
		// And what is about its own queue, task or worker, which no empty request is.
		identity.Host:   {"GetSystemInfo", "DescribeNamespace"},
		identity.Member: {},
		identity.Reader: reads,
		identity.Admin: append([]string{
			"SignalWorkflowExecution", "RequestCancelWorkflowExecution", "TerminateWorkflowExecution", "ResetWorkflowExecution", "PatchSchedule",
		}, reads...),
		// And the answers to what it has polled. Temporal finds something missing in what
		// would change anything, because the request is empty.
		identity.Server: append([]string{
			"AddSearchAttributes", "PollActivityTaskQueue", "PollWorkflowTaskQueue", "ShutdownWorker", "RecordWorkerHeartbeat",
			"RespondWorkflowTaskCompleted", "RespondWorkflowTaskFailed", "RespondQueryTaskCompleted", "ResetStickyTaskQueue",
			"StartWorkflowExecution", "SignalWithStartWorkflowExecution", "SignalWorkflowExecution", "RequestCancelWorkflowExecution",
			"TerminateWorkflowExecution", "CreateSchedule", "UpdateSchedule", "PatchSchedule",
		}, work...),
	}
	const health = "grpc.health.v1.Health.Check"

	tried := map[protoreflect.FullName]bool{}
	for _, role := range identity.Roles() {
		c := g.conn(t, role, "one")

		for _, method := range everyMethod() {
			service := method.Parent().FullName()
			err := call(t, c, method, "cyborg")
			tried[service] = true

			allowed := slices.Contains(may[role], string(method.Name())) && strings.HasPrefix(string(service), "temporal.api.") ||
				method.FullName() == health && role != identity.Member
			require.Equal(t, !allowed, denied(err), "%s %s: %v", role, method.FullName(), err)

			if strings.HasSuffix(string(service), ".WorkflowService") && !slices.Contains(asked, string(method.Name())) && method.Name() != "ListNamespaces" {
				require.True(t, denied(call(t, c, method, "temporal-system")), "%s %s in another namespace", role, method.FullName())
			}
		}

		// What has no description is called by nobody.
		for _, name := range []string{"/temporal.api.workflowservice.v1.WorkflowService/Invented", "/invented.Service/Method"} {
			require.Equal(t, codes.PermissionDenied, status.Code(c.Invoke(t.Context(), name, &emptypb.Empty{}, &emptypb.Empty{})), name)
		}
	}

	for _, service := range []protoreflect.FullName{
		"temporal.api.workflowservice.v1.WorkflowService", "temporal.api.operatorservice.v1.OperatorService",
		"temporal.server.api.adminservice.v1.AdminService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
		"grpc.reflection.v1alpha.ServerReflection",
	} {
		require.True(t, tried[service], "%s was not tried", service)
	}
}
