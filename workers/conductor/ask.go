package conductor

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// Census asks the hosts how their accelerators are used now.
func (e *Engine) Census(ctx context.Context, hosts, deployables []string, deadline time.Duration) (cyborg.Census, error) {
	var out cyborg.Census
	in := workflows.CensusInput{Hosts: hosts, Deployables: deployables, Deadline: deadline}
	return out, e.ask(ctx, "census/", workflows.CensusWorkflow, in, &out)
}

// Discover makes a host look at its hardware; what it saw is recorded when this returns.
func (e *Engine) Discover(ctx context.Context, host string, wait time.Duration) (workflows.DiscoverResult, error) {
	var out workflows.DiscoverResult
	in := workflows.DiscoverHostInput{Host: host, AgentWait: min(wait, e.limits.AgentWait), Limit: e.limits.Step}
	return out, e.ask(ctx, "discover/"+host+"/", workflows.DiscoverWorkflow, in, &out)
}

// ask runs a workflow that changes nothing and waits for its answer.
func (e *Engine) ask(ctx context.Context, prefix, name string, in, out any) error {
	run, err := e.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: prefix + uuid.NewString(), TaskQueue: workflows.ConductorQueue, EnableEagerStart: true,
	}, name, in)
	if err != nil {
		return workflows.Unavailable(err)
	}
	if err := run.Get(ctx, out); err != nil {
		if ctx.Err() != nil {
			return cyborg.Errorf(cyborg.Timeout, "no answer within the time of the request: %w", err)
		}
		return workflows.FromFailure(err)
	}
	return nil
}
