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
	// AgentWait is how long to wait until the host's agent takes the request.
	AgentWait time.Duration `json:"agent_wait"`
	// Limit bounds the look at the hardware itself.
	Limit time.Duration `json:"limit"`
}

// Discover makes a host look at its hardware and report. The report is recorded
// before the run ends. The error is of kind ErrHostSilent where no agent took
// the request within AgentWait.
func Discover(ctx workflow.Context, in DiscoverHostInput) (DiscoverResult, error) {
	var out DiscoverResult
	err := askHost(ctx, in.Host, workflow.ActivityOptions{
		ScheduleToStartTimeout: in.AgentWait,
		StartToCloseTimeout:    in.Limit,
		Summary:                "discover " + in.Host,
	}, DiscoverActivity, DiscoverInput{Host: in.Host}, &out)
	return out, err
}

// askHost runs an activity that changes nothing on a host's agent, at most
// three times. Where no agent takes it, the error names the host.
func askHost(ctx workflow.Context, host string, options workflow.ActivityOptions, activity string, in, out any) error {
	options.TaskQueue = AgentQueue(host)
	options.RetryPolicy = &temporal.RetryPolicy{MaximumAttempts: 3}

	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, options), activity, in).Get(ctx, out)
	if err == nil {
		return nil
	}

	failure := FromFailure(err)
	if failure.Kind == cyborg.ErrHostSilent {
		failure = cyborg.Errorf(cyborg.ErrHostSilent, "the agent of host %s did not answer within %s", host, options.ScheduleToStartTimeout).
			WithHint("Start cyborg-agent on %s.", host)
	}

	return ToFailure(failure)
}
