package agent

import (
	"context"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// reportWithin is how long the operation waits for the conductor to record the
// changed backend. Where that takes longer, the agent's regular report follows.
const reportWithin = 10 * time.Second

// configure changes a backend while the agent runs. It keeps no journal step:
// it may be repeated, and the inventory makes the whole change or none of it.
func (a *Activities) configure(ctx context.Context, t *try, in workflows.ConfigureInput) (workflows.ConfigureResult, error) {
	if in.Request.Host != "" && in.Request.Host != a.Inventory.Host() {
		return workflows.ConfigureResult{}, cyborg.Errorf(cyborg.ErrInvalid, "this is the agent of host %s and not of %s", a.Inventory.Host(), in.Request.Host)
	}

	configured, err := a.Inventory.Configure(ctx, in.Request, func() error {
		return a.keepNumber(in.Addressee, journal.BackendSubject(in.Request.Backend))
	})
	if err != nil {
		return workflows.ConfigureResult{}, err
	}

	short, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	if _, _, err := a.Reporter.Report(short); err != nil {
		t.log.WarnContext(ctx, "the conductor does not know of the changed backend yet", "backend", in.Request.Backend, "error", err)
	}

	return workflows.ConfigureResult{State: configured.State, Services: configured.Services, Devices: configured.Devices}, nil
}
