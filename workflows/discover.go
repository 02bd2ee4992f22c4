package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
)

// DiscoverHostInput asks one host to look at its hardware now.
type DiscoverHostInput struct {
	Host string `json:"host"`
	// AgentWait is how long to wait for its agent, Limit how long the look may take.
	AgentWait time.Duration `json:"agent_wait"`
	Limit     time.Duration `json:"limit"`
}

// Discover makes a host look at its hardware and report; what it saw is recorded when the run ends.
func Discover(ctx workflow.Context, in DiscoverHostInput) (DiscoverResult, error) {
	var out DiscoverResult
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:              AgentQueue(in.Host),
		ScheduleToStartTimeout: in.AgentWait,
		StartToCloseTimeout:    in.Limit,
		Summary:                "discover " + in.Host,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 3},
	}), DiscoverActivity, DiscoverInput{Host: in.Host}).Get(ctx, &out)
	if err != nil {
		failure := FromFailure(err)
		if failure.Kind == cyborg.HostSilent {
			failure = cyborg.Errorf(cyborg.HostSilent, "the agent of host %s did not answer within %s", in.Host, in.AgentWait).
				WithHint("Start cyborg-agent on %s.", in.Host)
		}
		return DiscoverResult{}, ToFailure(failure)
	}
	return out, nil
}
