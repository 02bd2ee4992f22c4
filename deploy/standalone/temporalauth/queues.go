package temporalauth

import (
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workerpb "go.temporal.io/api/worker/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// agentQueues is how the names of the agents' queues begin: workflows.AgentQueue,
// which this package does not import.
const agentQueues = "agent."

// agentIdentity is how the names begin under which agents poll and answer. The
// name of the host follows and, after a slash, what the agent likes.
const agentIdentity = "agent@"

// reserved is how the names begin by which Temporal addresses the partitions of
// queues.
const reserved = "/_sys/"

// ownQueue refuses a request about a task queue that is not the caller's: a host
// has the queue with its name, servers have all but those of hosts.
func ownQueue(_ *Guard, who caller, request any) error {
	with, ok := request.(interface {
		GetTaskQueue() *taskqueuepb.TaskQueue
	})
	if !ok {
		return cyborg.Errorf(cyborg.ErrInternal, "a request of type %T names no task queue", request)
	}

	queue := with.GetTaskQueue()
	if who.Role == identity.Host && (queue.GetKind() != enumspb.TASK_QUEUE_KIND_NORMAL && queue.GetKind() != enumspb.TASK_QUEUE_KIND_UNSPECIFIED ||
		queue.GetNormalName() != "") {
		return cyborg.Errorf(cyborg.ErrForbidden, "%s may poll only normal task queues", who)
	}

	// The queue of a worker's own has a name that the worker makes up, and the queue
	// that it belongs to.
	if queue.GetNormalName() != "" {
		if err := mayUse(who, queue.GetNormalName()); err != nil {
			return err
		}
	}
	return mayUse(who, queue.GetName())
}

// ownQueueOfHost refuses a host's request about another queue than its own.
func ownQueueOfHost(g *Guard, who caller, request any) error {
	if who.Role != identity.Host {
		return nil
	}
	return ownQueue(g, who, request)
}

// mayUse refuses the use of a task queue with this name.
func mayUse(who caller, queue string) error {
	foreign := strings.HasPrefix(queue, agentQueues)
	if who.Role == identity.Host {
		foreign = queue != agentQueues+who.Name
	}

	if !foreign && !strings.HasPrefix(queue, reserved) {
		return nil
	}

	refused := cyborg.Errorf(cyborg.ErrForbidden, "%s may not use the task queue %q", who, cyborg.Sanitize(queue, longestShown))
	switch {
	case who.Role == identity.Host:
		return refused.WithHint("Give the agent of a host the certificate with exactly the name of this host (agent.host).")
	case foreign:
		return refused.WithHint("Only the agent of this host may: give it a certificate with the role host.")
	}
	return refused
}

// ownPoll refuses a poll of another queue than the caller's, and of a host, a poll
// as somebody else.
func ownPoll(g *Guard, who caller, request any) error {
	if err := ownQueue(g, who, request); err != nil || who.Role != identity.Host {
		return err
	}
	return asAgent(g, who, request)
}

// commandQueues is how the names of the queues begin that the SDK makes up to hear
// of a step's cancellation, each under a name that nobody else knows.
const commandQueues = "temporal-sys/worker-commands/"

// asAgent refuses a host's request in which its agent is not what it is: the agent
// of this host, which is of no version. Temporal runs a workflow for each version
// of workers that it hears of, and sends commands to the queue that a worker names
// for them.
func asAgent(g *Guard, who caller, request any) error {
	if named, ok := request.(interface{ GetIdentity() string }); ok {
		name, _, _ := strings.Cut(named.GetIdentity(), "/")
		if name != agentIdentity+who.Name {
			return cyborg.Errorf(cyborg.ErrForbidden, "%s may not call itself %q, only %s", who, cyborg.Sanitize(named.GetIdentity(), longestShown), agentIdentity+who.Name)
		}
	}

	versioned := false
	if with, ok := request.(interface {
		GetDeploymentOptions() *deploymentpb.WorkerDeploymentOptions
	}); ok {
		o := with.GetDeploymentOptions()
		versioned = versioned || o.GetDeploymentName() != "" || o.GetWorkerVersioningMode() == enumspb.WORKER_VERSIONING_MODE_VERSIONED
	}
	if with, ok := request.(interface {
		GetDeployment() *deploymentpb.Deployment
	}); ok {
		versioned = versioned || with.GetDeployment().GetSeriesName() != ""
	}
	if with, ok := request.(interface {
		GetWorkerVersionCapabilities() *commonpb.WorkerVersionCapabilities
	}); ok {
		v := with.GetWorkerVersionCapabilities()
		versioned = versioned || v.GetUseVersioning() || v.GetDeploymentSeriesName() != ""
	}
	if with, ok := request.(interface {
		GetWorkerVersion() *commonpb.WorkerVersionStamp
	}); ok {
		versioned = versioned || with.GetWorkerVersion().GetUseVersioning()
	}
	if versioned {
		return cyborg.Errorf(cyborg.ErrForbidden, "%s may not be of a version: agents are of none", who)
	}

	if with, ok := request.(interface{ GetWorkerControlTaskQueue() string }); ok {
		queue := with.GetWorkerControlTaskQueue()
		if queue != "" && !strings.HasPrefix(queue, commandQueues+g.config.Namespace+"/") {
			return cyborg.Errorf(cyborg.ErrForbidden, "%s may not use the task queue %q for commands", who, cyborg.Sanitize(queue, longestShown))
		}
	}
	return nil
}

// ownWorker refuses what a caller says of workers that serve other queues than
// its own. A host has no queue for workflows, so that it has none to unload.
// Temporal keeps what it hears of workers, under any key, so a host has none to
// tell of.
func ownWorker(g *Guard, who caller, request any) error {
	var (
		queues     []string
		heartbeats []*workerpb.WorkerHeartbeat
	)

	switch r := request.(type) {
	case *workflowservice.ShutdownWorkerRequest:
		queues, heartbeats = append(queues, r.GetTaskQueue()), append(heartbeats, r.GetWorkerHeartbeat())
		if sticky := r.GetStickyTaskQueue(); sticky != "" {
			if who.Role == identity.Host {
				return cyborg.Errorf(cyborg.ErrForbidden, "%s has no workflows, and may not unload the task queue %q", who, cyborg.Sanitize(sticky, longestShown))
			}
			queues = append(queues, sticky)
		}
	case *workflowservice.RecordWorkerHeartbeatRequest:
		heartbeats = r.GetWorkerHeartbeat()
	default:
		return cyborg.Errorf(cyborg.ErrInternal, "a request of type %T names no worker", request)
	}

	for _, one := range heartbeats {
		if one == nil {
			continue
		}
		if who.Role == identity.Host {
			return cyborg.Errorf(cyborg.ErrForbidden, "%s may not tell of workers", who)
		}
		queues = append(queues, one.GetTaskQueue())
	}
	if who.Role == identity.Host {
		if err := asAgent(g, who, request); err != nil {
			return err
		}
	}
	for _, queue := range queues {
		if queue == "" && who.Role != identity.Host {
			continue // a worker without one is nowhere
		}
		if err := mayUse(who, queue); err != nil {
			return err
		}
	}
	return nil
}
