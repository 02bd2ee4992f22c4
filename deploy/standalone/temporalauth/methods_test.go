package temporalauth

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/api/adminservice/v1"
	"go.temporal.io/server/common/api"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/workflows"
)

// refused lists the methods of workflows and operators that nobody may call, by
// what they are about.
var refused = map[string][]string{
	"namespaces": {"RegisterNamespace", "UpdateNamespace", "DeprecateNamespace", "DeleteNamespace"},
	"answers by id, which name no task": {
		"RecordActivityTaskHeartbeatById", "RespondActivityTaskCompletedById", "RespondActivityTaskFailedById", "RespondActivityTaskCanceledById",
	},
	"starts that are not one workflow of a server": {
		"ExecuteMultiOperation", "StartActivityExecution", "StartNexusOperationExecution", "StartBatchOperation",
	},
	"activities outside workflows": {
		"PollActivityExecution", "RequestCancelActivityExecution", "TerminateActivityExecution", "DeleteActivityExecution",
		"PauseActivityExecution", "ResetActivityExecution", "UnpauseActivityExecution", "UpdateActivityExecutionOptions",
	},
	"changes of what a workflow has decided, such as the queue of a step": {
		"UpdateActivityOptions", "UpdateWorkflowExecutionOptions", "PauseActivity", "UnpauseActivity", "ResetActivity",
		"PauseWorkflowExecution", "UnpauseWorkflowExecution", "UpdateWorkflowExecution", "PollWorkflowExecutionUpdate",
		"PollWorkflowExecutionTimeSkipping",
	},
	"what deletes": {"DeleteWorkflowExecution", "DeleteSchedule", "StopBatchOperation", "RemoveSearchAttributes"},
	"rules":        {"CreateWorkflowRule", "DescribeWorkflowRule", "DeleteWorkflowRule", "ListWorkflowRules", "TriggerWorkflowRule"},
	"workers that others configure": {
		"UpdateTaskQueueConfig", "FetchWorkerConfig", "UpdateWorkerConfig",
	},
	"versions of workers": {
		"UpdateWorkerBuildIdCompatibility", "GetWorkerBuildIdCompatibility", "UpdateWorkerVersioningRules", "GetWorkerVersioningRules",
		"GetWorkerTaskReachability", "DescribeDeployment", "DescribeWorkerDeploymentVersion", "ListDeployments", "GetDeploymentReachability",
		"GetCurrentDeployment", "SetCurrentDeployment", "SetWorkerDeploymentCurrentVersion", "DescribeWorkerDeployment",
		"DeleteWorkerDeployment", "DeleteWorkerDeploymentVersion", "SetWorkerDeploymentRampingVersion", "ListWorkerDeployments",
		"CreateWorkerDeployment", "CreateWorkerDeploymentVersion", "UpdateWorkerDeploymentVersionComputeConfig",
		"ValidateWorkerDeploymentVersionComputeConfig", "UpdateWorkerDeploymentVersionMetadata", "SetWorkerDeploymentManager",
	},
	"Nexus": {
		"PollNexusTaskQueue", "RespondNexusTaskCompleted", "RespondNexusTaskFailed", "DescribeNexusOperationExecution",
		"PollNexusOperationExecution", "ListNexusOperationExecutions", "CountNexusOperationExecutions",
		"RequestCancelNexusOperationExecution", "TerminateNexusOperationExecution", "DeleteNexusOperationExecution",
		"GetNexusEndpoint", "CreateNexusEndpoint", "UpdateNexusEndpoint", "DeleteNexusEndpoint", "ListNexusEndpoints",
	},
	"archives":       {"ListArchivedWorkflowExecutions"},
	"other clusters": {"AddOrUpdateRemoteCluster", "RemoveRemoteCluster", "ListClusters"},
	"health":         {"List", "Watch"},
}

// methods returns the full names of all methods that a frontend serves, streams
// included.
func methods() map[string]bool {
	out := map[string]bool{}
	for _, service := range []grpc.ServiceDesc{
		workflowservice.WorkflowService_ServiceDesc, operatorservice.OperatorService_ServiceDesc,
		adminservice.AdminService_ServiceDesc, healthpb.Health_ServiceDesc,
	} {
		for _, method := range service.Methods {
			out["/"+service.ServiceName+"/"+method.MethodName] = true
		}
		for _, stream := range service.Streams {
			out["/"+service.ServiceName+"/"+stream.StreamName] = true
		}
	}
	return out
}

// TestEveryMethodIsDecided: each method that this release of Temporal has is
// either in the table or among those that nobody may call. A method that a later
// release adds fails here until somebody has thought about it; it is refused
// until then.
func TestEveryMethodIsDecided(t *testing.T) {
	t.Parallel()
	nobody := map[string]bool{}
	for _, names := range refused {
		for _, name := range names {
			require.False(t, nobody[name], "%s is refused twice", name)
			nobody[name] = true
		}
	}

	table, known, missing := rules(), methods(), maps.Clone(nobody)
	for method := range known {
		_, allowed := table[method]
		if strings.HasPrefix(method, adminService) {
			require.False(t, allowed, "%s is for Temporal's own tools", method)
			continue
		}

		require.NotEqual(t, allowed, nobody[short(method)], "%s must be in the table or be refused, and not both", method)
		delete(missing, short(method))
	}

	require.Empty(t, missing, "these are no methods of Temporal")
	for method := range table {
		require.True(t, known[method], "%s is no method of Temporal", method)
	}
}

// TestReadersOnlyRead: what a reader may call, Temporal itself says to be
// reading.
func TestReadersOnlyRead(t *testing.T) {
	t.Parallel()
	for method, r := range rules() {
		if slices.Contains(r.roles, identity.Reader) && !strings.HasPrefix(method, healthService) {
			require.Equal(t, api.AccessReadOnly, api.GetMethodMetadata(method).Access, method)
		}
		require.NotContains(t, r.roles, identity.Member, method)
	}
}

// TestHostsPollAndAnswer: this is all that a host may call.
func TestHostsPollAndAnswer(t *testing.T) {
	t.Parallel()
	may := map[string]bool{}
	for method, r := range rules() {
		if slices.Contains(r.roles, identity.Host) {
			may[short(method)] = true
		}
	}

	require.Equal(t, []string{
		"Check", "DescribeNamespace", "DescribeTaskQueue", "GetSystemInfo", "PollActivityTaskQueue", "RecordActivityTaskHeartbeat",
		"RespondActivityTaskCanceled", "RespondActivityTaskCompleted", "RespondActivityTaskFailed", "ShutdownWorker",
	}, slices.Sorted(maps.Keys(may)))
}

// TestNobodyCallsAnythingElse goes through all methods with each role.
func TestNobodyCallsAnythingElse(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	table := rules()

	for method := range methods() {
		for _, role := range identity.Roles() {
			for _, namespace := range []string{"cyborg", "temporal-system", ""} {
				err := g.decide(as(role, "h1"), &authorization.CallTarget{APIName: method, Namespace: namespace})
				r, listed := table[method]
				allowed := listed && slices.Contains(r.roles, role) && (r.anywhere || namespace == "cyborg")
				if !allowed || r.check != nil && (role == identity.Host || short(method) != "DescribeTaskQueue") { // without a request there is nothing of one's own
					require.Error(t, err, "%s %s %q", role, method, namespace)
				} else {
					require.NoError(t, err, "%s %s %q", role, method, namespace)
				}
			}
		}

		require.Error(t, g.decide(caller{}, &authorization.CallTarget{APIName: method, Namespace: "cyborg"}), method)
		require.NoError(t, g.decide(caller{self: true}, &authorization.CallTarget{APIName: method, Namespace: "any"}), method)
	}
}

// TestQueuesOfAgents: the package does not import the workflows, so that others
// can compile it into their server, and knows how they name the queues of
// agents.
func TestQueuesOfAgents(t *testing.T) {
	t.Parallel()
	require.Equal(t, agentQueues+"h1", workflows.AgentQueue("h1"))
	require.NoError(t, mayUse(as(identity.Server, "s"), workflows.ConductorQueue))
	require.NoError(t, mayUse(as(identity.Server, "s"), workflows.PlacementQueue))
}
