package agent

import (
	"context"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// discover looks at all hardware now, and returns when the conductor has
// recorded what was seen.
func (a *Activities) discover(ctx context.Context, t *try, in workflows.DiscoverInput) (workflows.DiscoverResult, error) {
	if in.Host != "" && in.Host != a.Inventory.Host() {
		return workflows.DiscoverResult{}, cyborg.Errorf(cyborg.ErrInvalid, "this is the agent of host %s and not of %s", a.Inventory.Host(), in.Host)
	}

	result := workflows.DiscoverResult{Devices: map[string]int{}}
	t.heartbeat.setProgress(unknownProgress, "looking")

	for _, look := range a.Inventory.Scan(ctx) {
		// A backend that fails is a part of the result; the others are reported all the
		// same.
		if look.Err != nil {
			result.Errors = append(result.Errors, "backend "+look.Backend+": "+look.Err.Error())
			continue
		}
		result.Devices[look.Backend] = look.Devices
	}

	if ctx.Err() != nil {
		return workflows.DiscoverResult{}, context.Cause(ctx)
	}

	t.heartbeat.setProgress(unknownProgress, "reporting")
	report, reply, err := a.Reporter.Report(ctx)
	if err != nil {
		return workflows.DiscoverResult{}, err
	}

	result.Sequence, result.Generation = report.Sequence, reply.Generation
	return result, nil
}
