package temporalclient

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
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
// not be asked before the deadline are marked so, and so are the hosts of a run that
// failed. The error is that of a run where all failed.
func (e *Engine) Census(ctx context.Context, hosts, deployables []string, deadline time.Duration) (cyborg.Census, error) {
	ends := time.Now().Add(deadline)
	parts := slices.Collect(slices.Chunk(hosts, hostsPerCensusRun))
	answers, errs := make([]cyborg.Census, len(parts)), make([]error, len(parts)) // each goroutine writes only its own
	var runs errgroup.Group
	runs.SetLimit(censusRuns)

	for i, part := range parts {
		runs.Go(func() error {
			left := time.Until(ends)
			if left <= 0 {
				answers[i] = unanswered(part, cyborg.UsageNotAsked)
				return nil
			}

			in := workflows.CensusInput{Hosts: part, Deployables: deployables, Deadline: left}
			errs[i] = e.ask(ctx, "census/", workflows.CensusWorkflow, left, in, &answers[i])
			if errs[i] != nil {
				answers[i] = unanswered(part, cyborg.AsError(errs[i]).Message)
			}
			return nil
		})
	}

	out := cyborg.Census{Hosts: []cyborg.HostUsage{}}
	if err := runs.Wait(); err != nil {
		return out, err
	}
	if len(errs) > 0 && !slices.Contains(errs, nil) {
		return out, errs[0]
	}

	for _, answer := range answers {
		out.Hosts, out.Partial = append(out.Hosts, answer.Hosts...), out.Partial || answer.Partial
	}
	return out, nil
}

// unanswered is the census of hosts of which there is no answer, and says why.
func unanswered(hosts []string, why string) cyborg.Census {
	out := cyborg.Census{Partial: true}
	for _, host := range hosts {
		out.Hosts = append(out.Hosts, workflows.Unanswered(host, why))
	}
	return out
}

// Discover makes a host look at its hardware and report. The report is recorded
// when Discover returns. The error is of kind ErrHostSilent where the host's
// agent does not take the request within wait, or within Limits.AgentWait if
// that is shorter.
func (e *Engine) Discover(ctx context.Context, host string, wait time.Duration) (workflows.DiscoverResult, error) {
	var out workflows.DiscoverResult
	in := workflows.DiscoverHostInput{Host: host, AgentWait: min(wait, e.limits.AgentWait), Limit: e.limits.Step}
	return out, e.ask(ctx, "discover/"+host+"/", workflows.DiscoverWorkflow, hostLimit(in.AgentWait, in.Limit), in, &out)
}

// PreviewWhitelist returns what a whitelist would change on its host, and
// changes nothing. Its errors are those of Discover.
func (e *Engine) PreviewWhitelist(ctx context.Context, host string, work cyborg.WhitelistWork, wait time.Duration) (cyborg.WhitelistPreview, error) {
	var out cyborg.WhitelistPreview
	in := workflows.PreviewWhitelistInput{Host: host, Work: work, AgentWait: min(wait, e.limits.AgentWait), Limit: e.limits.Step}
	return out, e.ask(ctx, "preview-whitelist/"+host+"/", workflows.PreviewWhitelistWorkflow, hostLimit(in.AgentWait, in.Limit), in, &out)
}

// hostLimit is how long a host may take that is asked three times at most.
func hostLimit(agentWait, step time.Duration) time.Duration { return 3 * (agentWait + step) }

// ask runs a workflow that changes no accelerator and waits for its answer. The
// workflow id is the prefix and a new UUID. A minute after limit, Temporal ends the
// run, because nobody waits for it any more. The error is of kind ErrUnavailable
// where Temporal does not answer, of kind ErrTimeout where ctx ends first, or
// the workflow's.
func (e *Engine) ask(ctx context.Context, prefix, name string, limit time.Duration, in, out any) error {
	run, err := e.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: prefix + uuid.NewString(), TaskQueue: workflows.ConductorQueue, EnableEagerStart: true,
		WorkflowRunTimeout: limit + time.Minute,
	}, name, in)
	if err != nil {
		return workflows.Unavailable(err)
	}

	err = run.Get(ctx, out)
	_, failed := errors.AsType[*temporal.WorkflowExecutionError](err)
	_, late := errors.AsType[*serviceerror.DeadlineExceeded](err)
	_, away := errors.AsType[serviceerror.ServiceError](err)
	switch {
	case err == nil:
		return nil
	case failed:
		return workflows.FromFailure(err)
	// Temporal may say a moment before ctx ends that the time is over.
	case ctx.Err() != nil, late, errors.Is(err, context.DeadlineExceeded):
		return cyborg.Errorf(cyborg.ErrTimeout, "no answer within the time of the request: %w", err)
	case away:
		return workflows.Unavailable(err)
	default: // it has answered, and this process cannot read the answer
		return workflows.FromFailure(err)
	}
}
