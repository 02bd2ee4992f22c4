package temporalclient

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// hostsPerCensusRun is how many hosts one run of a census asks. Temporal takes
	// no result of more than 2 MiB (limit.blobSize.error), and the answer of a host
	// with 512 devices takes some 150 KiB.
	hostsPerCensusRun = 10
	// censusRuns is how many such runs are open at the same time.
	censusRuns = 16
)

// Census asks the hosts how their accelerators are used now. Hosts that could
// not be asked before the deadline are marked so.
// The error is that of a run that failed; hosts that fail are no error.
func (e *Engine) Census(ctx context.Context, hosts, deployables []string, deadline time.Duration) (cyborg.Census, error) {
	ends := time.Now().Add(deadline)
	parts := slices.Collect(slices.Chunk(hosts, hostsPerCensusRun))
	answers := make([]cyborg.Census, len(parts)) // each goroutine writes only its own
	runs, ctx := errgroup.WithContext(ctx)
	runs.SetLimit(censusRuns)

	for i, part := range parts {
		runs.Go(func() error {
			left := time.Until(ends)
			if left <= 0 {
				answers[i].Partial = true
				for _, host := range part {
					answers[i].Hosts = append(answers[i].Hosts, workflows.Unanswered(host, cyborg.UsageNotAsked))
				}
				return nil
			}
			in := workflows.CensusInput{Hosts: part, Deployables: deployables, Deadline: left}
			return e.ask(ctx, "census/", workflows.CensusWorkflow, in, &answers[i])
		})
	}

	out := cyborg.Census{Hosts: []cyborg.HostUsage{}}
	if err := runs.Wait(); err != nil {
		return out, err
	}

	for _, answer := range answers {
		out.Hosts, out.Partial = append(out.Hosts, answer.Hosts...), out.Partial || answer.Partial
	}
	return out, nil
}

// Discover makes a host look at its hardware and report. The report is recorded
// when Discover returns. The error is of kind ErrHostSilent where the host's
// agent does not take the request within wait, or within Limits.AgentWait if
// that is shorter.
func (e *Engine) Discover(ctx context.Context, host string, wait time.Duration) (workflows.DiscoverResult, error) {
	var out workflows.DiscoverResult
	in := workflows.DiscoverHostInput{Host: host, AgentWait: min(wait, e.limits.AgentWait), Limit: e.limits.Step}
	return out, e.ask(ctx, "discover/"+host+"/", workflows.DiscoverWorkflow, in, &out)
}

// PreviewWhitelist returns what a whitelist would change on its host, and
// changes nothing. Its errors are those of Discover.
func (e *Engine) PreviewWhitelist(ctx context.Context, host string, work cyborg.WhitelistWork, wait time.Duration) (cyborg.WhitelistPreview, error) {
	var out cyborg.WhitelistPreview
	in := workflows.PreviewWhitelistInput{Host: host, Work: work, AgentWait: min(wait, e.limits.AgentWait), Limit: e.limits.Step}
	return out, e.ask(ctx, "preview-whitelist/"+host+"/", workflows.PreviewWhitelistWorkflow, in, &out)
}

// ask runs a workflow that changes no accelerator and waits for its answer. The
// workflow id is the prefix and a new UUID. The error is of kind ErrUnavailable
// where Temporal does not answer, of kind ErrTimeout where ctx ends first, or
// the workflow's.
func (e *Engine) ask(ctx context.Context, prefix, name string, in, out any) error {
	run, err := e.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: prefix + uuid.NewString(), TaskQueue: workflows.ConductorQueue, EnableEagerStart: true,
	}, name, in)
	if err != nil {
		return workflows.Unavailable(err)
	}

	if err := run.Get(ctx, out); err != nil {
		if ctx.Err() != nil {
			return cyborg.Errorf(cyborg.ErrTimeout, "no answer within the time of the request: %w", err)
		}
		return workflows.FromFailure(err)
	}
	return nil
}
