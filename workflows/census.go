package workflows

import (
	"encoding/json"
	"slices"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// censusWidth is how many hosts are asked at once: enough to keep the agents
// busy, few enough for one workflow task.
const censusWidth = 100

// CensusInput asks hosts how their accelerators are used now.
type CensusInput struct {
	Hosts []string `json:"hosts"`
	// Deployables limits the answer to these, by the driver's name; empty means
	// all.
	Deployables []string `json:"deployables,omitempty"`
	// Deadline is the time for the whole census. Hosts that have not answered by
	// then are marked as unanswered.
	Deadline time.Duration `json:"deadline"`
}

// Census asks up to censusWidth hosts at a time. A host that does not answer in
// time gets an error instead of an answer, and the census is partial. The
// answers are in the order of the input.
func Census(ctx workflow.Context, in CensusInput) (cyborg.Census, error) {
	out := cyborg.Census{Hosts: make([]cyborg.HostUsage, len(in.Hosts))}
	deadline := workflow.Now(ctx).Add(in.Deadline)
	done := 0
	running := workflow.NewSemaphore(ctx, censusWidth)

	for i, host := range in.Hosts {
		if err := running.Acquire(ctx, 1); err != nil {
			return cyborg.Census{}, err
		}

		workflow.Go(ctx, func(ctx workflow.Context) {
			defer func() { done++; running.Release(1) }()
			out.Hosts[i] = askUsage(ctx, host, in, deadline.Sub(workflow.Now(ctx)))
		})
	}

	if err := workflow.Await(ctx, func() bool { return done == len(in.Hosts) }); err != nil {
		return cyborg.Census{}, err
	}

	leaveOutLargest(out.Hosts)
	for _, host := range out.Hosts {
		out.Partial = out.Partial || host.Error != ""
	}

	return out, nil
}

// maxCensus is how many bytes the answers of all hosts take at most. Temporal takes no
// result of more than 2 MiB (limit.blobSize.error), and a run whose result it does not
// take goes on for ever.
const maxCensus = 2<<20 - 64<<10

// leaveOutLargest leaves out the largest answers until the others fit into a result. A
// host whose answer takes no more than its share is never left out.
func leaveOutLargest(hosts []cyborg.HostUsage) {
	sizes, total := make([]int, len(hosts)), 0
	for i, host := range hosts {
		encoded, err := json.Marshal(host)
		if err != nil {
			hosts[i] = Unanswered(host.Host, cyborg.UsageTooLarge)
			continue
		}
		sizes[i] = len(encoded)
		total += len(encoded)
	}

	for total > maxCensus {
		largest := slices.Index(sizes, slices.Max(sizes))
		hosts[largest] = Unanswered(hosts[largest].Host, cyborg.UsageTooLarge)
		total, sizes[largest] = total-sizes[largest], 0
	}
}

// Unanswered returns the entry of a host without an answer, and says why there is none.
func Unanswered(host, why string) cyborg.HostUsage {
	return cyborg.HostUsage{Host: host, Error: why, Deployables: []cyborg.DeployableUsage{}}
}

// fairWait is how long an agent must have had to take a question before anybody says
// that it did not.
const fairWait = 2 * time.Second

// askUsage asks one host once, within the time that is left. Where there is no
// answer, the entry says whether the agent was asked, took the question, or failed.
func askUsage(ctx workflow.Context, host string, in CensusInput, left time.Duration) cyborg.HostUsage {
	if left <= 0 {
		return Unanswered(host, cyborg.UsageNotAsked)
	}

	// Half of the time is for the agent to take the question, and half to answer
	// it. One limit for both would be compared with the clock of the agent's
	// machine; see repeat.
	var usage cyborg.HostUsage
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              AgentQueue(host),
		ScheduleToStartTimeout: left / 2,
		StartToCloseTimeout:    left / 2,
		Summary:                "usage of " + host,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
	}), UsageActivity, UsageInput{Host: host, Deployables: in.Deployables}).Get(ctx, &usage)
	if err == nil {
		usage.Host = host // whatever it calls itself
		return usage
	}

	switch failure := FromFailure(err); {
	case failure.Kind == cyborg.ErrHostSilent && left/2 >= fairWait:
		return Unanswered(host, cyborg.UsageNotTaken)
	case failure.Kind == cyborg.ErrHostSilent || failure.Kind == cyborg.ErrTimeout:
		return Unanswered(host, cyborg.UsageUnanswered)
	default:
		return Unanswered(host, failure.Message)
	}
}
