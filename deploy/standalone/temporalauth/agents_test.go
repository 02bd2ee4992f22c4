package temporalauth

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// TestHostsAreTheirAgents: whatever a host's certificate asks for or answers, it
// does as the agent of this host, which is of no version.
func TestHostsAreTheirAgents(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	h1 := as(host, "h1")
	sealed := polled(t, g, h1, token(t, "attach/1"))
	decide := func(who caller, method string, request any) error {
		return g.decide(who, &authorization.CallTarget{APIName: workflowService + method, Namespace: "cyborg", Request: request})
	}

	poll := func(change func(r *workflowservice.PollActivityTaskQueueRequest)) error {
		r := &workflowservice.PollActivityTaskQueueRequest{
			Namespace: "cyborg", TaskQueue: &taskqueuepb.TaskQueue{Name: "agent.h1", Kind: enumspb.TASK_QUEUE_KIND_NORMAL}, Identity: "agent@h1/boot",
			WorkerInstanceKey: "k", WorkerControlTaskQueue: "temporal-sys/worker-commands/cyborg/k",
			WorkerVersionCapabilities: &commonpb.WorkerVersionCapabilities{BuildId: "b"}, //nolint:staticcheck // an attacker uses what is deprecated, too
			DeploymentOptions:         &deploymentpb.WorkerDeploymentOptions{BuildId: "b", WorkerVersioningMode: enumspb.WORKER_VERSIONING_MODE_UNVERSIONED},
		}
		change(r)
		return decide(h1, "PollActivityTaskQueue", r)
	}
	require.NoError(t, poll(func(*workflowservice.PollActivityTaskQueueRequest) {}), "as the SDK polls")
	for name, change := range map[string]func(r *workflowservice.PollActivityTaskQueueRequest){
		"another host's name":   func(r *workflowservice.PollActivityTaskQueueRequest) { r.Identity = "agent@h2/boot" },
		"a name that begins so": func(r *workflowservice.PollActivityTaskQueueRequest) { r.Identity = "agent@h11" },
		"a server's name":       func(r *workflowservice.PollActivityTaskQueueRequest) { r.Identity = "server@c1" },
		"no name":               func(r *workflowservice.PollActivityTaskQueueRequest) { r.Identity = "" },
		"a version": func(r *workflowservice.PollActivityTaskQueueRequest) {
			r.DeploymentOptions.WorkerVersioningMode = enumspb.WORKER_VERSIONING_MODE_VERSIONED
		},
		"a deployment": func(r *workflowservice.PollActivityTaskQueueRequest) { r.DeploymentOptions.DeploymentName = "d" },
		"a version by build id": func(r *workflowservice.PollActivityTaskQueueRequest) {
			r.WorkerVersionCapabilities.UseVersioning = true //nolint:staticcheck // an attacker uses what is deprecated, too
		},
		"a series of deployments": func(r *workflowservice.PollActivityTaskQueueRequest) {
			r.WorkerVersionCapabilities.DeploymentSeriesName = "d" //nolint:staticcheck // an attacker uses what is deprecated, too
		},
		"commands to a host": func(r *workflowservice.PollActivityTaskQueueRequest) { r.WorkerControlTaskQueue = "agent.h2" },
		"commands elsewhere": func(r *workflowservice.PollActivityTaskQueueRequest) {
			r.WorkerControlTaskQueue = "temporal-sys/worker-commands/temporal-system/k"
		},
	} {
		require.Error(t, poll(change), name)
	}

	require.NoError(t, answer(g, h1, sealed))
	version := &deploymentpb.WorkerDeploymentOptions{BuildId: "b", DeploymentName: "d", WorkerVersioningMode: enumspb.WORKER_VERSIONING_MODE_VERSIONED}
	for name, request := range map[string]any{
		"RespondActivityTaskCompleted as another":      &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: sealed, Identity: "agent@h2"},
		"RespondActivityTaskFailed as another":         &workflowservice.RespondActivityTaskFailedRequest{TaskToken: sealed, Identity: "agent@h2"},
		"RespondActivityTaskCanceled as another":       &workflowservice.RespondActivityTaskCanceledRequest{TaskToken: sealed, Identity: "agent@h2"},
		"RecordActivityTaskHeartbeat as another":       &workflowservice.RecordActivityTaskHeartbeatRequest{TaskToken: sealed, Identity: "agent@h2"},
		"RespondActivityTaskCompleted of a version":    &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: sealed, Identity: "agent@h1", DeploymentOptions: version},
		"RespondActivityTaskFailed of a stamp":         &workflowservice.RespondActivityTaskFailedRequest{TaskToken: sealed, Identity: "agent@h1", WorkerVersion: &commonpb.WorkerVersionStamp{UseVersioning: true}}, //nolint:staticcheck // an attacker uses what is deprecated, too
		"RespondActivityTaskCanceled of a deployment":  &workflowservice.RespondActivityTaskCanceledRequest{TaskToken: sealed, Identity: "agent@h1", Deployment: &deploymentpb.Deployment{SeriesName: "d"}},          //nolint:staticcheck // an attacker uses what is deprecated, too
		"RespondActivityTaskCanceled of a version too": &workflowservice.RespondActivityTaskCanceledRequest{TaskToken: sealed, Identity: "agent@h1", DeploymentOptions: version},
	} {
		method, _, _ := strings.Cut(name, " ")
		require.Error(t, decide(h1, method, request), name)
	}
}

// TestWhatHostsPut goes through the fields of each request that a host may make. Each
// is checked, or there is a reason why it need not be. A field that a new Temporal
// brings must get its place here.
func TestWhatHostsPut(t *testing.T) {
	t.Parallel()
	checked := []string{
		"namespace", "task_queue", "identity", "task_token", // whose it is
		"worker_version_capabilities", "deployment_options", "worker_version", "deployment", // versions
		"worker_control_task_queue", "sticky_task_queue", "worker_heartbeat", // of other workers
	}
	harmless := map[string]string{
		"details": "what the agent says of its own step", "result": "likewise", "failure": "likewise", "last_heartbeat_details": "likewise",
		"resource_id": "chooses a cluster", "poller_group_id": "likewise",
		"worker_instance_key": "of the polls of its own queue", "task_queue_metadata": "of its own queue", "task_queue_types": "likewise",
		"task_queue_type": "likewise", "report_stats": "what is asked of its own queue", "report_config": "likewise", "report_pollers": "likewise",
		"report_task_reachability": "likewise", "include_task_queue_status": "likewise", "api_mode": "likewise", "versions": "likewise",
		"reason": "a text that nobody reads", "id": "the namespace by its id, which Temporal authorizes by its name", "service": "of health",
		"weak_consistency": "of what is asked of the namespace",
	}

	seen := map[string]bool{}
	for method, r := range rules() {
		if !slices.Contains(r.roles, identity.Host) {
			continue
		}
		fields := requestOf(t, method).ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			name := string(fields.Get(i).Name())
			_, free := harmless[name]
			require.NotEqual(t, free, slices.Contains(checked, name), "%s of %s must be checked, or harmless", name, method)
			seen[name] = true
		}
	}
	for _, name := range append(slices.Collect(maps.Keys(harmless)), checked...) {
		require.True(t, seen[name], "no request has %s", name)
	}
}

// requestOf returns a request of the method, which is given by its full name.
func requestOf(t *testing.T, method string) proto.Message {
	t.Helper()
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	require.NoError(t, err)
	input := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name)).Input()
	made, err := protoregistry.GlobalTypes.FindMessageByName(input.FullName())
	require.NoError(t, err)
	return made.New().Interface()
}
