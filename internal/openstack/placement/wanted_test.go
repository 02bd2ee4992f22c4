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

// TestStuckIsReserved: what a host could not take back is given to nobody, and nothing else
// of what goes to one holder with it; what it is taking back just now is free.
func TestStuckIsReserved(t *testing.T) {
	t.Parallel()
	left := &cyborg.Holder{Kind: cyborg.HolderInstance, ID: "vm1"}
	for _, test := range []struct {
		together       string
		stuck, outside int
		reserved       int
	}{
		{"", 0, 0, 0}, {"", 1, 0, 1}, {"", 1, 1, 2}, {"group", 0, 0, 0}, {"group", 1, 0, 2},
	} {
		d := placement.Deployable{Stuck: test.stuck, HeldOutsideNova: test.outside, Accelerator: cyborg.Accelerator{
			Specs: cyborg.Specs{Num: 2}, Lifecycle: cyborg.LifecycleReady, Presence: cyborg.PresencePresent, SameHolder: test.together,
			Handles: []cyborg.AttachHandle{{Presence: cyborg.PresencePresent, Prepared: true, Unconfirmed: left}, {Presence: cyborg.PresencePresent}},
		}}
		require.Equal(t, test.reserved, placement.Wanted([]placement.Deployable{d}, false)[0].Reserved, "%+v", test)
	}
}

// TestExcludedIsReserved: Placement gives away nothing of what is excluded by something
// that somebody has, and does not reserve what Nova itself has of it.
func TestExcludedIsReserved(t *testing.T) {
	t.Parallel()
	instance := &cyborg.Holder{Kind: cyborg.HolderInstance, ID: "vm1"}
	for _, test := range []struct {
		excluded []cyborg.OtherHeld
		first    *cyborg.Holder
		outside  int
		reserved int
	}{
		{nil, nil, 0, 0},
		{nil, instance, 0, 0},
		{[]cyborg.OtherHeld{{Name: "slice", Holder: instance}}, nil, 0, 2},
		{[]cyborg.OtherHeld{{Name: "slice", Holder: instance, Left: true}}, nil, 0, 2},
		{[]cyborg.OtherHeld{{Name: "slice"}}, nil, 0, 2},
		{[]cyborg.OtherHeld{{Name: "slice", Holder: instance}}, instance, 0, 1}, // since before
		{[]cyborg.OtherHeld{{Name: "slice", Holder: instance}}, instance, 1, 2},
	} {
		d := placement.Deployable{HeldOutsideNova: test.outside, Accelerator: cyborg.Accelerator{
			Specs: cyborg.Specs{Num: 2}, Lifecycle: cyborg.LifecycleReady, Presence: cyborg.PresencePresent, ExcludedBy: test.excluded,
			Handles: []cyborg.AttachHandle{{Presence: cyborg.PresencePresent, Holder: test.first}, {Presence: cyborg.PresencePresent}},
		}}
		wanted := placement.Wanted([]placement.Deployable{d}, false)
		require.Equal(t, 2, wanted[0].Total)
		require.Equal(t, test.reserved, wanted[0].Reserved, "%+v", test)
	}
}
