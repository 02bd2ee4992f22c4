package placement_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
)

// TestUnreadyIsClosed: Placement gives away nothing that its driver calls unready, and all
// of what is only degraded.
func TestUnreadyIsClosed(t *testing.T) {
	t.Parallel()
	for level, reserved := range map[cyborg.ConditionLevel]int{
		cyborg.ConditionUnready: 2, cyborg.ConditionDegraded: 0, cyborg.ConditionNotice: 0,
	} {
		d := placement.Deployable{Accelerator: cyborg.Accelerator{
			Specs: cyborg.Specs{Num: 2}, Lifecycle: cyborg.LifecycleReady, Presence: cyborg.PresencePresent,
			Conditions: []cyborg.Condition{{Code: "no_link", Level: level}},
			Handles:    []cyborg.AttachHandle{{Presence: cyborg.PresencePresent}, {Presence: cyborg.PresencePresent}},
		}}
		wanted := placement.Wanted([]placement.Deployable{d}, false)
		require.Equal(t, 2, wanted[0].Total)
		require.Equal(t, reserved, wanted[0].Reserved, level)
	}
}
