package workflows_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestServicesAreAskedByTemporalsClock: a conductor compares the limit of all
// attempts with its own clock. So there is none where a run asks Placement or
// Glance: a conductor whose clock is ahead could ask nothing.
func TestServicesAreAskedByTemporalsClock(t *testing.T) {
	t.Parallel()
	find := newWorld(cyborg.OperationBind)
	find.work.Loads[0].Image = cyborg.GlanceFunction("crypto")
	worlds := []*world{find}
	for kind := range asking() {
		worlds = append(worlds, withPlacement(kind))
	}

	var mu sync.Mutex
	limits := map[string][]time.Duration{}
	for _, w := range worlds {
		w.runWith(t, func(env *testsuite.TestWorkflowEnvironment) {
			env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
				mu.Lock()
				defer mu.Unlock()
				if !info.IsLocalActivity && info.TaskQueue == workflows.ConductorQueue {
					limits[info.ActivityType.Name] = append(limits[info.ActivityType.Name], info.ScheduleToCloseTimeout)
				}
			})
		})
	}

	const years = 365 * 24 * time.Hour // Temporal takes the limit of the run where there is none
	require.Len(t, limits, 3)
	for _, service := range []string{workflows.FindImageActivity, workflows.FencePlacementActivity, workflows.CheckAllocationsActivity} {
		require.Greater(t, slices.Min(limits[service]), years, service)
	}
}
