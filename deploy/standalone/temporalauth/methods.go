package temporalauth

import (
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// The prefixes of the full names of Temporal's methods.
const (
	workflowService = "/temporal.api.workflowservice.v1.WorkflowService/"
	operatorService = "/temporal.api.operatorservice.v1.OperatorService/"
	adminService    = "/temporal.server.api.adminservice.v1.AdminService/"
	healthService   = "/grpc.health.v1.Health/"
)

// rule says who may call a method, and where a request names more than the
// namespace, what it may name.
type rule struct {
	roles []identity.Role
	// anywhere says that the request names no namespace, or any one.
	anywhere bool
	// check returns why the caller may not make this request; nil for no check.
	check func(g *Guard, who caller, request any) error
}

// Short names for the columns of the table.
const (
	host   = identity.Host
	server = identity.Server
	admin  = identity.Admin
	reader = identity.Reader
)

// rules returns the table of all methods that somebody may call, by their full
// names. Every other one is refused; the list of those is in methods_test.go.
func rules() map[string]rule {
	all := func(roles ...identity.Role) rule { return rule{roles: roles} }
	anywhere := func(roles ...identity.Role) rule { return rule{roles: roles, anywhere: true} }
	checked := func(check func(*Guard, caller, any) error, roles ...identity.Role) rule {
		return rule{roles: roles, check: check}
	}

	out := map[string]rule{
		healthService + "Check":                  anywhere(host, server, admin, reader),
		operatorService + "ListSearchAttributes": all(server, admin, reader),
		operatorService + "AddSearchAttributes":  all(server), // at its start, where some are missing
	}

	for method, r := range map[string]rule{
		// What every client asks first.
		"GetSystemInfo":     anywhere(host, server, admin, reader),
		"GetClusterInfo":    anywhere(server, admin, reader),
		"ListNamespaces":    anywhere(admin, reader),
		"DescribeNamespace": all(host, server, admin, reader),

		// Steps. A host has its own queue; see queues.go and seal.go.
		"PollActivityTaskQueue":        checked(ownPoll, host, server),
		"RecordActivityTaskHeartbeat":  checked(ownTask, host, server),
		"RespondActivityTaskCompleted": checked(ownTask, host, server),
		"RespondActivityTaskFailed":    checked(ownTask, host, server),
		"RespondActivityTaskCanceled":  checked(ownTask, host, server),
		"ShutdownWorker":               checked(ownWorker, host, server),
		"RecordWorkerHeartbeat":        checked(ownWorker, server),

		// Workflows, which run in servers only.
		"PollWorkflowTaskQueue":            checked(ownQueue, server),
		"RespondWorkflowTaskCompleted":     all(server),
		"RespondWorkflowTaskFailed":        all(server),
		"RespondQueryTaskCompleted":        all(server),
		"ResetStickyTaskQueue":             all(server),
		"StartWorkflowExecution":           checked(ownQueue, server),
		"SignalWithStartWorkflowExecution": checked(ownQueue, server),
		"SignalWorkflowExecution":          all(server, admin),

		// What ends a run, or repeats it. The records decide what a run may do then.
		"RequestCancelWorkflowExecution": all(server, admin),
		"TerminateWorkflowExecution":     all(server, admin),
		"ResetWorkflowExecution":         all(admin),

		// Schedules. Whoever makes one starts workflows, so only servers do.
		"CreateSchedule":            all(server),
		"UpdateSchedule":            all(server),
		"PatchSchedule":             all(server, admin), // pause, resume, start now
		"DescribeSchedule":          all(server, admin, reader),
		"ListSchedules":             all(server, admin, reader),
		"CountSchedules":            all(server, admin, reader),
		"ListScheduleMatchingTimes": all(server, admin, reader),

		// What changes nothing.
		"DescribeWorkflowExecution":          all(server, admin, reader),
		"GetWorkflowExecutionHistory":        all(server, admin, reader),
		"GetWorkflowExecutionHistoryReverse": all(server, admin, reader),
		"ListWorkflowExecutions":             all(server, admin, reader),
		"ListOpenWorkflowExecutions":         all(server, admin, reader),
		"ListClosedWorkflowExecutions":       all(server, admin, reader),
		"CountWorkflowExecutions":            all(server, admin, reader),
		"ScanWorkflowExecutions":             all(server, admin, reader),
		"QueryWorkflow":                      all(server, admin, reader),
		"GetSearchAttributes":                anywhere(server, admin, reader),
		"DescribeTaskQueue":                  checked(ownQueueOfHost, host, server, admin, reader), // a host's doctor asks
		"ListTaskQueuePartitions":            all(server, admin, reader),
		"DescribeBatchOperation":             all(admin, reader),
		"ListBatchOperations":                all(admin, reader),
		"ListWorkers":                        all(server, admin, reader),
		"CountWorkers":                       all(server, admin, reader),
		"DescribeWorker":                     all(server, admin, reader),
		"ListActivityExecutions":             all(admin, reader),
		"CountActivityExecutions":            all(admin, reader),
		"DescribeActivityExecution":          all(admin, reader),
	} {
		out[workflowService+method] = r
	}
	return out
}

// short returns a method's name without its service.
func short(method string) string {
	return cyborg.Sanitize(method[strings.LastIndex(method, "/")+1:], longestShown)
}
